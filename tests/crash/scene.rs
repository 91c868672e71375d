//! One tool, its downstream and a producer: what most of these tests begin with.

use serde_json::{Value, json};

use crate::support::{
    Does, Downstream, Producer, Publication, Reply, Tool, Worker, WorkerBuilder, World, eventually,
    job, key_of,
};

/// The three classes of tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Read,
    Keyed,
    Unkeyed,
}

/// A test's world with one tool of a class.
pub(crate) struct Scene {
    pub(crate) producer: Producer,
    pub(crate) downstream: Downstream,
    pub(crate) tool: Tool,
    pub(crate) name: &'static str,
    pub(crate) world: World,
}

/// The queues of a prefix, as [`WorkerBuilder`] sets its delays.
const QUEUES: [&str; 4] = ["jobs", "dead", "retry.200", "retry.400"];

impl Scene {
    /// For workers that are lost: their claims are soon over.
    pub(crate) async fn brief(class: Class) -> Self {
        Self::with_lease("1s", World::new().await, class).await
    }

    /// For workers that live: no claim is over because the machine is busy.
    pub(crate) async fn new(class: Class) -> Self {
        Self::of(World::new().await, class).await
    }

    pub(crate) async fn of(world: World, class: Class) -> Self {
        Self::with_lease("10s", world, class).await
    }

    async fn with_lease(lease: &str, world: World, class: Class) -> Self {
        let downstream = match class {
            Class::Keyed => Downstream::collapsing().await,
            // Nothing but the ledger stands between a repeat and a second effect.
            Class::Read | Class::Unkeyed => Downstream::forgetful().await,
        };
        let (name, tool) = match class {
            Class::Read => ("search_orders", Tool::read("search_orders", &downstream)),
            Class::Keyed => ("send_payment", Tool::keyed("send_payment", &downstream)),
            Class::Unkeyed => ("create_ticket", Tool::unkeyed("create_ticket", &downstream)),
        };
        // No request ends by itself.
        let tool = tool.with("lease", &format!("{lease:?}")).with("timeout", "\"60s\"");
        let producer = world.producer().await;
        Self { producer, downstream, tool, name, world }
    }

    /// A worker with the scene's tool.
    pub(crate) fn worker(&self) -> WorkerBuilder {
        self.world.worker(std::slice::from_ref(&self.tool))
    }

    /// Starts a worker with the scene's tool.
    pub(crate) async fn start(&self) -> Worker {
        self.worker().start().await
    }

    /// A call of the scene's tool, in a conversation of its own.
    pub(crate) fn call(&self) -> Value {
        job(self.name, json!({"invoice": "INV-7", "amount": "120.00"}))
    }

    pub(crate) fn calls(&self, count: usize) -> Vec<Value> {
        (0..count).map(|_| self.call()).collect()
    }

    /// Every next request acts and then stalls until the downstream is released.
    pub(crate) fn stall(&self) {
        self.downstream.otherwise(Does::ActAndStall);
    }

    /// From now on requests are answered, and those that stall too.
    pub(crate) fn release(&self) {
        self.downstream.otherwise(Does::Act);
        self.downstream.release();
    }

    /// Publishes jobs and says their correlation ids, in order.
    pub(crate) async fn submit_all(&self, calls: &[Value]) -> Vec<String> {
        let mut ids = Vec::with_capacity(calls.len());
        for call in calls {
            ids.push(self.producer.submit(call).await);
        }
        ids
    }

    /// Waits for a first reply to each of these jobs; all must be completed and no errors.
    pub(crate) async fn all_completed(&self, ids: &[String]) {
        for id in ids {
            let reply = self.producer.reply_for(id).await;
            assert_eq!((reply.status(), reply.kind()), ("completed", ""), "{reply:?}");
        }
    }

    /// Waits until this many sessions of that name wait for a lock.
    pub(crate) async fn wait_for_blocked_sessions(&self, name: &str, count: i64) {
        let waiting = format!(
            "SELECT count(*) FROM pg_stat_activity
             WHERE application_name = '{name}' AND wait_event_type = 'Lock'"
        );
        eventually(&format!("{count} sessions wait for a lock"), async || {
            // Inside a transaction the view would stay as it was first seen.
            self.world.sql("SELECT pg_stat_clear_snapshot()").await;
            self.world.count(&waiting).await == count
        })
        .await;
    }

    /// All replies for a job, none of them still on its way: what was published to the reply queue
    /// before this was called has arrived when this comes back.
    pub(crate) async fn replies_for(&self, id: &str) -> Vec<Reply> {
        fence(&self.producer).await;
        self.producer.replies_for(id)
    }

    /// Drains the workers; then no queue may hold anything.
    pub(crate) async fn drain(&self, workers: impl IntoIterator<Item = Worker>) {
        for mut worker in workers {
            worker.drain().await;
        }
        self.assert_queues_are_empty().await;
    }

    /// With no worker running: what a lost connection held is ready again.
    pub(crate) async fn assert_queues_are_empty(&self) {
        for queue in QUEUES {
            assert_eq!(self.producer.ready(queue).await, 0, "{queue} holds something");
        }
    }

    /// Each of these calls made one request and had one effect, and its row says so.
    pub(crate) async fn assert_each_acted_once(&self, calls: &[Value]) {
        for call in calls {
            let key = key_of(call);
            assert_eq!(self.downstream.posts_of(&key), 1, "requests of {call}");
            assert_eq!(self.world.state(&key).await, "completed", "{call}");
        }
        assert_eq!(self.downstream.counts(), (calls.len(), calls.len()));
    }
}

/// Waits until everything that was published to the reply queue before has arrived.
pub(crate) async fn fence(producer: &Producer) {
    let id = uuid::Uuid::new_v4().to_string();
    let properties = producer.properties(&id);
    let fence = Publication { body: b"{}".to_vec(), properties };
    producer.publish_to(producer.reply_queue(), fence).await;
    producer.reply_for(&id).await;
}
