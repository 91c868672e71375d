//! How long one call takes while there is no other, and how long a worker takes to start.

use std::path::Path;
use std::time::{Duration, Instant};

use super::BenchError;
use super::jobs::{Producer, Series};
use super::place::Place;
use super::report::{Sample, percentile};
use super::worker::{Settings, Worker};
use crate::broker::{BrokerError, Replies};

/// A call that takes longer will not be answered.
const REPLY_MAX: Duration = Duration::from_secs(60);
/// Calls before the first that counts: connections and plans are made by then.
const WARM_UP: u64 = 50;

/// Makes one call after another: from handing a job over to the publisher until its reply arrives at a
/// consumer of this process.
pub(super) async fn latency(
    place: &Place,
    registry: &Path,
    settings: Settings,
    series: &Series,
) -> Result<Sample, BenchError> {
    place.queues.purge().await?;
    let mut replies = Replies::open(&place.broker).await?;
    let producer = Producer::start(place);
    let mut workers = [Worker::start(place, registry, settings)?];
    Worker::all_consume(&mut workers, place).await?;
    let mut took_ms = Vec::new();
    for number in 0..series.jobs {
        let took = call(&producer, &mut replies, series, number).await?;
        if number >= warm_up(series) {
            took_ms.push(took.as_secs_f64() * 1e3);
        }
    }
    for worker in workers {
        worker.end().await?;
    }
    producer.end().await;
    took_ms.sort_unstable_by(f64::total_cmp);
    Ok(Sample {
        p50_ms: percentile(&took_ms, 50),
        p99_ms: percentile(&took_ms, 99),
        ..Sample::default()
    })
}

/// How many jobs it takes to make so many calls that count.
pub(super) fn with_warm_up(calls: u64) -> u64 {
    calls + WARM_UP
}

fn warm_up(series: &Series) -> u64 {
    WARM_UP.min(series.jobs.saturating_sub(1))
}

/// Starts a worker on a queue with one job in it: from before the process is made until the reply
/// arrives.
pub(super) async fn start(
    place: &Place,
    registry: &Path,
    settings: Settings,
    series: &Series,
) -> Result<Sample, BenchError> {
    place.queues.purge().await?;
    let mut replies = Replies::open(&place.broker).await?;
    let producer = Producer::start(place);
    producer.send(series.body(0), replies.queue()).await?;
    producer.end().await;
    let begun = Instant::now();
    let mut worker = Worker::start(place, registry, settings)?;
    let replied = reply(&mut replies).await;
    let took = begun.elapsed();
    // A worker that could not start says why.
    worker.check().await?;
    replied?;
    worker.end().await?;
    Ok(Sample { to_reply_ms: Some(took.as_secs_f64() * 1e3), ..Sample::default() })
}

async fn call(
    producer: &Producer,
    replies: &mut Replies,
    series: &Series,
    number: u64,
) -> Result<Duration, BenchError> {
    let (begun, queue) = (Instant::now(), replies.queue().to_owned());
    // The reply does not wait for the confirm of its job.
    let ((), took) = tokio::try_join!(producer.send(series.body(number), &queue), async {
        reply(replies).await?;
        Ok(begun.elapsed())
    })?;
    Ok(took)
}

async fn reply(replies: &mut Replies) -> Result<(), BenchError> {
    match tokio::time::timeout(REPLY_MAX, replies.next()).await {
        Ok(reply) => Ok(reply.map(drop)?),
        Err(_) => Err(BrokerError::Timeout { what: "a reply", after: REPLY_MAX }.into()),
    }
}
