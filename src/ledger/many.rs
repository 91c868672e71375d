//! The statements that every call needs, over many rows: claim, read, settle as completed.

use std::collections::HashSet;

use bytes::Bytes;
use tokio_postgres::Row;
use uuid::Uuid;

use super::batch::Statement;
use super::connections::Connections;
use super::insert::Inserted;
use super::row::{expires_at, millis};
use super::{ClaimRequest, LedgerError, statements};
use crate::call::job::Job;
use crate::call::key::{IdempotencyKey, KEY_VERSION};

/// A claim of a call that may have no row.
pub(super) struct Claim {
    pub(super) request: ClaimRequest,
    pub(super) claim: Uuid,
}

/// [`statements::CLAIM`]: whether each claim was granted.
pub(super) struct Claims;

impl Statement for Claims {
    type Item = Claim;
    type Answer = bool;

    fn bytes(claim: &Claim) -> usize {
        let Job { args, meta, .. } = &*claim.request.job;
        args.len() + meta.as_ref().map_or(0, Bytes::len)
    }

    async fn run(connections: &Connections, items: &[&Claim]) -> Result<Vec<bool>, LedgerError> {
        let calls: Vec<Inserted<'_>> = items
            .iter()
            .map(|Claim { request, .. }| {
                Inserted::new(&request.job, &request.terms, &request.job.args)
            })
            .collect();
        macro_rules! column {
            ($field:ident) => {
                calls.iter().map(|call| call.$field).collect::<Vec<_>>()
            };
        }
        let claims: Vec<Uuid> = items.iter().map(|item| item.claim).collect();
        let leases: Vec<i64> = items.iter().map(|item| millis(item.request.lease)).collect();
        let expiries: Vec<Option<i64>> =
            items.iter().map(|item| expires_at(&item.request.job)).collect();
        let workers: Vec<&str> = items.iter().map(|item| &*item.request.worker).collect();
        let rows = connections
            .query(
                statements::CLAIM,
                &[
                    &column!(key),
                    &column!(digest),
                    &column!(conversation),
                    &column!(turn),
                    &column!(name),
                    &column!(ordinal),
                    &column!(args),
                    &column!(meta),
                    &column!(response),
                    &column!(effect),
                    &column!(timeout_ms),
                    &column!(sent_as),
                    &claims,
                    &leases,
                    &expiries,
                    &workers,
                    &KEY_VERSION,
                ],
            )
            .await?;
        let granted = claims_of(&rows);
        Ok(claims.iter().map(|claim| granted.contains(claim)).collect())
    }
}

/// A look at a row.
pub(super) struct Read {
    pub(super) key: IdempotencyKey,
    pub(super) expires_at: Option<i64>,
}

/// [`statements::READ`]: each row, where there is one.
pub(super) struct Reads;

impl Statement for Reads {
    type Item = Read;
    type Answer = Option<Row>;

    fn bytes(_: &Read) -> usize {
        size_of::<Read>()
    }

    async fn run(
        connections: &Connections,
        items: &[&Read],
    ) -> Result<Vec<Option<Row>>, LedgerError> {
        let keys: Vec<&[u8]> = items.iter().map(|item| &item.key.as_bytes()[..]).collect();
        let expiries: Vec<Option<i64>> = items.iter().map(|item| item.expires_at).collect();
        let mut answers: Vec<Option<Row>> = items.iter().map(|_| None).collect();
        for row in connections.query(statements::READ, &[&keys, &expiries]).await? {
            let place = usize::try_from(row.get::<_, i64>("place")).unwrap_or_default();
            let answer = place.checked_sub(1).and_then(|place| answers.get_mut(place));
            *answer.ok_or(LedgerError::Row("a place that was not asked for"))? = Some(row);
        }
        Ok(answers)
    }
}

/// A completion of a row that should still be in flight under its claim.
pub(super) struct Completion {
    pub(super) key: IdempotencyKey,
    pub(super) claim: Uuid,
    pub(super) outcome: Vec<u8>,
}

/// [`statements::SETTLE_COMPLETED`]: whether each was settled.
pub(super) struct Completions;

impl Statement for Completions {
    type Item = Completion;
    type Answer = bool;

    fn bytes(completion: &Completion) -> usize {
        completion.outcome.len()
    }

    async fn run(
        connections: &Connections,
        items: &[&Completion],
    ) -> Result<Vec<bool>, LedgerError> {
        let keys: Vec<&[u8]> = items.iter().map(|item| &item.key.as_bytes()[..]).collect();
        let claims: Vec<Uuid> = items.iter().map(|item| item.claim).collect();
        let outcomes: Vec<&[u8]> = items.iter().map(|item| &item.outcome[..]).collect();
        let rows =
            connections.query(statements::SETTLE_COMPLETED, &[&keys, &claims, &outcomes]).await?;
        let settled = claims_of(&rows);
        Ok(claims.iter().map(|claim| settled.contains(claim)).collect())
    }
}

fn claims_of(rows: &[Row]) -> HashSet<Uuid> {
    rows.iter().map(|row| row.get(0)).collect()
}
