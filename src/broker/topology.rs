//! Queues, dead letters and delays, declared in one place.
//!
//! A released queue's arguments never change: a new value means a new name.

use std::time::Duration;

use lapin::Channel;
use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable, ShortString};

use super::connect::{BrokerError, BrokerSettings, within};

/// A stated number, since RabbitMQ 3.10 takes -1 as none at all and 4.0 takes none as 20: each
/// lost worker counts against everything that it had prefetched, so our own counts decide.
const DELIVERY_LIMIT: i64 = 1_000_000;

/// How long the dead queue keeps a message: 14 days.
const DEAD_TTL: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// The longest way by which a job can come back: a person takes it out of the dead queue. A day is
/// added for the delay queues and the worker's own holding before it.
pub const LONGEST_WAY_BACK: Duration = Duration::from_secs(15 * 24 * 60 * 60);

/// The names of this prefix's queues.
#[derive(Debug, Clone)]
pub struct Topology {
    prefix: String,
    delays: Vec<Duration>,
}

impl Topology {
    /// The queues of a prefix with these delays.
    ///
    /// # Errors
    ///
    /// [`BrokerError::NameTooLong`] where a name would not fit AMQP.
    pub fn new(prefix: &str, delays: Vec<Duration>) -> Result<Self, BrokerError> {
        let topology = Self { prefix: prefix.to_owned(), delays };
        for queue in topology.names() {
            short(&queue)?;
        }
        Ok(topology)
    }

    /// Where jobs arrive.
    pub fn jobs(&self) -> String {
        format!("{}.jobs", self.prefix)
    }

    /// Where deliveries go that no redelivery will mend.
    pub fn dead(&self) -> String {
        format!("{}.dead", self.prefix)
    }

    /// Where the replies to a benchmark's jobs go: none of this prefix's own queues, to which no reply
    /// is published.
    pub(super) fn bench_replies(&self) -> String {
        format!("{}-replies", self.prefix)
    }

    /// Where round `n`, counted from 1, waits: later rounds in the last queue.
    pub fn delay(&self, round: u32) -> String {
        let nth =
            usize::try_from(round).unwrap_or(usize::MAX).clamp(1, self.delays.len().max(1)) - 1;
        self.delays.get(nth).map_or_else(|| self.jobs(), |delay| self.delay_queue(*delay))
    }

    /// The longest that one round waits.
    pub fn longest_delay(&self) -> Duration {
        self.delays.iter().max().copied().unwrap_or_default()
    }

    /// Whether a queue's name is one of this prefix.
    pub fn owns(&self, queue: &str) -> bool {
        queue.strip_prefix(&self.prefix).is_some_and(|rest| rest.starts_with('.'))
    }

    fn delay_queue(&self, delay: Duration) -> String {
        format!("{}.retry.{}", self.prefix, delay.as_millis())
    }

    pub(super) fn names(&self) -> Vec<String> {
        let delays = self.delays.iter().map(|delay| self.delay_queue(*delay));
        [self.jobs(), self.dead()].into_iter().chain(delays).collect()
    }

    /// Declares the queues, or with `passive` only looks them up.
    pub(super) async fn declare(
        &self,
        channel: &Channel,
        settings: &BrokerSettings,
        passive: bool,
    ) -> Result<(), BrokerError> {
        let mut queues = vec![
            (self.dead(), vec![("x-message-ttl", millis(DEAD_TTL))]),
            (self.jobs(), dead_letters_to(&self.dead())),
        ];
        for delay in &self.delays {
            let mut arguments = dead_letters_to(&self.jobs());
            arguments.push(("x-message-ttl", millis(*delay)));
            queues.push((self.delay_queue(*delay), arguments));
        }
        for (queue, arguments) in queues {
            declare_queue(channel, settings, &queue, arguments, passive).await?;
        }
        Ok(())
    }
}

/// At least once needs `reject-publish`: without it RabbitMQ falls back to at most once, silently.
fn dead_letters_to(queue: &str) -> Vec<(&'static str, AMQPValue)> {
    vec![
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text(queue)),
        ("x-dead-letter-strategy", text("at-least-once")),
        ("x-overflow", text("reject-publish")),
    ]
}

async fn declare_queue(
    channel: &Channel,
    settings: &BrokerSettings,
    queue: &str,
    arguments: Vec<(&'static str, AMQPValue)>,
    passive: bool,
) -> Result<(), BrokerError> {
    let mut table = FieldTable::default();
    table.insert("x-queue-type".into(), text("quorum"));
    table.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(DELIVERY_LIMIT));
    for (name, value) in arguments {
        table.insert(name.into(), value);
    }
    let options = QueueDeclareOptions { durable: true, passive, ..QueueDeclareOptions::default() };
    let declared = within(
        settings.connect_timeout,
        "declaring a queue",
        channel.queue_declare(short(queue)?, options, table),
    )
    .await;
    match declared {
        Ok(_) => Ok(()),
        Err(BrokerError::Amqp { source, .. }) => {
            Err(BrokerError::Queue { queue: queue.to_owned(), source })
        }
        Err(error) => Err(error),
    }
}

/// A name or other short text of the protocol.
pub(super) fn short(text: &str) -> Result<ShortString, BrokerError> {
    ShortString::try_new(text.to_owned()).map_err(|_| BrokerError::NameTooLong)
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

fn millis(duration: Duration) -> AMQPValue {
    AMQPValue::LongLongInt(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology() -> Topology {
        Topology::new("callonce", vec![Duration::from_secs(5), Duration::from_secs(30)])
            .expect("short names")
    }

    #[test]
    fn round_n_waits_the_nth_delay_and_later_rounds_the_last() {
        let rounds: Vec<_> =
            [0, 1, 2, 3, 99].into_iter().map(|round| topology().delay(round)).collect();
        let (first, last) = ("callonce.retry.5000", "callonce.retry.30000");
        assert_eq!(rounds, [first, first, last, last, last]);
    }

    #[test]
    fn a_queue_is_ours_by_the_whole_prefix() {
        assert!(topology().owns("callonce.jobs"));
        assert!(!topology().owns("callonces.jobs"));
        assert!(!topology().owns("replies"));
    }

    #[test]
    fn a_prefix_that_does_not_fit_is_refused() {
        assert!(matches!(
            Topology::new(&"p".repeat(252), Vec::new()),
            Err(BrokerError::NameTooLong)
        ));
    }
}
