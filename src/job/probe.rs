//! Asking the downstream what became of a call, instead of sending it again.
//!
//! A probe is asked with backoff until it says what happened, or its deadline is over. That the
//! downstream does not know the key counts only when no request can be on its way to it any more,
//! on this worker's own clock: an answer from before that moment decides nothing.

use tokio_util::sync::CancellationToken;

use super::Context;
use super::trail::Trail;
use crate::call::key::IdempotencyKey;
use crate::clock::Moment;
use crate::ledger::LedgerError;
use crate::outcome::Outcome;
use crate::retry::Backoff;
use crate::tools::{ProbePolicy, Probed, Tool};

/// What asking came to.
#[derive(Debug)]
pub(super) enum Found {
    /// The call was answered for good, as an error or not.
    Answered(Outcome),
    /// It is evident that no request under the key has acted, and that none can any more.
    NotRun,
    /// It cannot be known yet.
    Nothing,
    /// The worker stops.
    Stopped,
}

/// Whether the downstream has told an earlier attempt that it has the key: then a probe that does not
/// know it decides nothing.
///
/// # Errors
///
/// Where the ledger cannot be asked.
pub(super) async fn key_was_known(
    context: &Context,
    key: IdempotencyKey,
) -> Result<bool, LedgerError> {
    let trails = context.ledger.trails(key).await?;
    Ok(trails.iter().any(|kept| Trail::shows_the_key_is_known(kept)))
}

/// Asks until something is known.
///
/// `counts_from` is when a `not_found` begins to count.
pub(super) async fn ask(
    tool: &Tool,
    policy: &ProbePolicy,
    key: &str,
    counts_from: Moment,
    trail: &mut Trail,
    stop: &CancellationToken,
) -> Found {
    let until = Moment::now() + policy.deadline;
    let mut backoff = Backoff::new(tool.retry().initial, tool.retry().max_interval, None);
    loop {
        let counts = counts_from.remaining().is_zero();
        let left = until.remaining();
        let asked = tokio::select! {
            () = stop.cancelled() => return Found::Stopped,
            asked = tokio::time::timeout(tool.timeout(), tool.ask(key)) => asked,
        };
        let (answer, message) = match asked {
            Ok(Probed::Answered(outcome)) => {
                trail.probe("answered", None);
                return Found::Answered(outcome);
            }
            Ok(Probed::Running) => ("running", None),
            Ok(Probed::NotFound) => ("not_found", None),
            Ok(Probed::Unclear(why)) => ("unclear", Some(why)),
            Err(_) => ("unclear", Some("no answer in time".to_owned())),
        };
        tracing::info!(answer, reason = message, counts, "asked the tool for the call's state");
        let not_found = answer == "not_found";
        trail.probe(answer, message);
        if not_found && counts {
            return if policy.not_found_is_not_run { Found::NotRun } else { Found::Nothing };
        }
        let wait = backoff.wait();
        // A `not_found` that will count soon is asked for again then, whatever the deadline is.
        let wait = if not_found && policy.not_found_is_not_run {
            wait.min(counts_from.remaining())
        } else if wait > left {
            return Found::Nothing;
        } else {
            wait
        };
        tokio::select! {
            () = stop.cancelled() => return Found::Stopped,
            () = tokio::time::sleep(wait) => {}
        }
    }
}
