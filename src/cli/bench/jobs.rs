//! The jobs that are measured: of one size, each a call of its own.

use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::BenchError;
use super::place::Place;
use crate::broker::{BrokerError, Message, Published, Publisher};

/// Jobs that are published and not yet confirmed, at most.
const UNCONFIRMED_MAX: usize = 1_000;

/// The one tool of every registry here.
pub(super) const TOOL: &str = "bench";

/// Calls that no other series makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Series {
    conversation: String,
    /// How many jobs there are.
    pub(super) jobs: u64,
    /// Of how many jobs the last is one that came before; none where each is a call of its own.
    repeated: Option<u64>,
}

impl Series {
    pub(super) fn new(number: u64, jobs: u64) -> Self {
        Self { conversation: format!("bench-{number}"), jobs, repeated: None }
    }

    /// The same, but that of each five jobs the last repeats the first.
    pub(super) fn with_repeats(self) -> Self {
        Self { repeated: Some(5), ..self }
    }

    /// How many calls there are.
    pub(super) fn calls(&self) -> u64 {
        self.jobs - self.repeated.map_or(0, |every| self.jobs / every)
    }

    /// A job's message, of about 400 bytes.
    pub(super) fn body(&self, number: u64) -> Bytes {
        let call = match self.repeated {
            Some(every) if number % every == every - 1 => number + 1 - every,
            Some(_) | None => number,
        };
        let job = json!({
            "conversation_id": self.conversation,
            "turn_index": call,
            "name": TOOL,
            "args": {
                "invoice": format!("INV-{call}"),
                "amount": "120.00",
                "currency": "EUR",
                "memo": "m".repeat(220),
            },
        });
        job.to_string().into()
    }
}

/// Publishes jobs as any producer does: persistent and confirmed.
pub(super) struct Producer {
    publisher: Publisher,
    queue: String,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Producer {
    pub(super) fn start(place: &Place) -> Self {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let publisher = Publisher::start(place.broker.clone(), "callonce bench", &tasks, &stop);
        Self { publisher, queue: place.topology.jobs(), tasks, stop }
    }

    /// Publishes one job.
    pub(super) async fn send(&self, body: Bytes, reply_to: &str) -> Result<(), BenchError> {
        let message = Message::job(&self.queue, body, Some(reply_to), None)?;
        match self.publisher.job(message).await? {
            Published::Confirmed => Ok(()),
            Published::Returned | Published::Refused => Err(BrokerError::Unconfirmed.into()),
        }
    }

    /// Publishes all jobs of a series, in their order as far as the broker keeps it.
    pub(super) async fn send_all(&self, series: &Series, reply_to: &str) -> Result<(), BenchError> {
        let mut sent = stream::iter(0..series.jobs)
            .map(|number| self.send(series.body(number), reply_to))
            .buffered(UNCONFIRMED_MAX);
        while let Some(sent) = sent.next().await {
            sent?;
        }
        Ok(())
    }

    pub(super) async fn end(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::job::{Job, Limits};

    fn keys(series: &Series) -> Vec<String> {
        let key = |number| {
            let job = Job::decode(&series.body(number), None, None, &Limits::default());
            job.expect("a good job").key().to_string()
        };
        (0..series.jobs).map(key).collect()
    }

    #[test]
    fn each_job_is_a_call_of_its_own_but_for_the_repeats() {
        for series in [Series::new(1, 12), Series::new(1, 12).with_repeats()] {
            let mut keys = keys(&series);
            if series.repeated.is_some() {
                assert_eq!((&keys[4], &keys[9]), (&keys[0], &keys[5]));
            }
            keys.sort_unstable();
            keys.dedup();
            assert_eq!(keys.len() as u64, series.calls());
        }
        assert_eq!(Series::new(1, 12).with_repeats().calls(), 10);
        assert_ne!(keys(&Series::new(1, 1)), keys(&Series::new(2, 1)));
    }
}
