//! What every insert of a row begins with.

use tokio_postgres::types::ToSql;

use super::row::class_name;
use super::state::Terms;
use crate::call::job::Job;
use crate::call::key::KEY_VERSION;

/// What the key is made of, and the tool as it is registered.
pub(super) struct Inserted<'a> {
    /// The digest's first half.
    pub(super) key: &'a [u8],
    pub(super) digest: &'a [u8],
    pub(super) conversation: &'a str,
    pub(super) turn: i64,
    pub(super) name: &'a str,
    pub(super) ordinal: i64,
    pub(super) args: &'a [u8],
    pub(super) meta: Option<&'a [u8]>,
    pub(super) response: Option<&'a str>,
    pub(super) effect: &'static str,
    pub(super) timeout_ms: i64,
    pub(super) sent_as: &'a [u8],
}

impl<'a> Inserted<'a> {
    pub(super) fn new(job: &'a Job, terms: &'a Terms, args: &'a [u8]) -> Self {
        let digest = job.digest.as_bytes();
        Self {
            key: &digest[..digest.len() / 2],
            digest,
            conversation: job.conversation_id.as_str(),
            turn: job.turn_index.as_i64(),
            name: job.name.as_str(),
            ordinal: job.ordinal.as_i64(),
            args,
            meta: job.meta.as_deref(),
            response: job.response_id.as_ref().map(|id| id.as_str()),
            effect: class_name(terms.effect),
            timeout_ms: terms.timeout / 1_000,
            sent_as: &terms.sent_as,
        }
    }

    /// The parameters of an insert, in the order of its columns.
    pub(super) fn and<'p>(
        &'p self,
        others: &[&'p (dyn ToSql + Sync)],
    ) -> Vec<&'p (dyn ToSql + Sync)> {
        let own: [&(dyn ToSql + Sync); 13] = [
            &self.key,
            &self.digest,
            &KEY_VERSION,
            &self.conversation,
            &self.turn,
            &self.name,
            &self.ordinal,
            &self.args,
            &self.meta,
            &self.response,
            &self.effect,
            &self.timeout_ms,
            &self.sent_as,
        ];
        own.into_iter().chain(others.iter().copied()).collect()
    }
}
