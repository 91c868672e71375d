//! A producer of jobs: publishes with any properties and headers, and reads its replies.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt as _;
use lapin::options::{
    BasicConsumeOptions, BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions,
    QueueDeclareOptions, QueueDeleteOptions, QueuePurgeOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::{eventually, timely};

/// A client of the broker with a reply queue of its own.
pub(crate) struct Producer {
    connection: Connection,
    channel: Channel,
    prefix: String,
    reply_queue: String,
    replies: Arc<Mutex<Vec<Reply>>>,
    _tasks: JoinSet<()>,
}

/// A reply as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) correlation_id: Option<String>,
    /// The body, byte for byte.
    pub(crate) text: String,
    pub(crate) json: Value,
    pub(crate) delivery_mode: Option<u8>,
}

impl Reply {
    /// The content, byte for byte.
    pub(crate) fn content(&self) -> String {
        #[derive(serde::Deserialize)]
        struct Content {
            content: Box<RawValue>,
        }
        let content: Content = serde_json::from_str(&self.text).expect("a reply has content");
        content.content.get().to_owned()
    }

    pub(crate) fn status(&self) -> &str {
        self.json["status"].as_str().expect("a reply has a status")
    }

    /// The error's kind; empty without an error.
    pub(crate) fn kind(&self) -> &str {
        self.json["error"]["kind"].as_str().unwrap_or_default()
    }

    pub(crate) fn key(&self) -> &str {
        self.json["key"].as_str().unwrap_or_default()
    }

    pub(crate) fn replayed(&self) -> bool {
        self.json["replayed"].as_bool().expect("a reply says whether it is a replay")
    }
}

/// What to publish.
#[derive(Debug, Clone, Default)]
pub(crate) struct Publication {
    pub(crate) body: Vec<u8>,
    pub(crate) properties: BasicProperties,
}

/// A message of the dead queue.
#[derive(Debug, Clone)]
pub(crate) struct DeadLetter {
    pub(crate) body: Vec<u8>,
    pub(crate) properties: BasicProperties,
}

impl DeadLetter {
    pub(crate) fn header(&self, name: &str) -> String {
        let headers = self.properties.headers().as_ref();
        match headers.and_then(|headers| headers.inner().get(name)) {
            Some(AMQPValue::LongString(text)) => text.to_string(),
            Some(other) => format!("{other:?}"),
            None => String::new(),
        }
    }

    pub(crate) fn header_names(&self) -> Vec<String> {
        let headers = self.properties.headers().as_ref();
        headers
            .map(|headers| headers.inner().keys().map(ToString::to_string).collect())
            .unwrap_or_default()
    }

    pub(crate) fn reason(&self) -> String {
        self.header("x-callonce-reason")
    }

    pub(crate) fn detail(&self) -> String {
        self.header("x-callonce-detail")
    }
}

async fn open(amqp_url: &str) -> lapin::Result<(Connection, Channel)> {
    let connection = Connection::connect(amqp_url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    Ok((connection, channel))
}

fn short(text: &str) -> ShortString {
    ShortString::try_new(text.to_owned()).expect("a short text")
}

impl Producer {
    pub(crate) async fn connect(amqp_url: &str, prefix: &str) -> Self {
        let (connection, channel) = open(amqp_url).await.expect("RabbitMQ answers");
        channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
        // Not of the prefix: those are the worker's own, and no job may be answered there.
        let reply_queue = format!("{prefix}-replies-{}", Uuid::new_v4().simple());
        let options = QueueDeclareOptions {
            exclusive: true,
            auto_delete: true,
            ..QueueDeclareOptions::default()
        };
        channel
            .queue_declare(short(&reply_queue), options, FieldTable::default())
            .await
            .expect("a reply queue");
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let mut consumer = channel
            .basic_consume(short(&reply_queue), "".into(), options, FieldTable::default())
            .await
            .expect("a consumer");
        let replies = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        tasks.spawn({
            let replies = replies.clone();
            async move {
                while let Some(Ok(delivery)) = consumer.next().await {
                    let text = String::from_utf8(delivery.data).expect("a reply is UTF-8");
                    let id = delivery.properties.correlation_id().as_ref();
                    lock(&replies).push(Reply {
                        correlation_id: id.map(ToString::to_string),
                        json: serde_json::from_str(&text).expect("a reply is JSON"),
                        text,
                        delivery_mode: *delivery.properties.delivery_mode(),
                    });
                }
            }
        });
        Self { connection, channel, prefix: prefix.to_owned(), reply_queue, replies, _tasks: tasks }
    }

    /// Closes the connection; its reply queue goes with it.
    pub(crate) async fn close(self) {
        self.connection.close(200, "done".into()).await.expect("it was open");
    }

    pub(crate) fn reply_queue(&self) -> &str {
        &self.reply_queue
    }

    /// The name of a queue of the prefix: `jobs`, `dead`, `retry.200`.
    pub(crate) fn queue(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    /// The properties of an ordinary job with this correlation id.
    pub(crate) fn properties(&self, correlation_id: &str) -> BasicProperties {
        BasicProperties::default()
            .with_content_type("application/json".into())
            .with_delivery_mode(2)
            .with_reply_to(short(&self.reply_queue))
            .with_correlation_id(short(correlation_id))
    }

    /// Publishes a job and says the correlation id of its reply.
    pub(crate) async fn submit(&self, job: &Value) -> String {
        self.submit_text(&job.to_string()).await
    }

    /// Publishes a job whose text matters.
    pub(crate) async fn submit_text(&self, body: &str) -> String {
        let id = Uuid::new_v4().to_string();
        let properties = self.properties(&id);
        self.publish(Publication { body: body.as_bytes().to_vec(), properties }).await;
        id
    }

    /// Publishes anything to the jobs queue, confirmed.
    pub(crate) async fn publish(&self, publication: Publication) {
        self.publish_to(&self.queue("jobs"), publication).await;
    }

    pub(crate) async fn publish_to(&self, queue: &str, publication: Publication) {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let Publication { body, properties } = publication;
        let confirmed = timely("a confirm", async {
            let published =
                self.channel.basic_publish("".into(), short(queue), options, &body, properties);
            published.await.expect("publishing").await.expect("a confirm")
        })
        .await;
        assert!(matches!(confirmed, Confirmation::Ack(None)), "{queue}: {confirmed:?}");
    }

    /// Publishes a job and waits for its reply.
    pub(crate) async fn call(&self, job: &Value) -> Reply {
        let id = self.submit(job).await;
        self.reply_for(&id).await
    }

    /// Every reply so far.
    pub(crate) fn replies(&self) -> Vec<Reply> {
        lock(&self.replies).clone()
    }

    /// The replies with this correlation id so far.
    pub(crate) fn replies_for(&self, id: &str) -> Vec<Reply> {
        let mut replies = self.replies();
        replies.retain(|reply| reply.correlation_id.as_deref() == Some(id));
        replies
    }

    /// The first reply with this correlation id, once it is there.
    pub(crate) async fn reply_for(&self, id: &str) -> Reply {
        let mut found = None;
        eventually(&format!("a reply for {id}"), async || {
            found = self.replies_for(id).into_iter().next();
            found.is_some()
        })
        .await;
        found.expect("the wait is over")
    }

    /// Waits until there are this many replies with this correlation id.
    pub(crate) async fn wait_for_replies_of(&self, id: &str, count: usize) {
        eventually(&format!("{count} replies for {id}"), async || {
            self.replies_for(id).len() >= count
        })
        .await;
    }

    pub(crate) async fn wait_for_replies(&self, count: usize) {
        eventually(&format!("{count} replies"), async || lock(&self.replies).len() >= count).await;
    }

    /// How many messages of a queue of the prefix are ready: neither delivered nor gone.
    pub(crate) async fn ready(&self, name: &str) -> u32 {
        // On a channel of its own: a passive declaration of a missing queue ends its channel.
        timely("a queue's length", async {
            let channel = self.connection.create_channel().await.expect("a channel");
            let options = QueueDeclareOptions {
                passive: true,
                durable: true,
                ..QueueDeclareOptions::default()
            };
            let queue = channel
                .queue_declare(short(&self.queue(name)), options, FieldTable::default())
                .await
                .expect("the queue exists");
            channel.close(200, "done".into()).await.expect("a channel closes");
            queue.message_count()
        })
        .await
    }

    pub(crate) async fn wait_until_ready(&self, name: &str, messages: u32) {
        eventually(&format!("{messages} messages in {name}"), async || {
            self.ready(name).await == messages
        })
        .await;
    }

    /// Takes what is in the dead queue out of it.
    pub(crate) async fn take_dead(&self) -> Vec<DeadLetter> {
        self.take("dead").await
    }

    /// Waits for this many dead jobs and takes them out.
    pub(crate) async fn wait_for_dead(&self, count: usize) -> Vec<DeadLetter> {
        let mut dead = Vec::new();
        eventually(&format!("{count} dead jobs"), async || {
            dead.extend(self.take_dead().await);
            dead.len() >= count
        })
        .await;
        dead
    }

    /// Takes what is ready in a queue of the prefix out of it.
    pub(crate) async fn take(&self, name: &str) -> Vec<DeadLetter> {
        let mut taken = Vec::new();
        let options = BasicGetOptions { no_ack: true };
        while let Some(message) =
            timely("a look", self.channel.basic_get(short(&self.queue(name)), options))
                .await
                .expect("the queue exists")
        {
            taken.push(DeadLetter {
                body: message.delivery.data,
                properties: message.delivery.properties,
            });
        }
        taken
    }

    /// Declares a queue that replies may go to; it goes with this producer.
    pub(crate) async fn declare_reply_queue(&self, arguments: FieldTable) -> String {
        let name = format!("{}-replies-{}", self.prefix, Uuid::new_v4().simple());
        let options = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
        self.channel.queue_declare(short(&name), options, arguments).await.expect("a reply queue");
        name
    }

    /// Calls with RabbitMQ's own pseudo queue for the reply, and says its body.
    pub(crate) async fn call_with_direct_reply_to(&self, job: &Value) -> Value {
        const DIRECT: &str = "amq.rabbitmq.reply-to";
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let consumer =
            self.channel.basic_consume(DIRECT.into(), "".into(), options, FieldTable::default());
        let mut consumer = consumer.await.expect("a consumer");
        let properties = self.properties("direct").with_reply_to(DIRECT.into());
        self.publish(Publication { body: job.to_string().into_bytes(), properties }).await;
        let delivery = timely("a direct reply", consumer.next()).await.expect("it is open");
        serde_json::from_slice(&delivery.expect("a reply").data).expect("a reply is JSON")
    }

    /// Declares a queue of the prefix with arguments of the test's own.
    pub(crate) async fn declare(&self, name: &str, arguments: FieldTable) {
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        self.channel
            .queue_declare(short(&self.queue(name)), options, arguments)
            .await
            .expect("the queue is new");
    }

    pub(crate) async fn delete(&self, name: &str) {
        self.channel
            .queue_delete(short(&self.queue(name)), QueueDeleteOptions::default())
            .await
            .expect("a queue can be deleted");
    }

    pub(crate) async fn purge(&self, name: &str) {
        self.channel
            .queue_purge(short(&self.queue(name)), QueuePurgeOptions::default())
            .await
            .expect("a queue can be purged");
    }
}

fn lock(replies: &Mutex<Vec<Reply>>) -> MutexGuard<'_, Vec<Reply>> {
    replies.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The delays that tests use; each has a queue.
const DELAYS_MS: [u32; 6] = [50, 100, 200, 400, 500, 1000];

/// Deletes the queues of a prefix. Deleting what is not there is no error.
pub(super) async fn delete_queues(amqp_url: &str, prefix: &str) {
    let deleted = async {
        let (connection, channel) = open(amqp_url).await?;
        let delays = DELAYS_MS.map(|delay| format!("{prefix}.retry.{delay}"));
        for queue in [format!("{prefix}.jobs"), format!("{prefix}.dead")].iter().chain(&delays) {
            channel.queue_delete(short(queue), QueueDeleteOptions::default()).await?;
        }
        connection.close(200, "done".into()).await
    };
    if let Err(error) = deleted.await {
        eprintln!("the queues of {prefix} were not deleted: {error}");
    }
}

/// Whether there is a durable queue of this name.
pub(crate) async fn queue_exists(amqp_url: &str, queue: &str) -> bool {
    timely("a look at a queue", async {
        let (_connection, channel) = open(amqp_url).await.expect("RabbitMQ answers");
        let options =
            QueueDeclareOptions { passive: true, durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(short(queue), options, FieldTable::default()).await.is_ok()
    })
    .await
}
