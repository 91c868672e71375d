//! Postgres: the table of claims and outcomes, the source of truth. Nothing else imports
//! tokio-postgres, and nothing here knows of the broker or of tools.
//!
//! One method for each thing that may be asked. What every call needs (`many.rs`) is asked for many
//! callers at once where the ledger is [batched](Ledger::batched). Nothing is ever cancelled on the
//! server: when an answer does not come in time its connection is dropped.

mod batch;
mod bench;
mod connect;
mod connections;
mod error;
mod insert;
pub mod lease;
mod many;
mod migrate;
mod people;
mod row;
pub mod state;
mod statements;
mod view;
mod waits;

use std::time::Duration;

use deadpool_postgres::Object;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::call::job::Job;
use crate::call::key::IdempotencyKey;
use crate::clock::Moment;
use crate::outcome::Outcome;
use batch::Batches;
pub use bench::{Held, SchemaError, ServerInfo};
pub use connect::{PoolSettings, UrlError, pool};
use connections::Connections;
pub use error::LedgerError;
use insert::Inserted;
pub use row::{CallRow, ClaimAgain, ClaimRequest, Granted, Note, Proof, ProofBy, Settle, Settling};
use row::{class_name, encode, expires_at, granted, millis, read_row};
pub use view::{CallView, HistoryEntry, ListEntry, Unended};
pub use waits::Waits;

/// A handle to the ledger.
#[derive(Clone)]
pub struct Ledger {
    connections: Connections,
    claims: Batches<many::Claims>,
    reads: Batches<many::Reads>,
    completions: Batches<many::Completions>,
}

impl Ledger {
    /// Prepares a handle; connects to nothing yet. Each caller's statement is its own.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Url`] where the URL cannot be used.
    pub fn new(
        database_url: &str,
        settings: PoolSettings,
        statement_timeout: Duration,
    ) -> Result<Self, LedgerError> {
        let pool = connect::pool(database_url, settings)?;
        let connections = Connections { pool, statement_timeout };
        Ok(Self {
            claims: Batches::of_one(connections.clone()),
            reads: Batches::of_one(connections.clone()),
            completions: Batches::of_one(connections.clone()),
            connections,
        })
    }

    /// Lets up to `max` callers share a statement: each takes what queued while the one before it was
    /// under way. With 1 each caller's statement is its own.
    ///
    /// The tasks that gather callers end with the last handle, or with `stop`: after that nothing is
    /// answered.
    #[must_use]
    pub fn batched(self, max: usize, tasks: &TaskTracker, stop: &CancellationToken) -> Self {
        if max <= 1 {
            return self;
        }
        let connections = self.connections;
        Self {
            claims: Batches::of(connections.clone(), max, tasks, stop),
            reads: Batches::of(connections.clone(), max, tasks, stop),
            completions: Batches::of(connections.clone(), max, tasks, stop),
            connections,
        }
    }

    /// Brings the schema up to date and says which migrations were applied.
    ///
    /// # Errors
    ///
    /// Where there is no connection, or a migration failed; what was applied before stays.
    pub async fn migrate(&self) -> Result<Vec<String>, LedgerError> {
        // Not given back: a migration sets its session up in its own way.
        let mut client = Object::take(self.checkout().await?);
        migrate::migrate(&mut client).await
    }

    /// Checks that the schema and the database are what this binary needs.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Schema`] and [`LedgerError::Encoding`] where they are not.
    pub async fn check(&self) -> Result<(), LedgerError> {
        let mut client = self.checkout().await?;
        let encoding: String = client
            .query_one("SHOW server_encoding", &[])
            .await
            .map_err(LedgerError::statement)?
            .get(0);
        if encoding != "UTF8" {
            return Err(LedgerError::Encoding(encoding));
        }
        let missing = migrate::missing(&mut client).await?;
        if missing.is_empty() { Ok(()) } else { Err(LedgerError::Schema(missing.join(", "))) }
    }

    /// Claims a call that has no row. `None`: there is one, or the call has expired; read it.
    ///
    /// # Errors
    ///
    /// After any error the claim may stand all the same: the same `claim` is confirmed by
    /// [`Ledger::confirm`] before anything acts on it.
    pub async fn claim(
        &self,
        request: &ClaimRequest,
        claim: Uuid,
    ) -> Result<Option<Granted>, LedgerError> {
        let asked = Moment::now();
        let granted = self.claims.ask(many::Claim { request: request.clone(), claim }).await?;
        Ok(granted.then(|| Granted {
            claim,
            attempt: 1,
            args: request.job.args.clone(),
            maybe_age: None,
            earlier_timeout: Duration::ZERO,
            asked,
        }))
    }

    /// Reads the row of a key. `None`: there is none.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked; nothing was changed.
    pub async fn read(
        &self,
        key: IdempotencyKey,
        job: Option<&Job>,
    ) -> Result<Option<CallRow>, LedgerError> {
        let expires_at = job.and_then(expires_at);
        let row = self.reads.ask(many::Read { key, expires_at }).await?;
        row.map(|row| read_row(&row, job)).transpose()
    }

    /// Whether a job that has no row has expired, in the database's time.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked.
    pub async fn expired(&self, job: &Job) -> Result<bool, LedgerError> {
        let Some(expires_at) = expires_at(job) else { return Ok(false) };
        Ok(self.one(statements::EXPIRED, &[&expires_at]).await?.is_some_and(|row| row.get(0)))
    }

    /// Makes a move that claims a row. `None`: the row is no longer as it was read.
    ///
    /// # Errors
    ///
    /// As for [`Ledger::claim`].
    pub async fn claim_again(
        &self,
        request: &ClaimRequest,
        seen: Option<Uuid>,
        claim: Uuid,
        how: ClaimAgain,
    ) -> Result<Option<Granted>, LedgerError> {
        let (job, terms, asked) = (&request.job, &request.terms, Moment::now());
        let key = job.key();
        let (key, sent_as) = (&key.as_bytes()[..], &terms.sent_as[..]);
        let (worker, lease, timeout) =
            (&*request.worker, millis(request.lease), terms.timeout / 1_000);
        let memory = terms.key_memory.map(|memory| memory / 1_000);
        let effect = class_name(terms.effect);
        let row = match how {
            ClaimAgain::NotRun => {
                let args = job.args.as_ref();
                self.one(
                    statements::RECLAIM,
                    &[
                        &key,
                        &seen,
                        &claim,
                        &worker,
                        &lease,
                        &effect,
                        &timeout,
                        &sent_as,
                        &args,
                        &expires_at(job),
                        &terms.approval,
                    ],
                )
                .await?
            }
            ClaimAgain::Unknown => {
                self.one(
                    statements::RESEND,
                    &[&key, &seen, &claim, &worker, &lease, &timeout, &sent_as, &memory, &effect],
                )
                .await?
            }
            ClaimAgain::Lapsed => {
                self.one(
                    statements::TAKE_OVER,
                    &[
                        &key,
                        &seen,
                        &claim,
                        &worker,
                        &lease,
                        &timeout,
                        &sent_as,
                        &memory,
                        &effect,
                        &terms.max_attempts,
                    ],
                )
                .await?
            }
        };
        row.map(|row| granted(&row, claim, asked)).transpose()
    }

    /// Confirms a claim that was not answered, by renewing it: a read can see what no standby has.
    /// `None`: the claim does not stand.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked; the claim is as unconfirmed as before.
    pub async fn confirm(
        &self,
        request: &ClaimRequest,
        claim: Uuid,
    ) -> Result<Option<Granted>, LedgerError> {
        let (key, asked) = (request.job.key(), Moment::now());
        let row = self
            .one(statements::CONFIRM, &[&&key.as_bytes()[..], &claim, &millis(request.lease)])
            .await?;
        row.map(|row| granted(&row, claim, asked)).transpose()
    }

    /// Renews many claims in one statement; those that come back still stand.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked; a lease then stands as long as it did.
    pub async fn renew(
        &self,
        claims: &[(IdempotencyKey, Uuid, Duration)],
    ) -> Result<Vec<Uuid>, LedgerError> {
        let keys: Vec<&[u8]> = claims.iter().map(|(key, _, _)| &key.as_bytes()[..]).collect();
        let ids: Vec<Uuid> = claims.iter().map(|(_, claim, _)| *claim).collect();
        let leases: Vec<i64> = claims.iter().map(|(_, _, lease)| millis(*lease)).collect();
        let rows = self.query(statements::RENEW, &[&keys, &ids, &leases]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Says of a row whose lease ran out that it is unknown. False: it is no longer as it was read.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked.
    pub async fn lapse(
        &self,
        key: IdempotencyKey,
        seen: Uuid,
        too_many: bool,
        outcome: &Outcome,
    ) -> Result<bool, LedgerError> {
        let outcome = encode(outcome)?;
        self.one(statements::LAPSE, &[&&key.as_bytes()[..], &seen, &too_many, &outcome])
            .await
            .map(|row| row.is_some())
    }

    /// Completes a row from a completion that came late, if its lease is over or the claim is the
    /// caller's `own`. False: there is none, or the row is no longer as it was read.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked.
    pub async fn adopt(
        &self,
        key: IdempotencyKey,
        claim: Uuid,
        own: bool,
    ) -> Result<bool, LedgerError> {
        let row = self.one(statements::ADOPT, &[&&key.as_bytes()[..], &claim, &own]).await?;
        Ok(row.is_some())
    }

    /// Records an outcome under its claim. False: another than the ordinary way is needed; see
    /// [`state::permits`] for which.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked; the same settling can be repeated.
    pub async fn settle(&self, settling: &Settling, how: Settle) -> Result<bool, LedgerError> {
        let key = settling.request.job.key();
        let (key, claim) = (&key.as_bytes()[..], &settling.claim);
        let outcome = encode(&settling.outcome)?;
        let (attempt, worker) = (&settling.attempt, &*settling.request.worker);
        let row = match how {
            Settle::Completed => {
                let key = settling.request.job.key();
                let completion = many::Completion { key, claim: settling.claim, outcome };
                return self.completions.ask(completion).await;
            }
            Settle::CompletedLate => {
                self.one(
                    statements::SETTLE_COMPLETED_LATE,
                    &[&key, claim, &outcome, attempt, &worker],
                )
                .await?
            }
            Settle::KeepCompletion => {
                self.one(statements::KEEP_COMPLETION, &[&key, claim, &outcome, attempt, &worker])
                    .await?
            }
            Settle::InsertCompleted => self.insert_completed(settling, &outcome).await?,
            Settle::NotRun => {
                let evident = &settling.evident;
                self.one(statements::SETTLE_NOT_RUN, &[&key, claim, &outcome, evident]).await?
            }
            Settle::Unknown => {
                self.one(statements::SETTLE_UNKNOWN, &[&key, claim, &outcome]).await?
            }
        };
        Ok(row.is_some())
    }

    async fn insert_completed(
        &self,
        settling: &Settling,
        outcome: &[u8],
    ) -> Result<Option<Row>, LedgerError> {
        let request = &settling.request;
        let call = Inserted::new(&request.job, &request.terms, &settling.args);
        let worker = &*request.worker;
        self.one(
            statements::INSERT_COMPLETED,
            &call.and(&[&settling.claim, &settling.attempt, &worker, &outcome]),
        )
        .await
    }

    /// Inserts a call that has no row as held. False: there is one, or the call has expired.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked; the row may be there all the same.
    pub async fn insert_held(&self, request: &ClaimRequest) -> Result<bool, LedgerError> {
        let job = &request.job;
        let call = Inserted::new(job, &request.terms, &job.args);
        let row = self.one(statements::INSERT_HELD, &call.and(&[&expires_at(job)])).await?;
        Ok(row.is_some())
    }

    /// Holds a row that is known not to have run. False: it is no longer as it was read.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked.
    pub async fn hold(&self, key: IdempotencyKey, seen: Option<Uuid>) -> Result<bool, LedgerError> {
        let row = self.one(statements::HOLD, &[&&key.as_bytes()[..], &seen]).await?;
        Ok(row.is_some())
    }

    /// Notes in a key's history what did not go the ordinary way; the same thing once.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked.
    pub async fn note(&self, note: &Note<'_>) -> Result<(), LedgerError> {
        let Note { key, event, claim, attempt, worker, detail } = note;
        self.query(statements::NOTE, &[&&key.as_bytes()[..], event, claim, attempt, worker, detail])
            .await
            .map(drop)
    }

    /// How earlier attempts' requests ended that did not end the ordinary way: the details of those
    /// notes, oldest first.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked.
    pub async fn trails(&self, key: IdempotencyKey) -> Result<Vec<Vec<u8>>, LedgerError> {
        let rows = self.query(statements::TRAILS, &[&&key.as_bytes()[..]]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Says which of many waits are over, by their places in the list.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked.
    pub async fn watch(&self, waits: &[(IdempotencyKey, Uuid)]) -> Result<Vec<usize>, LedgerError> {
        let keys: Vec<&[u8]> = waits.iter().map(|(key, _)| &key.as_bytes()[..]).collect();
        let claims: Vec<Uuid> = waits.iter().map(|(_, claim)| *claim).collect();
        let rows = self.query(statements::WATCH, &[&keys, &claims]).await?;
        let place = |row: &Row| usize::try_from(row.get::<_, i64>(0)).ok()?.checked_sub(1);
        Ok(rows.iter().filter_map(place).collect())
    }

    /// Counts an event stream of a tool that ended without its terminal event.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked.
    pub async fn count_unended(&self, tool: &str) -> Result<(), LedgerError> {
        self.query(statements::COUNT_UNENDED, &[&tool]).await.map(drop)
    }

    /// Counts a start of a delivery that came back several times, and says how many there were.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked; the delivery must not be begun.
    pub async fn count_start(&self, body_digest: &[u8; 32]) -> Result<i32, LedgerError> {
        let row = self.one(statements::COUNT_START, &[&&body_digest[..]]).await?;
        row.map(|row| row.get(0)).ok_or(LedgerError::Row("a start that was not counted"))
    }

    /// Forgets a suspect that came to an end.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked; the next start counts on.
    pub async fn clear_suspect(&self, body_digest: &[u8; 32]) -> Result<(), LedgerError> {
        self.query(statements::CLEAR_SUSPECT, &[&&body_digest[..]]).await.map(drop)
    }

    async fn checkout(&self) -> Result<Object, LedgerError> {
        self.connections.checkout().await
    }

    async fn one(
        &self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>, LedgerError> {
        self.connections.one(sql, parameters).await
    }

    async fn query(
        &self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, LedgerError> {
        self.connections.query(sql, parameters).await
    }
}
