//! Leases: renewed beside running tools, trusted for less than was granted, and lost at once when
//! the ledger no longer knows the claim.
//!
//! A lease stands on this worker's own clock, counted from before the claim or renewal was asked
//! for. It says whether a request may begin; it never ends one that is under way.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Ledger, LedgerError};
use crate::call::key::IdempotencyKey;
use crate::clock::Moment;
use crate::retry::Backoff;

/// Renewed when a third of the lease has gone, so that two renewals may fail before it ends.
const RENEWALS_PER_LEASE: u32 = 3;

/// The right to begin a request, until it ends.
#[derive(Debug)]
pub struct Lease {
    until: Mutex<Moment>,
    lost: CancellationToken,
}

impl Lease {
    fn until(&self) -> MutexGuard<'_, Moment> {
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a request may begin.
    pub fn stands(&self) -> bool {
        !self.lost.is_cancelled() && !self.until().remaining().is_zero()
    }

    /// Comes back when the lease has ended.
    ///
    /// # Cancel safety
    ///
    /// Safe: it changes nothing.
    pub async fn ended(&self) {
        while self.stands() {
            let remaining = self.until().remaining();
            tokio::select! {
                () = self.lost.cancelled() => {}
                () = tokio::time::sleep(remaining) => {}
            }
        }
    }
}

struct Kept {
    key: IdempotencyKey,
    lease: Arc<Lease>,
    length: Duration,
    due: Moment,
}

/// The leases by their claims, and when the keeper looks at them next.
#[derive(Default)]
struct Book {
    kept: HashMap<Uuid, Kept>,
    next: Option<Moment>,
}

/// Keeps the leases of running attempts.
pub struct LeaseKeeper {
    book: Mutex<Book>,
    /// A lease is due before the keeper would look.
    sooner: Notify,
}

/// A lease that is renewed until this is dropped.
#[derive(Clone)]
pub struct KeptLease {
    lease: Arc<Lease>,
    _registration: Arc<Registration>,
}

struct Registration {
    claim: Uuid,
    keeper: Arc<LeaseKeeper>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.keeper.book().kept.remove(&self.claim);
    }
}

impl std::ops::Deref for KeptLease {
    type Target = Arc<Lease>;

    fn deref(&self) -> &Self::Target {
        &self.lease
    }
}

impl LeaseKeeper {
    /// A keeper without leases.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { book: Mutex::default(), sooner: Notify::new() })
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the lease of a claim that was asked for at `asked` and granted.
    pub fn keep(
        self: &Arc<Self>,
        key: IdempotencyKey,
        claim: Uuid,
        asked: Moment,
        length: Duration,
    ) -> KeptLease {
        let lease =
            Arc::new(Lease { until: Mutex::new(asked + length), lost: CancellationToken::new() });
        let due = asked + length / RENEWALS_PER_LEASE;
        let mut book = self.book();
        book.kept.insert(claim, Kept { key, lease: lease.clone(), length, due });
        if book.next.is_none_or(|next| due < next) {
            book.next = Some(due);
            self.sooner.notify_one();
        }
        drop(book);
        KeptLease { lease, _registration: Arc::new(Registration { claim, keeper: self.clone() }) }
    }

    /// Renews what is due, many claims in one statement, until `stop`.
    ///
    /// `ledger` is one of the keeper's own: a claim that waits for a connection must not let
    /// every lease lapse.
    pub async fn run(&self, ledger: &Ledger, stop: CancellationToken) {
        let mut backoff = Backoff::database();
        while !stop.is_cancelled() {
            let wait = match self.renew_due(ledger).await {
                Ok(next) => {
                    backoff.reset();
                    next
                }
                Err(error) => {
                    tracing::warn!(%error, "could not renew leases; trying again");
                    let wait = backoff.wait();
                    self.book().next = Some(Moment::now() + wait);
                    Some(wait)
                }
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.sooner.notified() => {}
                () = sleep_or_pend(wait) => {}
            }
        }
    }

    /// Renews what is due and says how long it is until the next is.
    async fn renew_due(&self, ledger: &Ledger) -> Result<Option<Duration>, LedgerError> {
        let asked = Moment::now();
        let due: Vec<(IdempotencyKey, Uuid, Duration)> = self
            .book()
            .kept
            .iter()
            .filter(|(_, kept)| kept.due <= asked)
            .map(|(claim, kept)| (kept.key, *claim, kept.length))
            .collect();
        if !due.is_empty() {
            let standing = ledger.renew(&due).await?;
            self.note(&due, &standing, asked);
        }
        let mut book = self.book();
        book.next = book.kept.values().map(|kept| kept.due).min();
        Ok(book.next.map(Moment::remaining))
    }

    fn note(&self, due: &[(IdempotencyKey, Uuid, Duration)], standing: &[Uuid], asked: Moment) {
        let kept = &mut self.book().kept;
        for (key, claim, length) in due {
            let Some(entry) = kept.get_mut(claim) else { continue };
            if standing.contains(claim) {
                *entry.lease.until() = asked + *length;
                entry.due = asked + *length / RENEWALS_PER_LEASE;
            } else {
                tracing::debug!(%key, %claim, "the ledger no longer knows this claim");
                entry.lease.lost.cancel();
                kept.remove(claim);
            }
        }
    }
}

async fn sleep_or_pend(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}
