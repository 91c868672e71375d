//! Persistent, confirmed publishing, a set at a time.
//!
//! The client library can tie a return to another publication's confirm. So every publication has
//! an id of its own, all confirms of a set are awaited, and returns are matched by id; only then
//! does anybody hear of its message. Jobs and replies go on channels of their own. What was not
//! confirmed when the connection was lost is published again.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{Channel, Confirmation, Connection, PublisherConfirm};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::connect::{BrokerError, BrokerSettings, connect, within};
use super::message::{Message, publish_id};
use crate::gather::gather;
use crate::retry::Backoff;
use crate::telemetry::chain;

/// How many messages are published before their confirms are awaited.
const SET_MAX: usize = 200;
/// How many messages may wait for their set; more callers than that wait themselves.
const WAITING_MAX: usize = 1_000;
/// How long a broker that does not block publishers may take to confirm a set.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(30);

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Published {
    /// The broker has it.
    Confirmed,
    /// No queue of that name took it.
    Returned,
    /// The broker refused it: the queue is full.
    Refused,
}

struct Request {
    message: Message,
    answer: oneshot::Sender<Published>,
}

/// Publishes replies and jobs on a connection of its own.
#[derive(Clone)]
pub struct Publisher {
    replies: mpsc::Sender<Request>,
    jobs: mpsc::Sender<Request>,
}

impl Publisher {
    /// Starts publishing. It ends when every handle is dropped, or at once with `stop`.
    pub fn start(
        settings: BrokerSettings,
        name: &str,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        let line = Arc::new(Line {
            settings,
            name: format!("{name} publishes"),
            connection: Mutex::new(None),
        });
        let lane = |what| {
            let (sender, requests) = mpsc::channel(WAITING_MAX);
            let lane = Lane { what, line: line.clone(), requests, channel: None };
            let stop = stop.clone();
            tasks.spawn(async move {
                tokio::select! {
                    () = lane.run() => {}
                    () = stop.cancelled() => {}
                }
            });
            sender
        };
        Self { replies: lane("replies"), jobs: lane("jobs") }
    }

    /// Publishes a reply.
    ///
    /// # Errors
    ///
    /// [`BrokerError::Stopping`] where the worker is ending; whether it was published is not known.
    ///
    /// # Cancel safety
    ///
    /// Not safe: a message that was handed over is published all the same.
    pub async fn reply(&self, message: Message) -> Result<Published, BrokerError> {
        publish(&self.replies, message).await
    }

    /// Publishes a job.
    ///
    /// # Errors
    ///
    /// As for [`Publisher::reply`].
    ///
    /// # Cancel safety
    ///
    /// As for [`Publisher::reply`].
    pub async fn job(&self, message: Message) -> Result<Published, BrokerError> {
        publish(&self.jobs, message).await
    }
}

async fn publish(lane: &mpsc::Sender<Request>, message: Message) -> Result<Published, BrokerError> {
    let (answer, published) = oneshot::channel();
    lane.send(Request { message, answer }).await.map_err(|_| BrokerError::Stopping)?;
    published.await.map_err(|_| BrokerError::Stopping)
}

/// The publishing connection, shared by the lanes and rebuilt by whoever finds it gone.
struct Line {
    settings: BrokerSettings,
    name: String,
    connection: Mutex<Option<Arc<Connection>>>,
}

impl Line {
    async fn channel(&self) -> Result<(Arc<Connection>, Channel), BrokerError> {
        let timeout = self.settings.connect_timeout;
        let connection = {
            let mut shared = self.connection.lock().await;
            match shared.as_ref().filter(|connection| connection.status().connected()) {
                Some(connection) => connection.clone(),
                None => {
                    let fresh = Arc::new(connect(&self.settings, &self.name).await?);
                    shared.insert(fresh).clone()
                }
            }
        };
        let channel = within(timeout, "opening a channel", connection.create_channel()).await?;
        within(
            timeout,
            "asking for confirms",
            channel.confirm_select(ConfirmSelectOptions::default()),
        )
        .await?;
        Ok((connection, channel))
    }
}

/// One channel and what waits to be published on it.
struct Lane {
    what: &'static str,
    line: Arc<Line>,
    requests: mpsc::Receiver<Request>,
    channel: Option<(Arc<Connection>, Channel)>,
}

impl Lane {
    async fn run(mut self) {
        let mut backoff = Backoff::broker();
        let mut set = Vec::with_capacity(SET_MAX);
        while !set.is_empty() || gather(&mut self.requests, &mut set, SET_MAX).await > 0 {
            match self.publish_set(&set).await {
                Ok(published) => {
                    backoff.reset();
                    for (request, published) in set.drain(..).zip(published) {
                        // A caller that no longer listens has given its delivery up.
                        request.answer.send(published).ok();
                    }
                }
                Err(error) => {
                    self.channel = None;
                    let wait = backoff.wait();
                    tracing::warn!(
                        error = %chain(&error),
                        lane = self.what,
                        waiting = set.len(),
                        ?wait,
                        "not confirmed; publishing again"
                    );
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }

    async fn publish_set(&mut self, set: &[Request]) -> Result<Vec<Published>, BrokerError> {
        let (connection, channel) = match &self.channel {
            Some((connection, channel)) if channel.status().connected() => (connection, channel),
            Some(_) | None => {
                let (connection, channel) = self.channel.insert(self.line.channel().await?);
                (&*connection, &*channel)
            }
        };
        // Each send waits until its frames are written: all of a set are handed over before that.
        let sent = try_join_all(set.iter().map(|request| send(channel, &request.message))).await?;
        settle_set(connection, sent).await
    }
}

async fn send(
    channel: &Channel,
    message: &Message,
) -> Result<(String, PublisherConfirm), BrokerError> {
    let id = Uuid::new_v4().to_string();
    let options =
        BasicPublishOptions { mandatory: message.mandatory, ..BasicPublishOptions::default() };
    channel
        .basic_publish(
            "".into(),
            message.queue.clone(),
            options,
            &message.body,
            message.properties(&id),
        )
        .await
        .map(|confirm| (id, confirm))
        .map_err(|source| BrokerError::Amqp { what: "publishing", source })
}

/// Awaits all confirms of a set, then matches the returns by id.
async fn settle_set(
    connection: &Connection,
    sent: Vec<(String, PublisherConfirm)>,
) -> Result<Vec<Published>, BrokerError> {
    let mut returned = HashSet::new();
    let mut confirmations = Vec::with_capacity(sent.len());
    for (id, confirm) in sent {
        let (acked, message) = match await_confirm(connection, confirm).await? {
            Confirmation::Ack(message) => (true, message),
            Confirmation::Nack(message) => (false, message),
            // Confirms were asked for, so an answer without one proves nothing.
            Confirmation::NotRequested => (false, None),
        };
        returned.extend(message.and_then(|message| publish_id(&message.delivery.properties)));
        confirmations.push((id, acked));
    }
    let published = |(id, acked): (String, bool)| match acked {
        _ if returned.contains(&id) => Published::Returned,
        true => Published::Confirmed,
        false => Published::Refused,
    };
    Ok(confirmations.into_iter().map(published).collect())
}

/// A broker in an alarm blocks publishers for as long as it lasts; that is no reason to give up.
async fn await_confirm(
    connection: &Connection,
    mut confirm: PublisherConfirm,
) -> Result<Confirmation, BrokerError> {
    loop {
        match tokio::time::timeout(CONFIRM_TIMEOUT, &mut confirm).await {
            Ok(confirmation) => {
                return confirmation
                    .map_err(|source| BrokerError::Amqp { what: "awaiting a confirm", source });
            }
            Err(_) if connection.status().blocked() => {}
            Err(_) => {
                return Err(BrokerError::Timeout { what: "a confirm", after: CONFIRM_TIMEOUT });
            }
        }
    }
}
