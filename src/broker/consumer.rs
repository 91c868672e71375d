//! Deliveries: each belongs to the session that it arrived on, and is answered once.

use std::time::Instant;

use bytes::Bytes;

use super::acks::{Acker, Answer};
use super::message::Origin;

/// One hand-over of a message. Dropping it answers nothing: the broker delivers the message again
/// when the session ends.
#[derive(Debug)]
pub struct Delivery {
    /// The message's body.
    pub body: Bytes,
    /// The properties that mean something to us.
    pub origin: Origin,
    /// The broker's hint that it delivered the message before; never a reason to skip or to run.
    pub redelivered: bool,
    /// When it arrived here.
    pub received: Instant,
    tag: u64,
    acker: Acker,
}

/// Why a delivery was not answered. The broker will deliver it again.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AckError {
    /// The session that it arrived on is gone.
    #[error("the session of this delivery is gone")]
    SessionLost,
    /// The client library's error.
    #[error("the broker could not be answered")]
    Amqp(#[source] lapin::Error),
}

impl Delivery {
    pub(super) fn new(delivery: lapin::message::Delivery, acker: Acker) -> Self {
        Self {
            origin: Origin::read(&delivery.properties),
            body: delivery.data.into(),
            redelivered: delivery.redelivered,
            received: Instant::now(),
            tag: delivery.delivery_tag,
            acker,
        }
    }

    /// Says that the delivery is done with.
    ///
    /// # Errors
    ///
    /// Where the session is gone: the message comes again, and is answered from the ledger.
    pub async fn ack(self) -> Result<(), AckError> {
        self.acker.answer(self.tag, Answer::Ack).await
    }

    /// Puts the delivery back into its queue.
    ///
    /// # Errors
    ///
    /// Where the session is gone: the broker has put it back already.
    pub async fn hand_back(self) -> Result<(), AckError> {
        self.acker.answer(self.tag, Answer::HandBack).await
    }
}
