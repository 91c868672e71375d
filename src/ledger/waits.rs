//! Waiting for other attempts: one query a worker for everybody who waits.
//!
//! What ends a wait is any change of the row: another state, another claim, no row at all, or a
//! lease that has run out. Who waited then reads the row and judges it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Ledger, LedgerError};
use crate::call::key::IdempotencyKey;
use crate::retry::Backoff;

/// Everybody in this worker who waits for another attempt.
pub struct Waits {
    waiting: Mutex<Waiting>,
    added: Notify,
}

#[derive(Default)]
struct Waiting {
    last: u64,
    by_number: HashMap<u64, Waiter>,
}

struct Waiter {
    key: IdempotencyKey,
    claim: Uuid,
    over: Arc<Notify>,
}

/// Takes a waiter out again.
struct Place<'a> {
    waits: &'a Waits,
    number: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.waits.waiting().by_number.remove(&self.number);
    }
}

impl Waits {
    /// Nobody waits.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { waiting: Mutex::default(), added: Notify::new() })
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Comes back when the row no longer stands as it was seen: in flight under `claim`.
    ///
    /// # Cancel safety
    ///
    /// Safe: the place is given up.
    pub async fn changed(&self, key: IdempotencyKey, claim: Uuid) {
        let over = Arc::new(Notify::new());
        let number = {
            let mut waiting = self.waiting();
            waiting.last += 1;
            let number = waiting.last;
            waiting.by_number.insert(number, Waiter { key, claim, over: over.clone() });
            number
        };
        let _place = Place { waits: self, number };
        self.added.notify_one();
        over.notified().await;
    }

    /// Looks for everybody at once, until `stop`: soon after somebody began to wait, then less and
    /// less often.
    pub async fn run(&self, ledger: &Ledger, stop: CancellationToken) {
        let mut backoff = Backoff::watching();
        while !stop.is_cancelled() {
            match self.look(ledger).await {
                Ok(true) => {}
                Ok(false) => {
                    tokio::select! {
                        () = stop.cancelled() => return,
                        () = self.added.notified() => backoff.reset(),
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "could not look what others wait for; trying again");
                }
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(backoff.wait()) => {}
                // However many come, one look serves them all.
                () = self.added.notified() => {
                    backoff.reset();
                    tokio::time::sleep(backoff.wait()).await;
                }
            }
        }
    }

    /// One look; false where nobody waits.
    async fn look(&self, ledger: &Ledger) -> Result<bool, LedgerError> {
        let (numbers, waits): (Vec<u64>, Vec<(IdempotencyKey, Uuid)>) = self
            .waiting()
            .by_number
            .iter()
            .map(|(number, waiter)| (*number, (waiter.key, waiter.claim)))
            .unzip();
        if waits.is_empty() {
            return Ok(false);
        }
        let over = ledger.watch(&waits).await?;
        let mut waiting = self.waiting();
        for number in over.into_iter().filter_map(|place| numbers.get(place)) {
            if let Some(waiter) = waiting.by_number.remove(number) {
                waiter.over.notify_one();
            }
        }
        Ok(true)
    }
}
