//! The story of one delivery: receive, claim, execute, settle, reply, ack.
//!
//! The steps are files of this folder, in that order; this file calls them one after another and
//! does nothing else. Each step's result is the next one's argument, and the proofs that the last
//! two take can be made by the steps before them alone.
//!
//! Steps use the ledger, the broker and the tools; none of these uses a step.

mod receive;

mod claim;

mod execute;

mod settle;

mod reply;

mod ack;

mod context;
mod journal;
mod permits;
mod probe;
mod recorded;
mod suspect;
mod together;
mod trail;

use std::sync::Arc;

use crate::broker::Delivery;
use crate::call::reply::Status;
use crate::outcome::EffectClass;
use crate::telemetry::Names;
pub use context::Context;
pub use journal::Journal;
pub use permits::Permits;
pub use together::UnderWay;

use claim::Claimed;
use execute::Judged;
use receive::Call;
use recorded::Recorded;
use settle::Settled;
use together::Joined;

/// How a delivery ends.
enum End {
    /// Reply, then ack.
    Say(Box<Recorded>),
    /// Keep the job in the dead queue, reply, then ack.
    Bury(Box<Recorded>),
    /// Publish the job to the first delay queue, to look again, then ack. No reply.
    Park,
    /// Publish the job to a delay queue, a longer one each time, then ack. No reply.
    GiveWay,
    /// Publish the job to the delay queue of its next round, then ack. No reply.
    Retry {
        /// The round that it comes back in.
        round: u32,
    },
    /// Put the delivery back into its queue.
    HandBack,
    /// Answer nothing: the worker is ending, and the broker delivers again.
    Leave,
}

/// Runs one delivery from its arrival to its ack.
pub fn run(context: Arc<Context>, delivery: Delivery) -> impl Future<Output = ()> + Send {
    context.counters.deliveries.count();
    Names::new(delivery.redelivered).scope(story(context, delivery))
}

async fn story(context: Arc<Context>, delivery: Delivery) {
    let alone = match suspect::write_down(&context, &delivery).await {
        Ok(alone) => alone,
        Err(end) => return ack::finish(&context, delivery, None, end).await,
    };
    crate::failpoint::reach("received");
    match receive::receive(&context, &delivery).await {
        Ok(call) => {
            // From here on a row counts the attempts of a write that ends its workers.
            let _alone = (!call.tool.uses_ledger()).then_some(alone);
            let end = once(&context, &call, &delivery).await;
            ack::finish(&context, delivery, Some(call.caller()), end).await;
        }
        Err((caller, end)) => ack::finish(&context, delivery, Some(caller), end).await,
    }
}

/// Settles what ended workers left in the journal, before the first delivery is taken; false where
/// the first stop came before its end.
///
/// # Errors
///
/// Where the journal cannot be read.
pub async fn take_over_journal(context: &Context) -> std::io::Result<bool> {
    settle::take_over_journal(context).await
}

/// Carries a call out, or waits for the delivery of this worker that does.
async fn once(context: &Context, call: &Call, delivery: &Delivery) -> End {
    match together::join(context, call).await {
        Joined::First(turn) => {
            let end = carry_out(context, call, delivery).await;
            turn.end(&end);
            end
        }
        Joined::Answered(recorded) => {
            context.counters.replays.count();
            tracing::debug!("answered as the delivery that came first");
            End::Say(Box::new(recorded))
        }
        Joined::Busy => End::Park,
        Joined::Draining => End::HandBack,
    }
}

/// Takes a call to its recorded outcome.
async fn carry_out(context: &Context, call: &Call, delivery: &Delivery) -> End {
    loop {
        let claim = match claim::claim(context, call, delivery).await {
            Claimed::Mine(claim) => claim,
            Claimed::Recorded(recorded) => {
                context.counters.replays.count();
                if recorded.waits_for_a_person() {
                    context.counters.held.count();
                }
                tracing::debug!("answered from the ledger");
                return End::Say(Box::new(recorded));
            }
            Claimed::Refused(recorded) => return End::Say(Box::new(recorded)),
            Claimed::TooMany(recorded) => return End::Bury(Box::new(recorded)),
            Claimed::Busy => return End::Park,
            Claimed::Crowded => return End::GiveWay,
            Claimed::Draining => return End::HandBack,
        };
        let attempt = execute::execute(context, call, delivery, &claim).await;
        let handed_back = matches!(attempt.judged, Judged::HandBack);
        match settle::settle(context, claim, attempt).await {
            Settled::Recorded(_) if handed_back => return End::HandBack,
            Settled::Recorded(recorded) => return next_round(call, delivery, recorded),
            // Another attempt runs: see what it says.
            Settled::Elsewhere => {}
            Settled::Left => return End::Leave,
        }
    }
}

/// What may be tried again waits for its next round; after the last it is answered with what is
/// recorded, and what was not run is kept in the dead queue too.
fn next_round(call: &Call, delivery: &Delivery, recorded: Recorded) -> End {
    let class = call.tool.effect();
    let may_try = match recorded.status() {
        Status::Completed => false,
        Status::NotRun => true,
        Status::Unknown => recorded.may_resend() && class == EffectClass::KeyedWrite,
    };
    let round = delivery.origin.trips.round;
    if may_try && round < call.tool.retry().rounds {
        return End::Retry { round: round + 1 };
    }
    match recorded.status() {
        Status::NotRun => End::Bury(Box::new(recorded)),
        Status::Completed | Status::Unknown => End::Say(Box::new(recorded)),
    }
}
