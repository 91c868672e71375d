//! 4. Record the outcome under the claim.
//!
//! A settling that changed no row reads it and says what it holds, never what memory holds. It is
//! tried until Postgres takes it, and kept in the journal meanwhile; only the second stop leaves it
//! undone, and then the next worker settles it from there.

use std::time::Duration;

use uuid::Uuid;

use super::Context;
use super::claim::{Claim, ClaimOfRow};
use super::execute::{Attempted, Judged};
use super::journal::Noted;
use super::recorded::{Recorded, failed, unknown};
use crate::call::reply::{ErrorKind, Status};
use crate::ledger::state::{Move, permits};
use crate::ledger::{ClaimRequest, LedgerError, Note, Settle, Settling};
use crate::outcome::Outcome;
use crate::retry::Backoff;
use crate::telemetry::chain;

/// What settling came to.
pub(super) enum Settled {
    /// The ledger holds this.
    Recorded(Recorded),
    /// Another attempt runs, and the completion is kept for it.
    Elsewhere,
    /// The worker ends; nothing was recorded.
    Left,
}

/// Records what an attempt came to.
pub(super) async fn settle(context: &Context, claim: Claim, attempt: Attempted) -> Settled {
    crate::failpoint::reach("settling");
    let Claim { granted, permit } = claim;
    drop(permit);
    let Attempted { judged, evident, trail } = attempt;
    let (status, outcome) = match judged {
        Judged::Completed(outcome) => (Status::Completed, outcome),
        Judged::NotRun(outcome) => (Status::NotRun, outcome),
        Judged::Unknown(outcome) => (Status::Unknown, outcome),
        Judged::HandBack => (Status::NotRun, handed_back()),
        Judged::Left => return Settled::Left,
    };
    if status == Status::Unknown {
        context.counters.unknowns.count();
        tracing::warn!("the call may have acted and was not answered for good: unknown");
    }
    let Some(ClaimOfRow { request, granted, lease }) = granted else {
        return Settled::Recorded(Recorded::settled(status, outcome, 1));
    };
    let (claim, attempt, args) = (granted.claim, granted.attempt, granted.args);
    let trail = trail.into_json();
    let settling = Settling { request, claim, attempt, args, outcome, evident, trail };
    let settled = until_taken(context, &settling, status).await;
    // The lease is kept until the outcome is: nobody takes over what only waits for Postgres.
    drop(lease);
    settled
}

/// Gives back a claim under which nothing was sent, whether or not it stands.
///
/// It is tried for as long as a lease lasts: after that the next delivery judges the claim.
pub(super) async fn release(context: &Context, request: &ClaimRequest, claim: Uuid) {
    let (request, args) = (request.clone(), request.job.args.clone());
    let lease = request.lease;
    let settling = Settling {
        request,
        claim,
        attempt: 0,
        args,
        outcome: handed_back(),
        evident: false,
        trail: None,
    };
    let given_back = async {
        let mut backoff = Backoff::database();
        while let Err(error) = settle_not_run(context, &settling).await {
            let wait = backoff.wait();
            note_unused(&error, wait);
            if !context.pause_to_the_end(wait).await {
                return;
            }
        }
    };
    if tokio::time::timeout(lease, given_back).await.is_err() {
        tracing::warn!("an unused claim may be left behind; its lease ends by itself");
    }
}

fn note_unused(error: &LedgerError, wait: Duration) {
    let error = chain(error);
    tracing::warn!(%error, ?wait, "an unused claim could not be given back; trying again");
}

/// Settles what ended workers left in the journal; false where the first stop came before its end.
///
/// # Errors
///
/// Where the journal cannot be read: nothing may be taken before it is.
pub(super) async fn take_over_journal(context: &Context) -> std::io::Result<bool> {
    for leftover in context.journal.left_behind()? {
        for (settling, status) in leftover.read()? {
            let key = settling.request.job.key();
            tracing::warn!(%key, ?status, "settling an outcome that an ended worker left behind");
            let mut backoff = Backoff::database();
            while let Err(error) = once(context, &settling, status).await {
                if !context.ledger_is_away(&error, &mut backoff).await {
                    return Ok(false);
                }
            }
        }
        leftover.remove()?;
    }
    Ok(true)
}

async fn until_taken(context: &Context, settling: &Settling, status: Status) -> Settled {
    let mut backoff = Backoff::database();
    let mut noted = None;
    let settled = loop {
        match once(context, settling, status).await {
            Ok(settled) => break settled,
            Err(error) => {
                let error = chain(&error);
                tracing::warn!(%error, "the outcome could not be recorded; trying again");
            }
        }
        if noted.is_none() {
            noted = write_down(context, settling, status).await;
        }
        if !context.pause_to_the_end(backoff.wait()).await {
            return Settled::Left;
        }
    };
    if let Some(noted) = noted
        && let Err(error) = context.journal.settled(noted).await
    {
        let error = chain(&error);
        tracing::warn!(%error, "the journal could not be cleared; its outcome is settled once more");
    }
    settled
}

/// Keeps an outcome on disk while Postgres is away.
async fn write_down(context: &Context, settling: &Settling, status: Status) -> Option<Noted> {
    match context.journal.note(settling, status).await {
        Ok(noted) => Some(noted),
        Err(error) => {
            let error = chain(&error);
            tracing::error!(%error, "the outcome could not be journaled; only this worker has it");
            None
        }
    }
}

async fn once(
    context: &Context,
    settling: &Settling,
    status: Status,
) -> Result<Settled, LedgerError> {
    if let Some(trail) = &settling.trail {
        let note = Note {
            key: settling.request.job.key(),
            event: "requests",
            claim: Some(settling.claim),
            attempt: settling.attempt,
            worker: &settling.request.worker,
            detail: trail,
        };
        context.ledger.note(&note).await?;
    }
    match status {
        Status::Completed => settle_completed(context, settling).await,
        Status::NotRun => settle_not_run(context, settling).await,
        Status::Unknown => settle_unknown(context, settling, settling.outcome.clone()).await,
    }
}

/// The truth is never thrown away: whatever became of the row, a completion is kept.
async fn settle_completed(context: &Context, settling: &Settling) -> Result<Settled, LedgerError> {
    let ledger = &context.ledger;
    let completed = |outcome: &Outcome| {
        Settled::Recorded(Recorded::settled(Status::Completed, outcome.clone(), settling.attempt))
    };
    if ledger.settle(settling, Settle::Completed).await? {
        return Ok(completed(&settling.outcome));
    }
    tracing::warn!(
        "the row was no longer in flight under this claim; keeping the completion all the same"
    );
    loop {
        let job = &settling.request.job;
        let Some(row) = ledger.read(job.key(), Some(job)).await? else {
            if ledger.settle(settling, Settle::InsertCompleted).await? {
                tracing::error!(
                    "the ledger had lost the row of a call that acted; it is inserted as completed"
                );
                return Ok(completed(&settling.outcome));
            }
            continue;
        };
        let may = |step| permits(&row.record, step, row.now, &settling.request.terms);
        if may(Move::Complete(settling.claim)) {
            if ledger.settle(settling, Settle::CompletedLate).await? {
                return Ok(completed(&settling.outcome));
            }
        } else if may(Move::KeepCompletion(settling.claim)) {
            if ledger.settle(settling, Settle::KeepCompletion).await? {
                return Ok(Settled::Elsewhere);
            }
        } else {
            return Ok(Recorded::row(row, true).map_or(Settled::Elsewhere, Settled::Recorded));
        }
    }
}

async fn settle_not_run(context: &Context, settling: &Settling) -> Result<Settled, LedgerError> {
    if context.ledger.settle(settling, Settle::NotRun).await? {
        let outcome = settling.outcome.clone();
        return Ok(Settled::Recorded(Recorded::settled(Status::NotRun, outcome, settling.attempt)));
    }
    let why = settling.outcome.error.as_ref().map_or("", |error| error.message.as_str());
    let phase = settling.outcome.error.as_ref().and_then(|error| error.phase);
    settle_unknown(context, settling, unknown(ErrorKind::Ambiguous, phase, why)).await
}

async fn settle_unknown(
    context: &Context,
    settling: &Settling,
    outcome: Outcome,
) -> Result<Settled, LedgerError> {
    let ledger = &context.ledger;
    let settling = Settling {
        request: settling.request.clone(),
        claim: settling.claim,
        attempt: settling.attempt,
        args: settling.args.clone(),
        outcome,
        evident: false,
        trail: None,
    };
    if ledger.settle(&settling, Settle::Unknown).await? {
        return Ok(Settled::Recorded(Recorded::settled(
            Status::Unknown,
            settling.outcome,
            settling.attempt,
        )));
    }
    let job = &settling.request.job;
    let mut row = ledger.read(job.key(), Some(job)).await?;
    if row
        .as_ref()
        .is_some_and(|row| row.record.late_completion && row.record.claim == Some(settling.claim))
    {
        ledger.adopt(job.key(), settling.claim, true).await?;
        row = ledger.read(job.key(), Some(job)).await?;
    }
    let Some(row) = row else {
        tracing::error!("the ledger has lost the row of a call that may have acted");
        return Ok(Settled::Recorded(Recorded::settled(
            Status::Unknown,
            settling.outcome,
            settling.attempt,
        )));
    };
    Ok(Recorded::row(row, true).map_or(Settled::Elsewhere, Settled::Recorded))
}

fn handed_back() -> Outcome {
    failed(ErrorKind::NotSent, None, "the worker stopped before anything was sent")
}
