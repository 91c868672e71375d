//! 1. What the broker handed over becomes a call of a registered tool, or is refused.
//!
//! Every refusal of a job whose key can be derived asks the ledger first: workers of two versions,
//! or with two registries, run side by side in a deploy, and what one of them has done another must
//! not call "not run".

use std::sync::Arc;

use super::recorded::{Recorded, bad_arguments};
use super::{Context, End};
use crate::broker::Delivery;
use crate::call::job::{BadJob, Job, Limits};
use crate::call::key::{CallId, IdempotencyKey, ToolName};
use crate::call::reply::{CallError, ErrorKind};
use crate::ledger::state::State;
use crate::ledger::{CallRow, LedgerError};
use crate::retry::Backoff;
use crate::telemetry::Names;
use crate::tools::Tool;

/// Who is replied to: what of the job stands in every reply.
#[derive(Debug, Clone, Default)]
pub(super) struct Caller {
    pub(super) key: Option<IdempotencyKey>,
    pub(super) call_id: Option<CallId>,
    pub(super) name: Option<ToolName>,
}

/// A job and its tool.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) job: Arc<Job>,
    pub(super) tool: Arc<Tool>,
}

impl Call {
    pub(super) fn caller(&self) -> Caller {
        Caller::of(&self.job)
    }
}

impl Caller {
    fn of(job: &Job) -> Self {
        Self { key: Some(job.key()), call_id: job.call_id.clone(), name: Some(job.name.clone()) }
    }

    fn of_bad(bad: &BadJob) -> Self {
        Self { key: bad.key, call_id: bad.call_id.clone(), name: bad.name.clone() }
    }
}

/// Decodes a delivery and finds its tool.
pub(super) async fn receive(context: &Context, delivery: &Delivery) -> Result<Call, (Caller, End)> {
    let origin = &delivery.origin;
    let limits = Limits {
        message_bytes_max: context.config.message_bytes_max.0,
        conversation_id_bytes_max: context.config.conversation_id_bytes_max.0,
        id_bytes_max: context.config.id_bytes_max.0,
    };
    let content_type = origin.content_type.as_ref().map(|text| text.as_str());
    let content_encoding = origin.content_encoding.as_ref().map(|text| text.as_str());
    let job = match Job::decode(&delivery.body, content_type, content_encoding, &limits) {
        Ok(job) => Arc::new(job),
        Err(bad) => {
            let error = CallError::new(ErrorKind::BadJob, None, bad.error.to_string());
            let end =
                refuse(context, bad.key, None, error, true, |refusal| End::Bury(Box::new(refusal)))
                    .await;
            return Err((Caller::of_bad(&bad), end));
        }
    };
    note(context, &job);
    let caller = Caller::of(&job);
    let key = Some(job.key());
    if origin.reply_to.as_ref().is_some_and(|queue| context.topology.owns(queue.as_str())) {
        let error =
            CallError::new(ErrorKind::BadJob, None, "reply_to names one of callonce's own queues");
        let end =
            refuse(context, key, Some(&job), error, true, |refusal| End::Bury(Box::new(refusal)))
                .await;
        return Err((caller, end));
    }
    let Some(tool) = context.registry.get(job.name.as_str()).cloned() else {
        let error =
            CallError::new(ErrorKind::UnknownTool, None, "no tool of this name is registered");
        let round = origin.trips.round;
        // A worker with a newer registry may know it.
        let last =
            usize::try_from(round).is_ok_and(|round| round >= context.config.retry_delays.0.len());
        let end = refuse(context, key, Some(&job), error, last, |refusal| {
            if last { End::Bury(Box::new(refusal)) } else { End::Retry { round: round + 1 } }
        });
        return Err((caller, end.await));
    };
    if let Err(violations) = tool.validate(&job.args) {
        let error = bad_arguments(violations);
        let end =
            refuse(context, key, Some(&job), error, true, |refusal| End::Say(Box::new(refusal)))
                .await;
        return Err((caller, end));
    }
    Ok(Call { job, tool })
}

/// Names the call in the log, and says what is likely a model's error.
fn note(context: &Context, job: &Arc<Job>) {
    Names::call(job);
    tracing::debug!("received");
    if job.ordinal.get() > 0 {
        context.counters.ordinals_above_zero.count();
        tracing::warn!(
            "the same call more than once in one turn: likely an error of the model; it runs all the same"
        );
    }
}

/// Refuses a job, unless the ledger knows better.
///
/// `last` is whether no other worker will be asked: then a claim whose lease ran out is settled too.
async fn refuse(
    context: &Context,
    key: Option<IdempotencyKey>,
    job: Option<&Job>,
    error: CallError,
    last: bool,
    end: impl FnOnce(Recorded) -> End,
) -> End {
    let mut backoff = Backoff::database();
    if let Some(key) = key {
        let row = loop {
            match known(context, key, job, last).await {
                Ok(row) => break row,
                Err(error) if context.ledger_is_away(&error, &mut backoff).await => {}
                Err(_) => return End::HandBack,
            }
        };
        if let Some(row) = row.filter(|row| row.record.state != State::NotRun && !lapsed(row)) {
            // A row in flight has no answer yet; the refusal can wait for it.
            return Recorded::row(row, false)
                .map_or(End::Park, |recorded| End::Say(Box::new(recorded)));
        }
    }
    context.counters.refusals.count();
    tracing::warn!(kind = %error.kind, reason = error.message, "refused");
    end(Recorded::refusal(error))
}

fn lapsed(row: &CallRow) -> bool {
    row.record.state == State::InFlight && row.record.lease_until < row.now
}

/// What the ledger knows of a call that is refused.
///
/// At last nobody will come who could take over a claim whose lease ran out. It is settled here as
/// what it is: completed if a completion came late, else unknown.
async fn known(
    context: &Context,
    key: IdempotencyKey,
    job: Option<&Job>,
    last: bool,
) -> Result<Option<CallRow>, LedgerError> {
    loop {
        let row = context.ledger.read(key, job).await?.filter(|row| row.same_call);
        let claim = row.as_ref().filter(|row| last && lapsed(row)).and_then(|row| row.record.claim);
        let (Some(row), Some(seen)) = (&row, claim) else { return Ok(row) };
        if row.record.late_completion {
            context.ledger.adopt(key, seen, false).await?;
        } else if context.ledger.lapse(key, seen, false, &super::claim::lapsed(false)).await? {
            context.counters.unknowns.count();
            tracing::warn!("the lease of the last attempt ran out; the call is unknown");
        }
    }
}
