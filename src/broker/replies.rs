//! A private queue for the replies to one producer's jobs.

use bytes::Bytes;
use futures_util::StreamExt as _;
use lapin::options::{BasicConsumeOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Connection, Consumer};
use uuid::Uuid;

use super::connect::{BrokerError, BrokerSettings, connect, within};

/// Replies as they come; the queue goes with the connection.
pub struct Replies {
    queue: String,
    consumer: Consumer,
    _connection: Connection,
}

impl Replies {
    /// Declares the queue and consumes it.
    ///
    /// # Errors
    ///
    /// Where the broker cannot be reached or refuses it.
    pub async fn open(settings: &BrokerSettings) -> Result<Self, BrokerError> {
        let timeout = settings.connect_timeout;
        let connection = connect(settings, "callonce awaits replies").await?;
        let channel = within(timeout, "opening a channel", connection.create_channel()).await?;
        let options = QueueDeclareOptions {
            exclusive: true,
            auto_delete: true,
            ..QueueDeclareOptions::default()
        };
        let queue = channel.queue_declare("".into(), options, FieldTable::default());
        let queue = within(timeout, "declaring a reply queue", queue).await?.name().clone();
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let consumer =
            channel.basic_consume(queue.clone(), "".into(), options, FieldTable::default());
        let consumer = within(timeout, "consuming replies", consumer).await?;
        Ok(Self { queue: queue.to_string(), consumer, _connection: connection })
    }

    /// What a job names as its `reply_to`.
    pub fn queue(&self) -> &str {
        &self.queue
    }

    /// The next reply, with the id of the job that it answers.
    ///
    /// # Errors
    ///
    /// Where the connection is lost: replies to this queue are lost with it.
    ///
    /// # Cancel safety
    ///
    /// Safe: no reply is lost.
    pub async fn next(&mut self) -> Result<(Option<Uuid>, Bytes), BrokerError> {
        let delivery = self.consumer.next().await.ok_or(BrokerError::Cancelled)?;
        let delivery =
            delivery.map_err(|source| BrokerError::Amqp { what: "consuming replies", source })?;
        let id = delivery
            .properties
            .correlation_id()
            .as_ref()
            .and_then(|id| Uuid::parse_str(id.as_str()).ok());
        Ok((id, delivery.data.into()))
    }
}
