//! What a person is shown of the ledger.

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use tokio_postgres::Row;

use super::LedgerError;
use crate::call::key::{Digest, IdempotencyKey};
use crate::outcome::Outcome;

/// A row with its history, as `ledger show` prints it.
#[derive(Debug, Serialize)]
pub struct CallView {
    /// The key.
    pub key: IdempotencyKey,
    /// What the key is the first half of.
    #[serde(skip)]
    pub digest: Digest,
    /// What the row says of the world.
    pub state: String,
    /// Whether a person said that it may run.
    pub approved: bool,
    /// The conversation.
    pub conversation_id: String,
    /// The turn.
    pub turn_index: i64,
    /// The tool.
    pub name: String,
    /// Which of the turn's equal calls.
    pub ordinal: i64,
    /// The arguments as they came; none once they are pruned.
    pub args: Option<Box<RawValue>>,
    /// What the producer sent along, if it did.
    pub meta: Option<Box<RawValue>>,
    /// The model response that asked first.
    pub response_id: Option<String>,
    /// The tool's class when the claim was made.
    pub effect: String,
    /// How many claims there have been.
    pub attempt: i32,
    /// The worker that claimed it last.
    pub worker: Option<String>,
    /// Until when the claim stands without renewal.
    pub lease_until: Option<String>,
    /// What is known; none while it is in flight and once it is pruned.
    pub outcome: Option<Outcome>,
    /// When it was first claimed.
    pub claimed_at: String,
    /// When its outcome was recorded.
    pub settled_at: Option<String>,
    /// What did not go the ordinary way, oldest first.
    pub history: Vec<HistoryEntry>,
    /// The job to send again; none once the arguments are pruned.
    pub job: Option<Box<RawValue>>,
}

/// One thing that did not go the ordinary way.
#[derive(Debug, Serialize)]
pub struct HistoryEntry {
    /// When.
    pub at: String,
    /// What.
    pub event: String,
    /// In which attempt.
    pub attempt: Option<i32>,
    /// On which worker.
    pub worker: Option<String>,
    /// Who decided, if a person did.
    pub by: Option<String>,
    /// Why.
    pub reason: Option<String>,
    /// More of it: an outcome, or how the attempt's requests ended.
    pub detail: Option<Box<RawValue>>,
}

/// A tool whose event streams ended without a terminal event.
#[derive(Debug, Serialize)]
pub struct Unended {
    /// The tool.
    pub tool: String,
    /// How many did.
    pub streams: i64,
    /// When the last one did.
    pub last_at: String,
}

/// A row without its bodies, as `ledger list` prints it.
#[derive(Debug, Serialize)]
pub struct ListEntry {
    /// The key.
    pub key: IdempotencyKey,
    /// What the row says of the world.
    pub state: String,
    /// The conversation.
    pub conversation_id: String,
    /// The turn.
    pub turn_index: i64,
    /// The tool.
    pub name: String,
    /// Which of the turn's equal calls.
    pub ordinal: i64,
    /// The tool's class when the claim was made.
    pub effect: String,
    /// How many claims there have been.
    pub attempt: i32,
    /// The worker that claimed it last.
    pub worker: Option<String>,
    /// Whether a person has said that it may not run; such a call stays held.
    pub denied: bool,
    /// When it was first claimed.
    pub claimed_at: String,
    /// When it was last claimed.
    pub last_claimed_at: String,
    /// When its outcome was recorded.
    pub settled_at: Option<String>,
}

pub(super) fn call(row: &Row, history: &[Row]) -> Result<CallView, LedgerError> {
    let outcome: Option<Vec<u8>> = row.get("outcome");
    let digest = row.get::<_, &[u8]>("digest").try_into();
    let digest = digest.map_err(|_| LedgerError::Row("a digest of the wrong length"))?;
    Ok(CallView {
        key: key(row)?,
        digest: Digest::from_bytes(digest),
        job: job(row)?,
        state: row.get("state"),
        approved: row.get("approved"),
        conversation_id: row.get("conversation_id"),
        turn_index: row.get("turn_index"),
        name: row.get("name"),
        ordinal: row.get("ordinal"),
        args: raw(row.get("args"))?,
        meta: raw(row.get("meta"))?,
        response_id: row.get("response_id"),
        effect: row.get("effect"),
        attempt: row.get("attempt"),
        worker: row.get("worker"),
        lease_until: row.get("lease_until"),
        outcome: outcome.map(|outcome| super::row::decode(&outcome)).transpose()?,
        claimed_at: row.get("claimed_at"),
        settled_at: row.get("settled_at"),
        history: history.iter().map(entry_of_history).collect::<Result<_, _>>()?,
    })
}

/// The job of which the row was made, its arguments byte for byte.
fn job(row: &Row) -> Result<Option<Box<RawValue>>, LedgerError> {
    #[derive(Serialize)]
    struct Job<'a> {
        conversation_id: &'a str,
        turn_index: i64,
        ordinal: i64,
        name: &'a str,
        args: Box<RawValue>,
        #[serde(skip_serializing_if = "Option::is_none")]
        response_id: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        meta: Option<Box<RawValue>>,
    }
    let Some(args) = raw(row.get("args"))? else { return Ok(None) };
    let job = Job {
        conversation_id: row.get("conversation_id"),
        turn_index: row.get("turn_index"),
        ordinal: row.get("ordinal"),
        name: row.get("name"),
        args,
        response_id: row.get("response_id"),
        meta: raw(row.get("meta"))?,
    };
    to_raw_value(&job).map(Some).map_err(|_| LedgerError::Row("a job that cannot be written"))
}

fn entry_of_history(row: &Row) -> Result<HistoryEntry, LedgerError> {
    Ok(HistoryEntry {
        at: row.get("at"),
        event: row.get("event"),
        attempt: row.get("attempt"),
        worker: row.get("worker"),
        by: row.get("decided_by"),
        reason: row.get("reason"),
        detail: raw(row.get("detail"))?,
    })
}

pub(super) fn unended(row: &Row) -> Unended {
    Unended { tool: row.get("tool"), streams: row.get("streams"), last_at: row.get("last_at") }
}

pub(super) fn entry(row: &Row) -> Result<ListEntry, LedgerError> {
    Ok(ListEntry {
        key: key(row)?,
        state: row.get("state"),
        conversation_id: row.get("conversation_id"),
        turn_index: row.get("turn_index"),
        name: row.get("name"),
        ordinal: row.get("ordinal"),
        effect: row.get("effect"),
        attempt: row.get("attempt"),
        worker: row.get("worker"),
        denied: row.get("denied"),
        claimed_at: row.get("claimed_at"),
        last_claimed_at: row.get("last_claimed_at"),
        settled_at: row.get("settled_at"),
    })
}

fn key(row: &Row) -> Result<IdempotencyKey, LedgerError> {
    row.get::<_, &[u8]>("key")
        .try_into()
        .map(IdempotencyKey::from_bytes)
        .map_err(|_| LedgerError::Row("a key of the wrong length"))
}

fn raw(text: Option<Vec<u8>>) -> Result<Option<Box<RawValue>>, LedgerError> {
    text.map(|text| {
        serde_json::from_slice(&text).map_err(|_| LedgerError::Row("JSON that cannot be read"))
    })
    .transpose()
}
