//! 5. Publish the recorded outcome and wait for the confirm.

use super::Context;
use super::receive::Caller;
use super::recorded::Recorded;
use crate::broker::{BrokerError, Message, Origin, Published};
use crate::call::key::{CallId, ToolName};
use crate::call::reply::{Reply, Status};
use crate::retry::Backoff;
use crate::telemetry::chain;

/// How often a full queue is offered the same reply.
const REFUSALS_MAX: u32 = 3;

/// The proof that the caller has been answered as far as the broker lets us.
#[derive(Debug)]
pub(super) struct Replied(());

/// Replies what is recorded. A reply that no queue takes is logged and counted: the outcome stays in
/// the ledger.
///
/// # Errors
///
/// Where the worker is ending before the reply was confirmed.
pub(super) async fn reply(
    context: &Context,
    to: &Origin,
    caller: &Caller,
    recorded: &Recorded,
) -> Result<Replied, BrokerError> {
    if !listens(context, to) {
        return Ok(Replied(()));
    }
    let outcome = recorded.outcome();
    let reply = Reply {
        key: caller.key,
        call_id: caller.call_id.as_ref().map(CallId::as_str),
        name: caller.name.as_ref().map(ToolName::as_str),
        status: recorded.status(),
        is_error: recorded.status() != Status::Completed || outcome.is_error,
        replayed: recorded.replayed(),
        attempt: recorded.attempt(),
        content: recorded.content(),
        warnings: &outcome.warnings,
        error: outcome.error.as_ref(),
    };
    let body = match serde_json::to_vec(&reply) {
        Ok(body) => body,
        Err(error) => {
            context.counters.replies_lost.count();
            tracing::error!(
                error = %chain(&error),
                "a reply could not be written; the outcome stays in the ledger"
            );
            return Ok(Replied(()));
        }
    };
    let Some(message) = Message::reply(to, body.into()) else { return Ok(Replied(())) };
    let mut backoff = Backoff::broker();
    for _ in 0..REFUSALS_MAX {
        match context.publisher.reply(message.clone()).await? {
            Published::Confirmed => return Ok(Replied(())),
            Published::Returned => {
                context.counters.replies_lost.count();
                tracing::warn!("the reply's queue is gone; the outcome stays in the ledger");
                return Ok(Replied(()));
            }
            Published::Refused => {
                if !context.pause_to_the_end(backoff.wait()).await {
                    return Err(BrokerError::Stopping);
                }
            }
        }
    }
    context.counters.replies_lost.count();
    tracing::warn!("the reply's queue is full; the outcome stays in the ledger");
    Ok(Replied(()))
}

/// Whether anybody is to be told: a reply to a queue of our own would come back as a job.
pub(super) fn listens(context: &Context, to: &Origin) -> bool {
    to.reply_to.as_ref().is_some_and(|queue| !context.topology.owns(queue.as_str()))
}
