//! One consuming connection with its channel and deliveries: lost and rebuilt whole.

use futures_util::StreamExt as _;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, Consumer};
use tokio_util::sync::CancellationToken;

use super::acks::{Acker, Acks, Arrived};
use super::connect::{BrokerError, BrokerSettings, connect, within};
use super::consumer::Delivery;
use super::topology::{Topology, short};
use crate::retry::Backoff;
use crate::telemetry::chain;

/// What to consume, and how.
pub struct Consume {
    /// How to reach the broker.
    pub settings: BrokerSettings,
    /// The queues.
    pub topology: Topology,
    /// Whether the queues are only looked up.
    pub passive: bool,
    /// How many deliveries the broker may have outstanding with us.
    pub prefetch: u16,
    /// What the broker's own tools show.
    pub name: String,
}

/// Consumes until `stop`, through as many sessions as it takes, then keeps the last one open until
/// `drained`, so that what is still running can be acked.
///
/// Each delivery goes to `start`, which must not wait for the delivery's end.
///
/// # Errors
///
/// Before the first session stands: what trying again would not mend (a refused login, a queue with
/// other arguments). After that it tries again for ever.
pub async fn consume(
    consume: &Consume,
    start: impl Fn(Delivery),
    stop: CancellationToken,
    drained: CancellationToken,
) -> Result<(), BrokerError> {
    let mut backoff = Backoff::broker();
    let mut stood = false;
    while !stop.is_cancelled() {
        let error = match Session::open(consume, &stop).await {
            Ok((session, acks)) => {
                tracing::info!(queue = consume.topology.jobs(), "consuming");
                stood = true;
                backoff.reset();
                let channel = session.channel.clone();
                let answering = async {
                    acks.run(&channel).await;
                    // Whatever ended it ends the session, which the consumer is told.
                    std::future::pending().await
                };
                let ended = tokio::select! {
                    ended = session.run(&start, &stop, &drained) => ended,
                    never = answering => never,
                };
                match ended {
                    Ok(()) => return Ok(()),
                    Err(error) => error,
                }
            }
            Err(BrokerError::Stopping) => return Ok(()),
            Err(error) if !stood && is_lasting(&error) => return Err(error),
            Err(error) => error,
        };
        let wait = backoff.wait();
        tracing::warn!(
            error = %chain(&error),
            ?wait,
            "no consuming session; building a new one"
        );
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
    Ok(())
}

/// Whether an error will be the same at the next try, as far as anybody can tell.
fn is_lasting(error: &BrokerError) -> bool {
    match error {
        BrokerError::Url
        | BrokerError::Plaintext
        | BrokerError::NameTooLong
        | BrokerError::Queue { .. } => true,
        BrokerError::Amqp { source, .. } => source.is_amqp_error(),
        BrokerError::Timeout { .. }
        | BrokerError::Cancelled
        | BrokerError::Unconfirmed
        | BrokerError::Stopping => false,
    }
}

struct Session {
    connection: Connection,
    channel: Channel,
    consumer: Consumer,
    settings: BrokerSettings,
    acker: Acker,
    arrived: Arrived,
}

impl Session {
    async fn open(
        consume: &Consume,
        stop: &CancellationToken,
    ) -> Result<(Self, Acks), BrokerError> {
        tokio::select! {
            session = Self::build(consume) => session,
            () = stop.cancelled() => Err(BrokerError::Stopping),
        }
    }

    async fn build(consume: &Consume) -> Result<(Self, Acks), BrokerError> {
        let (settings, timeout) = (consume.settings.clone(), consume.settings.connect_timeout);
        let connection = connect(&settings, &format!("{} consumes", consume.name)).await?;
        let channel = within(timeout, "opening a channel", connection.create_channel()).await?;
        consume.topology.declare(&channel, &settings, consume.passive).await?;
        let qos = channel.basic_qos(consume.prefetch, BasicQosOptions::default());
        within(timeout, "setting the prefetch", qos).await?;
        let jobs = short(&consume.topology.jobs())?;
        let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
        let consumer = channel.basic_consume(jobs, "".into(), options, arguments);
        let consumer = within(timeout, "consuming", consumer).await?;
        let (acker, arrived, acks) = Acks::new(consume.prefetch);
        Ok((Self { connection, channel, consumer, settings, acker, arrived }, acks))
    }

    /// Hands over deliveries until `stop`, then waits for `drained`.
    async fn run(
        mut self,
        start: &impl Fn(Delivery),
        stop: &CancellationToken,
        drained: &CancellationToken,
    ) -> Result<(), BrokerError> {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                delivery = self.consumer.next() => start(self.arrived(delivery)?),
            }
        }
        self.hand_back_untouched().await;
        drained.cancelled().await;
        let closed = within(
            self.settings.connect_timeout,
            "closing",
            self.connection.close(200, "done".into()),
        )
        .await;
        if let Err(error) = closed {
            tracing::debug!(
                error = %chain(&error),
                "the consuming connection was not closed properly"
            );
        }
        Ok(())
    }

    fn delivery(&self, delivery: lapin::message::Delivery) -> Delivery {
        self.arrived.note(delivery.delivery_tag);
        Delivery::new(delivery, self.acker.clone())
    }

    fn arrived(
        &self,
        delivery: Option<lapin::Result<lapin::message::Delivery>>,
    ) -> Result<Delivery, BrokerError> {
        match delivery {
            Some(Ok(delivery)) => Ok(self.delivery(delivery)),
            Some(Err(source)) => Err(BrokerError::Amqp { what: "consuming", source }),
            None => Err(BrokerError::Cancelled),
        }
    }

    /// Stops the deliveries and gives back those that had arrived and were not looked at.
    async fn hand_back_untouched(&mut self) {
        let cancel = self.channel.basic_cancel(self.consumer.tag(), BasicCancelOptions::default());
        if let Err(error) =
            within(self.settings.connect_timeout, "cancelling the consumer", cancel).await
        {
            tracing::warn!(
                error = %chain(&error),
                "the consumer was not cancelled"
            );
            return;
        }
        while let Some(Ok(delivery)) = self.consumer.next().await {
            if let Err(error) = self.delivery(delivery).hand_back().await {
                tracing::debug!(
                    error = %chain(&error),
                    "a delivery was not handed back"
                );
            }
        }
    }
}
