//! What people ask of the ledger and decide in it; a probe's evidence is recorded in the same way.

use uuid::Uuid;

use super::row::{encode, millis};
use super::state::{Evidence, State};
use super::{CallView, Ledger, LedgerError, ListEntry, Proof, ProofBy, Unended, statements, view};
use crate::call::key::IdempotencyKey;
use crate::outcome::Outcome;

impl Ledger {
    /// Lets a held call run at its next delivery. False: it is not held.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked.
    pub async fn approve(
        &self,
        key: IdempotencyKey,
        by: &str,
        reason: &str,
    ) -> Result<bool, LedgerError> {
        let row = self.one(statements::APPROVE, &[&&key.as_bytes()[..], &by, &reason]).await?;
        Ok(row.is_some())
    }

    /// Says that a held call may not run. False: it is not held.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked.
    pub async fn deny(
        &self,
        key: IdempotencyKey,
        by: &str,
        reason: &str,
        outcome: &Outcome,
    ) -> Result<bool, LedgerError> {
        let outcome = encode(outcome)?;
        let key = &key.as_bytes()[..];
        let row = self.one(statements::DENY, &[&key, &by, &reason, &outcome]).await?;
        Ok(row.is_some())
    }

    /// Settles an unknown row by evidence. False: it is no longer as it was read, or a person's word
    /// that nothing happened comes too early.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked.
    pub async fn prove(
        &self,
        key: IdempotencyKey,
        seen: Option<Uuid>,
        proof: &Proof<'_>,
    ) -> Result<bool, LedgerError> {
        let outcome = encode(&proof.outcome)?;
        let state = match proof.evidence {
            Evidence::Completed => State::Completed.as_str(),
            Evidence::NotRun => State::NotRun.as_str(),
        };
        let event = match (proof.by, proof.evidence) {
            (ProofBy::Probe { .. }, Evidence::Completed) => "probe_completed",
            (ProofBy::Probe { .. }, Evidence::NotRun) => "probe_not_found",
            (ProofBy::Person { .. }, Evidence::Completed) => "resolved_completed",
            (ProofBy::Person { .. }, Evidence::NotRun) => "resolved_not_run",
        };
        let (worker, by, reason, wait) = match proof.by {
            ProofBy::Probe { worker } => (Some(worker), None, None, None),
            ProofBy::Person { by, reason, settle_delay } => {
                let wait = match proof.evidence {
                    Evidence::Completed => None,
                    Evidence::NotRun => Some(millis(settle_delay)),
                };
                (None, Some(by), Some(reason), wait)
            }
        };
        let key = &key.as_bytes()[..];
        let row = self
            .one(
                statements::PROVE,
                &[&key, &seen, &state, &outcome, &event, &worker, &by, &reason, &wait],
            )
            .await?;
        Ok(row.is_some())
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

    /// The tools whose event streams ended without a terminal event, until they are mended.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked.
    pub async fn unended(&self) -> Result<Vec<Unended>, LedgerError> {
        let rows = self.query(statements::UNENDED, &[]).await?;
        Ok(rows.iter().map(view::unended).collect())
    }

    /// Takes a tool off that list. False: it was not on it.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked.
    pub async fn mended(&self, tool: &str) -> Result<bool, LedgerError> {
        Ok(self.one(statements::MENDED, &[&tool]).await?.is_some())
    }
}
