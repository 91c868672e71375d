//! What a benchmark asks of the broker: queues of its own, how full they are, and how fast the broker
//! is without us.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::future::try_join_all;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions, QueuePurgeOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Confirmation, Connection, PublisherConfirm};
use secrecy::ExposeSecret as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use url::Url;

use super::connect::{BrokerError, BrokerSettings, connect, within};
use super::topology::{Topology, short};

/// A delivery or a confirm that takes longer than this will not come.
const STALL_MAX: Duration = Duration::from_secs(60);
/// Replies that are counted as one.
const COUNTED_AT_ONCE_MAX: usize = 256;
/// Persistent, in AMQP's own numbers.
const PERSISTENT: u8 = 2;

/// How full a queue is.
#[derive(Debug, Clone, Copy)]
pub struct Depth {
    /// Messages that nobody has been given.
    pub ready: u32,
    /// Who consumes it.
    pub consumers: u32,
}

/// The queues of one benchmark, seen through a connection of their own.
pub struct BenchQueues {
    settings: BrokerSettings,
    topology: Topology,
    connection: Connection,
    channel: Channel,
    counted: Arc<AtomicU64>,
    counting: JoinSet<()>,
}

impl BenchQueues {
    /// Connects, and declares nothing yet.
    ///
    /// # Errors
    ///
    /// Where the broker cannot be reached.
    pub async fn connect(
        settings: &BrokerSettings,
        topology: &Topology,
    ) -> Result<Self, BrokerError> {
        let connection = connect(settings, "callonce measures").await?;
        let opened = connection.create_channel();
        let channel = within(settings.connect_timeout, "opening a channel", opened).await?;
        Ok(Self {
            settings: settings.clone(),
            topology: topology.clone(),
            connection,
            channel,
            counted: Arc::default(),
            counting: JoinSet::new(),
        })
    }

    /// Declares a worker's queues and one for replies, and begins to count these.
    ///
    /// # Errors
    ///
    /// Where the broker refuses one of them; those before it are there then.
    pub async fn declare(&mut self) -> Result<(), BrokerError> {
        self.topology.declare(&self.channel, &self.settings, false).await?;
        let options = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
        self.declare_replies(options).await.map(drop)?;
        self.count_replies().await
    }

    /// Where the replies go: a queue of this connection, as producers have one.
    pub fn replies(&self) -> String {
        self.topology.bench_replies()
    }

    /// How full the queue of jobs is.
    ///
    /// # Errors
    ///
    /// Where the broker does not say.
    pub async fn jobs_depth(&self) -> Result<Depth, BrokerError> {
        let options =
            QueueDeclareOptions { durable: true, passive: true, ..QueueDeclareOptions::default() };
        self.look(&self.topology.jobs(), options).await
    }

    /// How many replies have come since the queues were emptied.
    pub fn replies_counted(&self) -> u64 {
        self.counted.load(Ordering::Relaxed)
    }

    /// Takes replies as a producer does, on a channel of its own.
    async fn count_replies(&mut self) -> Result<(), BrokerError> {
        let timeout = self.settings.connect_timeout;
        let channel =
            within(timeout, "opening a channel", self.connection.create_channel()).await?;
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let queue = short(&self.replies())?;
        let consuming = channel.basic_consume(queue, "".into(), options, FieldTable::default());
        let mut replies = within(timeout, "consuming replies", consuming)
            .await?
            .ready_chunks(COUNTED_AT_ONCE_MAX);
        let counted = Arc::clone(&self.counted);
        self.counting.spawn(async move {
            while let Some(chunk) = replies.next().await {
                let came = chunk.iter().filter(|reply| reply.is_ok()).count();
                counted.fetch_add(u64::try_from(came).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
            // The channel lives as long as its consumer.
            drop(channel);
        });
        Ok(())
    }

    /// Empties all queues of what is ready.
    ///
    /// # Errors
    ///
    /// Where the broker refuses.
    pub async fn purge(&self) -> Result<(), BrokerError> {
        for queue in self.names() {
            let purged = self.channel.queue_purge(short(&queue)?, QueuePurgeOptions::default());
            within(STALL_MAX, "emptying a queue", purged).await?;
        }
        self.counted.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// Deletes a worker's queues with what is in them, on a connection of its own: the one that they
    /// were declared on may be lost. The replies' queue goes with that.
    ///
    /// # Errors
    ///
    /// Where the broker refuses; some may be deleted then. One that is not there is no error.
    pub async fn delete(settings: &BrokerSettings, topology: &Topology) -> Result<(), BrokerError> {
        let queues = Self::connect(settings, topology).await?;
        for queue in topology.names() {
            let deleted =
                queues.channel.queue_delete(short(&queue)?, QueueDeleteOptions::default());
            within(STALL_MAX, "deleting a queue", deleted).await?;
        }
        queues.close().await
    }

    /// Closes the connection.
    ///
    /// # Errors
    ///
    /// Where the broker does not answer.
    pub async fn close(self) -> Result<(), BrokerError> {
        let closed = self.connection.close(200, "done".into());
        within(self.settings.connect_timeout, "closing", closed).await
    }

    /// Publishes so many replies, all confirmed, with at most `unconfirmed` under way, and nothing
    /// else; how long that took.
    ///
    /// # Errors
    ///
    /// Where the broker refuses one, or stalls.
    pub async fn publish_alone(
        &self,
        body: &[u8],
        count: usize,
        unconfirmed: usize,
    ) -> Result<Duration, BrokerError> {
        let opened = self.connection.create_channel();
        let channel = within(self.settings.connect_timeout, "opening a channel", opened).await?;
        let confirms = channel.confirm_select(ConfirmSelectOptions::default());
        within(self.settings.connect_timeout, "asking for confirms", confirms).await?;
        let queue = short(&self.replies())?;
        let properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let begun = Instant::now();
        let mut left = count;
        while left > 0 {
            // Each waits until it is written: a set is handed over before that.
            let set = left.min(unconfirmed);
            let published = (0..set).map(|_| {
                channel.basic_publish("".into(), queue.clone(), options, body, properties.clone())
            });
            for confirm in within(STALL_MAX, "publishing", try_join_all(published)).await? {
                confirmed(confirm).await?;
            }
            left -= set;
        }
        let took = begun.elapsed();
        within(self.settings.connect_timeout, "closing", channel.close(200, "done".into())).await?;
        Ok(took)
    }

    /// Consumes so many jobs and acks each, and does nothing else; how long that took.
    ///
    /// # Errors
    ///
    /// Where the broker stalls: there were fewer.
    pub async fn consume_alone(
        &self,
        count: usize,
        prefetch: u16,
    ) -> Result<Duration, BrokerError> {
        let opened = self.connection.create_channel();
        let channel = within(self.settings.connect_timeout, "opening a channel", opened).await?;
        let qos = channel.basic_qos(prefetch, BasicQosOptions::default());
        within(self.settings.connect_timeout, "setting the prefetch", qos).await?;
        let begun = Instant::now();
        let consuming = channel.basic_consume(
            short(&self.topology.jobs())?,
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        let consumer = within(self.settings.connect_timeout, "consuming", consuming).await?;
        let mut arrived = consumer.ready_chunks(usize::from(prefetch));
        let mut left = count;
        while left > 0 {
            let next = tokio::time::timeout(STALL_MAX, arrived.next()).await;
            let next = next
                .map_err(|_| BrokerError::Timeout { what: "a delivery", after: STALL_MAX })?
                .ok_or(BrokerError::Cancelled)?;
            let mut last = None;
            for delivery in next {
                let delivery =
                    delivery.map_err(|source| BrokerError::Amqp { what: "consuming", source })?;
                last = Some(delivery.delivery_tag);
                left = left.saturating_sub(1);
            }
            let Some(last) = last else { continue };
            let ack = channel.basic_ack(last, BasicAckOptions { multiple: true });
            within(STALL_MAX, "acking", ack).await?;
        }
        let took = begun.elapsed();
        within(self.settings.connect_timeout, "closing", channel.close(200, "done".into())).await?;
        Ok(took)
    }

    fn names(&self) -> Vec<String> {
        let mut names = self.topology.names();
        names.push(self.replies());
        names
    }

    async fn declare_replies(&self, options: QueueDeclareOptions) -> Result<Depth, BrokerError> {
        self.look(&self.replies(), options).await
    }

    async fn look(&self, queue: &str, options: QueueDeclareOptions) -> Result<Depth, BrokerError> {
        let declared = self.channel.queue_declare(short(queue)?, options, FieldTable::default());
        match within(self.settings.connect_timeout, "looking up a queue", declared).await {
            Ok(queue) => {
                Ok(Depth { ready: queue.message_count(), consumers: queue.consumer_count() })
            }
            Err(BrokerError::Amqp { source, .. }) => {
                Err(BrokerError::Queue { queue: queue.to_owned(), source })
            }
            Err(error) => Err(error),
        }
    }
}

async fn confirmed(confirm: PublisherConfirm) -> Result<(), BrokerError> {
    match within(STALL_MAX, "awaiting a confirm", confirm).await? {
        Confirmation::Ack(None) => Ok(()),
        Confirmation::Ack(Some(_)) | Confirmation::Nack(_) | Confirmation::NotRequested => {
            Err(BrokerError::Unconfirmed)
        }
    }
}

/// The broker's version as it introduces itself, which the client library does not pass on; none where
/// it does not say, or says it under TLS.
pub async fn broker_version(settings: &BrokerSettings) -> Option<String> {
    let url = Url::parse(settings.url.expose_secret()).ok()?;
    if url.scheme() != "amqp" {
        return None;
    }
    let address = (url.host_str()?.trim_matches(['[', ']']), url.port().unwrap_or(5672));
    let asked = async {
        let mut socket = TcpStream::connect(address).await.ok()?;
        socket.write_all(b"AMQP\0\0\x09\x01").await.ok()?;
        let mut head = [0; 7];
        socket.read_exact(&mut head).await.ok()?;
        let bytes = u32::from_be_bytes([head[3], head[4], head[5], head[6]]);
        let mut start = Vec::new();
        socket.take(u64::from(bytes.min(START_BYTES_MAX))).read_to_end(&mut start).await.ok()?;
        version(&start)
    };
    tokio::time::timeout(settings.connect_timeout, asked).await.ok()?
}

/// `Connection.Start` is a short table of properties.
const START_BYTES_MAX: u32 = 16 * 1024;

/// The text of the property `version` in a `Connection.Start`.
fn version(start: &[u8]) -> Option<String> {
    const NAME: &[u8] = b"\x07versionS";
    let at = start.windows(NAME.len()).position(|bytes| bytes == NAME)? + NAME.len();
    let (length, rest) = start.get(at..)?.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    std::str::from_utf8(rest.get(..length)?).ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_the_brokers_introduction() {
        let start = b"\0\x0a\0\x0a\0\x09\0\0\0\x20\x07productS\0\0\0\x08RabbitMQ\x07versionS\0\0\0\x063.12.1\0";
        assert_eq!(version(start).as_deref(), Some("3.12.1"));
        assert_eq!(version(&start[..40]), None);
        assert_eq!(version(b""), None);
    }
}
