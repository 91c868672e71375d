//! What goes into a row and comes out of it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio_postgres::Row;
use uuid::Uuid;

use super::LedgerError;
use super::state::{self, Evidence, Record, State, Terms};
use crate::call::job::Job;
use crate::call::key::IdempotencyKey;
use crate::clock::Moment;
use crate::outcome::{EffectClass, Outcome};

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
    /// How long a request of an attempt before this one may take.
    pub earlier_timeout: Duration,
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
    /// How long a request of its last attempt may take.
    pub timeout: Duration,
    /// When its outcome was recorded.
    pub settled_at: Option<state::Micros>,
    /// The database's clock.
    pub now: state::Micros,
    /// Whether the job's `expires_at` has passed.
    pub expired: bool,
}

/// Which claiming move [`super::Ledger::claim_again`] makes.
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
    /// Whether it is evident that no attempt before this one acted.
    pub evident: bool,
    /// How the attempt's requests ended that did not end the ordinary way, as JSON; none if each did.
    pub trail: Option<Vec<u8>>,
}

/// Something that did not go the ordinary way.
#[derive(Debug)]
pub struct Note<'a> {
    /// The key.
    pub key: IdempotencyKey,
    /// What.
    pub event: &'a str,
    /// Under which claim.
    pub claim: Option<Uuid>,
    /// In which attempt.
    pub attempt: i32,
    /// On which worker.
    pub worker: &'a str,
    /// More of it, as JSON.
    pub detail: &'a [u8],
}

/// What settles an unknown row.
#[derive(Debug)]
pub struct Proof<'a> {
    /// What is evident.
    pub evidence: Evidence,
    /// What is known.
    pub outcome: Outcome,
    /// Whose word it is.
    pub by: ProofBy<'a>,
}

/// Whose word a [`Proof`] is.
#[derive(Debug, Clone, Copy)]
pub enum ProofBy<'a> {
    /// The downstream's, asked by a worker that has waited until the answer counts.
    Probe {
        /// The worker.
        worker: &'a str,
    },
    /// A person's.
    Person {
        /// Who.
        by: &'a str,
        /// Why.
        reason: &'a str,
        /// How long after the last request must have ended it counts that nothing happened.
        settle_delay: Duration,
    },
}

/// Which statement [`super::Ledger::settle`] runs.
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

pub(super) fn granted(row: &Row, claim: Uuid, asked: Moment) -> Result<Granted, LedgerError> {
    let args: Option<Vec<u8>> = row.get("args");
    let maybe_age_ms: Option<i64> = row.get("maybe_age_ms");
    Ok(Granted {
        claim,
        attempt: row.get("attempt"),
        args: args.ok_or(LedgerError::Row("an unsettled row without arguments"))?.into(),
        maybe_age: maybe_age_ms.map(duration),
        earlier_timeout: duration(row.get("timeout_ms")),
        asked,
    })
}

pub(super) fn read_row(row: &Row, job: Option<&Job>) -> Result<CallRow, LedgerError> {
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
            approved: row.get("approved"),
        },
        same_call,
        outcome: outcome.map(|outcome| decode(&outcome)).transpose()?,
        pruned: row.get("pruned"),
        worker: row.get("worker"),
        timeout: duration(row.get("timeout_ms")),
        settled_at: row.get("settled_at_us"),
        now: row.get("now_us"),
        expired: row.get("expired"),
    })
}

pub(super) fn encode(outcome: &Outcome) -> Result<Vec<u8>, LedgerError> {
    serde_json::to_vec(outcome).map_err(|_| LedgerError::Row("an outcome that cannot be written"))
}

pub(super) fn decode(outcome: &[u8]) -> Result<Outcome, LedgerError> {
    serde_json::from_slice(outcome).map_err(|_| LedgerError::Row("an outcome that cannot be read"))
}

pub(super) fn class_name(class: EffectClass) -> &'static str {
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

fn duration(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or_default())
}

pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// In microseconds of the Unix epoch.
pub(super) fn expires_at(job: &Job) -> Option<i64> {
    job.expires_at.map(|at| at.as_microsecond())
}
