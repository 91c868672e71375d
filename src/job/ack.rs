//! 6. Answer the delivery.
//!
//! An ack takes the delivery by value and a proof that nothing is lost by it: the caller was
//! answered, or the broker confirmed that another queue has the job.

use super::receive::Caller;
use super::recorded::Recorded;
use super::reply::{Replied, listens, reply};
use super::{Context, End, suspect};
use crate::broker::{BrokerError, Delivery, Message, Published, Trips};
use crate::call::reply::Status;
use crate::retry::Backoff;
use crate::telemetry::chain;

/// The proof that a queue of ours has the job.
struct Kept(());

/// The proof that a delivery may be acked.
struct Proof(());

impl From<Replied> for Proof {
    fn from(_: Replied) -> Self {
        Self(())
    }
}

impl From<Kept> for Proof {
    fn from(_: Kept) -> Self {
        Self(())
    }
}

/// The delay queue that a wait uses.
const FIRST: u32 = 1;

/// Brings a delivery to its end.
pub(super) async fn finish(
    context: &Context,
    delivery: Delivery,
    caller: Option<Caller>,
    end: End,
) {
    let caller = caller.unwrap_or_default();
    let trips = delivery.origin.trips;
    let proof = match end {
        End::Say(recorded) => say(context, &delivery, &caller, &recorded).await,
        End::Bury(recorded) => match bury(context, &delivery, &recorded).await {
            Ok(Kept(())) => say(context, &delivery, &caller, &recorded).await,
            Err(error) => Err(error),
        },
        // A wait is no trip: the round stays, and the first delay serves.
        End::Park => delay(context, &delivery, FIRST, trips).await.map(Proof::from),
        End::GiveWay => {
            let gave_way = trips.gave_way.saturating_add(1);
            let trips = Trips { gave_way, ..trips };
            delay(context, &delivery, gave_way, trips).await.map(Proof::from)
        }
        End::Retry { round } => {
            let trips = Trips { round, ..trips };
            delay(context, &delivery, round, trips).await.map(Proof::from)
        }
        End::HandBack => return hand_back(context, delivery).await,
        End::Leave => return context.counters.left.count(),
    };
    match proof {
        Ok(proof) => {
            suspect::clear(context, &delivery).await;
            ack(context, delivery, proof).await;
        }
        Err(error) => {
            context.counters.left.count();
            tracing::warn!(error = %chain(&error), "left to its redelivery");
        }
    }
}

async fn say(
    context: &Context,
    delivery: &Delivery,
    caller: &Caller,
    recorded: &Recorded,
) -> Result<Proof, BrokerError> {
    crate::failpoint::reach("settled");
    let replied = reply(context, &delivery.origin, caller, recorded).await?;
    crate::failpoint::reach("replied");
    Ok(replied.into())
}

/// Keeps a job in the dead queue, with the reason.
async fn bury(
    context: &Context,
    delivery: &Delivery,
    recorded: &Recorded,
) -> Result<Kept, BrokerError> {
    let (kind, detail) = recorded.reason();
    let answered = listens(context, &delivery.origin).then(|| match recorded.status() {
        Status::Completed => "completed",
        Status::NotRun => "not_run",
        Status::Unknown => "unknown",
    });
    let queue = context.topology.dead();
    let message =
        Message::dead(&queue, delivery.body.clone(), &delivery.origin, &kind, detail, answered)?;
    let kept = keep(context, &queue, message).await?;
    context.counters.dead.count();
    tracing::warn!(reason = kind, detail, "kept in the dead queue");
    Ok(kept)
}

/// Publishes a job to the delay queue of `wait`, from which it comes back with `trips`.
async fn delay(
    context: &Context,
    delivery: &Delivery,
    wait: u32,
    trips: Trips,
) -> Result<Kept, BrokerError> {
    let queue = context.topology.delay(wait);
    let message = Message::delayed(&queue, delivery.body.clone(), &delivery.origin, trips)?;
    let kept = keep(context, &queue, message).await?;
    context.counters.parked.count();
    tracing::info!(queue, round = trips.round, "waits in a delay queue");
    Ok(kept)
}

/// Publishes a job until a queue has it: a returned or refused job is never acked.
async fn keep(context: &Context, queue: &str, message: Message) -> Result<Kept, BrokerError> {
    let mut backoff = Backoff::broker();
    loop {
        let published = context.publisher.job(message.clone()).await?;
        if published == Published::Confirmed {
            return Ok(Kept(()));
        }
        let wait = backoff.wait();
        tracing::error!(queue, ?published, ?wait, "the queue did not take the job; trying again");
        if !context.pause_to_the_end(wait).await {
            return Err(BrokerError::Stopping);
        }
    }
}

async fn ack(context: &Context, delivery: Delivery, _: Proof) {
    if let Err(error) = delivery.ack().await {
        context.counters.acks_lost.count();
        let error = chain(&error);
        tracing::warn!(
            %error,
            "not acked: the delivery comes again and is answered from the ledger"
        );
    }
}

async fn hand_back(context: &Context, delivery: Delivery) {
    suspect::clear(context, &delivery).await;
    if let Err(error) = delivery.hand_back().await {
        tracing::debug!(
            error = %chain(&error),
            "not handed back: its session is gone"
        );
    }
}
