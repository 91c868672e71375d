//! A look at the dead queue that takes nothing out of it.

use bytes::Bytes;
use jiff::Timestamp;
use lapin::options::{BasicGetOptions, QueueDeclareOptions};
use lapin::types::FieldTable;

use super::connect::{BrokerError, BrokerSettings, connect, within};
use super::message::Origin;
use super::topology::{Topology, short};

/// A message of the dead queue.
#[derive(Debug)]
pub struct DeadLetter {
    /// Its body.
    pub body: Bytes,
    /// Its properties, with the reason.
    pub origin: Origin,
    /// When it was put there, if it says.
    pub published_at: Option<Timestamp>,
}

/// Shows the oldest messages of the dead queue, at most `limit`, and how many there are.
///
/// They are fetched without an ack and go back when the connection closes.
///
/// # Errors
///
/// Where the broker cannot be reached or has no such queue.
pub async fn peek_dead(
    settings: &BrokerSettings,
    topology: &Topology,
    limit: usize,
) -> Result<(u32, Vec<DeadLetter>), BrokerError> {
    let timeout = settings.connect_timeout;
    let queue = topology.dead();
    let connection = connect(settings, "callonce looks at the dead queue").await?;
    let channel = within(timeout, "opening a channel", connection.create_channel()).await?;
    let options =
        QueueDeclareOptions { passive: true, durable: true, ..QueueDeclareOptions::default() };
    let declared = within(
        timeout,
        "looking up a queue",
        channel.queue_declare(short(&queue)?, options, FieldTable::default()),
    )
    .await;
    let waiting = match declared {
        Ok(declared) => declared.message_count(),
        Err(BrokerError::Amqp { source, .. }) => return Err(BrokerError::Queue { queue, source }),
        Err(error) => return Err(error),
    };
    let mut letters = Vec::new();
    while letters.len() < limit {
        let get = channel.basic_get(short(&queue)?, BasicGetOptions { no_ack: false });
        let Some(message) = within(timeout, "fetching a message", get).await? else { break };
        let properties = &message.delivery.properties;
        let published_at =
            (*properties.timestamp()).and_then(|seconds| i64::try_from(seconds).ok());
        letters.push(DeadLetter {
            origin: Origin::read(properties),
            published_at: published_at.and_then(|seconds| Timestamp::from_second(seconds).ok()),
            body: message.delivery.data.into(),
        });
    }
    within(timeout, "closing", connection.close(200, "done".into())).await?;
    Ok((waiting, letters))
}
