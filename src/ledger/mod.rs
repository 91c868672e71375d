//! Postgres: the table of claims and outcomes, the source of truth. Nothing else imports
//! tokio-postgres, and nothing here knows of the broker or of tools.
//!
//! One method for each statement. A claim or a settling is an owned value and gives an owned
//! answer, so that many callers can come to share one statement. Nothing is ever cancelled on the
//! server: when an answer does not come in time its connection is dropped.

mod connect;
pub mod lease;
mod migrate;
pub mod state;
mod statements;
mod view;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use deadpool_postgres::{Object, Pool, PoolError};
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::call::job::Job;
use crate::call::key::{IdempotencyKey, KEY_VERSION};
use crate::clock::Moment;
use crate::outcome::{EffectClass, Outcome};
pub use connect::{PoolSettings, UrlError, pool};
use state::{Record, State, Terms};
pub use view::{CallView, HistoryEntry, ListEntry};

/// Why the ledger did not answer.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The URL cannot be used.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// There is no connection.
    #[error("no connection to the ledger: {what}")]
    Connection {
        /// What was waited for.
        what: &'static str,
        /// Why.
        #[source]
        source: PoolError,
    },
    /// A statement was not answered in time; whether it was carried out is not known.
    #[error("the ledger did not answer within {0:?}")]
    Timeout(Duration),
    /// A statement failed; whether it was carried out is not known if the connection was lost.
    #[error("the ledger refused a statement: {what}")]
    Statement {
        /// The server's message. Its detail is left out: it can hold the values of a row.
        what: String,
        /// The server's code, if it answered.
        code: Option<SqlState>,
        /// Why, if it did not.
        #[source]
        source: Option<tokio_postgres::Error>,
    },
    /// The schema could not be brought up to date.
    #[error("the ledger's schema could not be brought up to date")]
    Migration(#[source] Box<refinery::Error>),
    /// The schema is not the one that this binary needs.
    #[error("the ledger's schema lacks {0}; run `callonce migrate`")]
    Schema(String),
    /// The database cannot hold every text.
    #[error("the database's encoding is {0}; the ledger needs UTF8")]
    Encoding(String),
    /// A row holds something that this version cannot read.
    #[error("a row of the ledger cannot be read: {0}")]
    Row(&'static str),
}

impl LedgerError {
    fn statement(error: tokio_postgres::Error) -> Self {
        let Some(answer) = error.as_db_error() else {
            let what = "it was not answered".to_owned();
            return Self::Statement { what, code: None, source: Some(error) };
        };
        let code = answer.code().clone();
        Self::Statement {
            what: format!("{} ({})", answer.message(), code.code()),
            code: Some(code),
            source: None,
        }
    }

    /// Whether the statement may have reached the server.
    pub fn may_have_been_sent(&self) -> bool {
        match self {
            Self::Timeout(_) | Self::Statement { .. } | Self::Row(_) => true,
            Self::Connection { .. }
            | Self::Url(_)
            | Self::Migration(_)
            | Self::Schema(_)
            | Self::Encoding(_) => false,
        }
    }

    /// Whether an error will be the same at the next try, as far as anybody can tell: the server
    /// answered and refused, and is not just starting or full.
    pub fn is_lasting(&self) -> bool {
        // Connection trouble, resources and an operator's intervention pass.
        let refused = |code: Option<&SqlState>| {
            code.is_some_and(|code| {
                !["08", "53", "57"].iter().any(|class| code.code().starts_with(class))
            })
        };
        match self {
            Self::Connection { source: PoolError::Backend(error), .. } => refused(error.code()),
            Self::Statement { code, .. } => refused(code.as_ref()),
            Self::Connection { .. } | Self::Timeout(_) => false,
            Self::Url(_)
            | Self::Migration(_)
            | Self::Schema(_)
            | Self::Encoding(_)
            | Self::Row(_) => true,
        }
    }
}

/// What a claim is made of: the call and its tool as it is registered now.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    /// The call.
    pub job: Arc<Job>,
    /// The tool, as the moves judge it.
    pub terms: Terms,
    /// How long the claim stands without renewal.
    pub lease: Duration,
    /// This worker's name.
    pub worker: Arc<str>,
}

/// A claim that was granted.
#[derive(Debug)]
pub struct Granted {
    /// The claim's id: the fencing token that every later write names.
    pub claim: Uuid,
    /// Counted from 1.
    pub attempt: i32,
    /// The arguments that the row holds: what is sent at every attempt.
    pub args: Bytes,
    /// How long ago an earlier attempt may first have acted, if one may have.
    pub maybe_age: Option<Duration>,
    /// When it was asked for; the lease counts from here.
    pub asked: Moment,
}

/// A row as a delivery reads it.
#[derive(Debug)]
pub struct CallRow {
    /// What decides.
    pub record: Record<Uuid>,
    /// Whether what it was made of, and the whole digest, are those of the job that asks.
    pub same_call: bool,
    /// What is known of the outcome, if anything is.
    pub outcome: Option<Outcome>,
    /// Whether its body was removed when it was old enough.
    pub pruned: bool,
    /// The worker that claimed it last.
    pub worker: Option<String>,
    /// The database's clock.
    pub now: state::Micros,
    /// Whether the job's `expires_at` has passed.
    pub expired: bool,
}

/// How many dead connections one statement may meet before its error counts: after a server's
/// restart each connection of the pool fails once.
const STALE_CONNECTIONS_MAX: usize = 64;

/// A handle to the ledger.
#[derive(Clone)]
pub struct Ledger {
    pool: Pool,
    statement_timeout: Duration,
}

impl Ledger {
    /// Prepares a handle; connects to nothing yet.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Url`] where the URL cannot be used.
    pub fn new(
        database_url: &str,
        settings: PoolSettings,
        statement_timeout: Duration,
    ) -> Result<Self, LedgerError> {
        Ok(Self { pool: connect::pool(database_url, settings)?, statement_timeout })
    }

    /// Brings the schema up to date and says which migrations were applied.
    ///
    /// # Errors
    ///
    /// Where there is no connection, or a migration failed; what was applied before stays.
    pub async fn migrate(&self) -> Result<Vec<String>, LedgerError> {
        let mut client = self.checkout().await?;
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
        let (job, asked) = (&request.job, Moment::now());
        let row = self
            .one(
                statements::CLAIM,
                &[
                    &&job.key().as_bytes()[..],
                    &&job.digest.as_bytes()[..],
                    &KEY_VERSION,
                    &job.conversation_id.as_str(),
                    &job.turn_index.as_i64(),
                    &job.name.as_str(),
                    &job.ordinal.as_i64(),
                    &job.args.as_ref(),
                    &job.meta.as_deref(),
                    &job.response_id.as_ref().map(|id| id.as_str()),
                    &class_name(request.terms.effect),
                    &(request.terms.timeout / 1_000),
                    &&request.terms.sent_as[..],
                    &claim,
                    &&*request.worker,
                    &millis(request.lease),
                    &expires_at(job),
                ],
            )
            .await?;
        Ok(row.map(|row| Granted {
            claim,
            attempt: row.get(0),
            args: job.args.clone(),
            maybe_age: None,
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
        let row = self.one(statements::READ, &[&&key.as_bytes()[..], &expires_at]).await?;
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
        let row = match how {
            ClaimAgain::NotRun => {
                let (effect, args) = (class_name(terms.effect), job.args.as_ref());
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
                    ],
                )
                .await?
            }
            ClaimAgain::Unknown => {
                self.one(
                    statements::RESEND,
                    &[&key, &seen, &claim, &worker, &lease, &timeout, &sent_as, &memory],
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
                self.one(statements::SETTLE_COMPLETED, &[&key, claim, &outcome]).await?
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
                self.one(statements::SETTLE_NOT_RUN, &[&key, claim, &outcome]).await?
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
        let (job, terms) = (&settling.request.job, &settling.request.terms);
        self.one(
            statements::INSERT_COMPLETED,
            &[
                &&job.key().as_bytes()[..],
                &&job.digest.as_bytes()[..],
                &KEY_VERSION,
                &job.conversation_id.as_str(),
                &job.turn_index.as_i64(),
                &job.name.as_str(),
                &job.ordinal.as_i64(),
                &settling.args.as_ref(),
                &job.meta.as_deref(),
                &job.response_id.as_ref().map(|id| id.as_str()),
                &class_name(terms.effect),
                &(terms.timeout / 1_000),
                &&terms.sent_as[..],
                &settling.claim,
                &settling.attempt,
                &&*settling.request.worker,
                &outcome,
            ],
        )
        .await
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

    /// Reads a row and its history for a person. `None`: there is none.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked.
    pub async fn show(&self, key: IdempotencyKey) -> Result<Option<CallView>, LedgerError> {
        let Some(row) = self.one(statements::SHOW, &[&&key.as_bytes()[..]]).await? else {
            return Ok(None);
        };
        let history = self.query(statements::HISTORY, &[&&key.as_bytes()[..]]).await?;
        view::call(&row, &history).map(Some)
    }

    /// Lists rows, last claimed first.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked.
    pub async fn list(
        &self,
        state: Option<State>,
        limit: i64,
    ) -> Result<Vec<ListEntry>, LedgerError> {
        let rows = self.query(statements::LIST, &[&state.map(State::as_str), &limit]).await?;
        rows.iter().map(view::entry).collect()
    }

    async fn checkout(&self) -> Result<Object, LedgerError> {
        self.pool
            .get()
            .await
            .map_err(|source| LedgerError::Connection { what: connect::describe(&source), source })
    }

    async fn one(
        &self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>, LedgerError> {
        Ok(self.query(sql, parameters).await?.pop())
    }

    /// Runs one statement in its own transaction.
    ///
    /// A connection that was dead before the statement was sent is thrown away and another tried.
    /// Every statement here can be repeated: it is guarded, and an insert keeps its claim's id.
    async fn query(
        &self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, LedgerError> {
        let mut stale = 0;
        loop {
            let client = self.checkout().await?;
            let answer = tokio::time::timeout(self.statement_timeout, async {
                let statement = client.prepare_cached(sql).await?;
                client.query(&statement, parameters).await
            })
            .await;
            match answer {
                Ok(Ok(rows)) => return Ok(rows),
                Ok(Err(error)) => {
                    let closed = error.is_closed() || client.is_closed();
                    if closed || spoils_connection(&error) {
                        drop(Object::take(client));
                    }
                    stale += 1;
                    if !closed || stale > STALE_CONNECTIONS_MAX {
                        return Err(LedgerError::statement(error));
                    }
                }
                Err(_) => {
                    drop(Object::take(client));
                    return Err(LedgerError::Timeout(self.statement_timeout));
                }
            }
        }
    }
}

/// Which claiming move [`Ledger::claim_again`] makes.
#[derive(Debug, Clone, Copy)]
pub enum ClaimAgain {
    /// [`state::Move::Reclaim`].
    NotRun,
    /// [`state::Move::Resend`].
    Unknown,
    /// [`state::Move::TakeOver`].
    Lapsed,
}

/// An outcome that is to be recorded under its claim.
#[derive(Debug)]
pub struct Settling {
    /// What the claim was made of.
    pub request: ClaimRequest,
    /// The claim.
    pub claim: Uuid,
    /// Its attempt.
    pub attempt: i32,
    /// The arguments that were sent.
    pub args: Bytes,
    /// What is known.
    pub outcome: Outcome,
}

/// Which statement [`Ledger::settle`] runs.
#[derive(Debug, Clone, Copy)]
pub enum Settle {
    /// [`state::Move::Complete`] of a row that is still in flight under this claim.
    Completed,
    /// [`state::Move::Complete`] of a row that had ended otherwise.
    CompletedLate,
    /// [`state::Move::KeepCompletion`].
    KeepCompletion,
    /// A completed row where a failover lost the claim's.
    InsertCompleted,
    /// [`state::Move::SettleNotRun`].
    NotRun,
    /// [`state::Move::SettleUnknown`].
    Unknown,
}

/// A server that became read-only, is going down or is starting up will say the same on this
/// connection for as long as it is kept.
fn spoils_connection(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| {
        [
            SqlState::READ_ONLY_SQL_TRANSACTION,
            SqlState::ADMIN_SHUTDOWN,
            SqlState::CRASH_SHUTDOWN,
            SqlState::CANNOT_CONNECT_NOW,
            SqlState::INVALID_SQL_STATEMENT_NAME,
            SqlState::DUPLICATE_PSTATEMENT,
        ]
        .contains(code)
    })
}

fn granted(row: &Row, claim: Uuid, asked: Moment) -> Result<Granted, LedgerError> {
    let args: Option<Vec<u8>> = row.get("args");
    let maybe_age_ms: Option<i64> = row.get("maybe_age_ms");
    Ok(Granted {
        claim,
        attempt: row.get("attempt"),
        args: args.ok_or(LedgerError::Row("an unsettled row without arguments"))?.into(),
        maybe_age: maybe_age_ms
            .map(|age| Duration::from_millis(u64::try_from(age).unwrap_or_default())),
        asked,
    })
}

fn read_row(row: &Row, job: Option<&Job>) -> Result<CallRow, LedgerError> {
    let outcome: Option<Vec<u8>> = row.get("outcome");
    let same_call = job.is_none_or(|job| {
        row.get::<_, &[u8]>("digest") == job.digest.as_bytes()
            && row.get::<_, &str>("conversation_id") == job.conversation_id.as_str()
            && row.get::<_, i64>("turn_index") == job.turn_index.as_i64()
            && row.get::<_, &str>("name") == job.name.as_str()
            && row.get::<_, i64>("ordinal") == job.ordinal.as_i64()
    });
    let sent_as = row.get::<_, &[u8]>("sent_as");
    Ok(CallRow {
        record: Record {
            state: State::parse(row.get("state")).ok_or(LedgerError::Row("an unknown state"))?,
            claim: row.get("claim"),
            attempt: row.get("attempt"),
            lapses: row.get("lapses"),
            maybe_since: row.get("maybe_since_us"),
            last_claimed_at: row.get("last_claimed_at_us"),
            lease_until: row.get::<_, Option<i64>>("lease_until_us").unwrap_or(i64::MIN),
            effect: parse_class(row.get("effect"))?,
            sent_as: sent_as
                .try_into()
                .map_err(|_| LedgerError::Row("a digest of the wrong length"))?,
            too_many: row.get("too_many"),
            late_completion: row.get("late_completion"),
        },
        same_call,
        outcome: outcome.map(|outcome| decode(&outcome)).transpose()?,
        pruned: row.get("pruned"),
        worker: row.get("worker"),
        now: row.get("now_us"),
        expired: row.get("expired"),
    })
}

fn encode(outcome: &Outcome) -> Result<Vec<u8>, LedgerError> {
    serde_json::to_vec(outcome).map_err(|_| LedgerError::Row("an outcome that cannot be written"))
}

fn decode(outcome: &[u8]) -> Result<Outcome, LedgerError> {
    serde_json::from_slice(outcome).map_err(|_| LedgerError::Row("an outcome that cannot be read"))
}

fn class_name(class: EffectClass) -> &'static str {
    match class {
        EffectClass::Read => "read",
        EffectClass::KeyedWrite => "keyed_write",
        EffectClass::UnkeyedWrite => "unkeyed_write",
    }
}

fn parse_class(name: &str) -> Result<EffectClass, LedgerError> {
    match name {
        "keyed_write" => Ok(EffectClass::KeyedWrite),
        "unkeyed_write" => Ok(EffectClass::UnkeyedWrite),
        _ => Err(LedgerError::Row("an unknown effect")),
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn expires_at(job: &Job) -> Option<String> {
    job.expires_at.map(|at| at.to_string())
}
