//! Workers die at random, and the books are balanced at the end.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use serde_json::{Value, json};

use crate::scene::fence;
use crate::support::{
    DeadLetter, Does, Downstream, Tool, Worker, WorkerBuilder, World, eventually, job, key_of,
    within,
};

const JOBS: usize = 200;
const WORKERS: usize = 3;
const KILLS: usize = 12;
/// One schedule of victims and moments, the same at each run.
const SEED: u64 = 0x5eed_0b16_0b35;

/// Xorshift (Marsaglia, 2003): no more than this test needs.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).expect("31 bits") % sides
    }
}

struct Crew<'a> {
    builder: Box<dyn Fn() -> WorkerBuilder + 'a>,
    workers: Vec<Worker>,
}

impl<'a> Crew<'a> {
    async fn new(builder: impl Fn() -> WorkerBuilder + 'a) -> Self {
        let mut workers = Vec::new();
        for _ in 0..WORKERS {
            workers.push(builder().start().await);
        }
        Self { builder: Box::new(builder), workers }
    }

    /// Kills one; another takes its place.
    async fn replace(&mut self, index: usize) {
        self.workers[index].kill();
        self.workers[index] = (self.builder)().start().await;
    }
}

/// B16, B35: published = replied or dead, and no call acted twice.
#[tokio::test]
async fn whatever_dies_every_job_is_answered_or_dead_and_acted_at_most_once() {
    let mut dice = Dice(SEED);
    let world = World::new().await;
    let (keyed, others) = (Downstream::collapsing().await, Downstream::forgetful().await);
    for downstream in [&keyed, &others] {
        downstream.otherwise(Does::ActAndDelay(Duration::from_millis(40)));
    }
    let tools = [
        Tool::keyed("send_payment", &keyed),
        Tool::unkeyed("create_ticket", &others),
        Tool::read("search_orders", &others),
    ];
    let tools = tools.map(|tool| tool.with("lease", "\"1s\"").with("max_concurrency", "2"));
    let names = ["send_payment", "create_ticket", "search_orders"];
    let producer = world.producer().await;
    let mut crew = Crew::new(|| world.worker(&tools).set("prefetch", "10")).await;

    let mut calls: HashMap<String, Value> = HashMap::new();
    for number in 0..JOBS {
        let call = job(names[number % names.len()], json!({ "number": number }));
        calls.insert(producer.submit(&call).await, call);
    }
    let posts = || keyed.posts() + others.posts();
    let mut due = 0;
    for _ in 0..KILLS {
        due += 2 + dice.roll(12);
        eventually("enough requests for the next death", async || posts() >= due).await;
        crew.replace(dice.roll(WORKERS)).await;
    }

    let mut dead = HashSet::new();
    within(Duration::from_secs(60), "every job is answered or dead", async || {
        dead.extend(producer.take_dead().await.iter().filter_map(correlation_id));
        calls.keys().all(|id| dead.contains(id) || !producer.replies_for(id).is_empty())
    })
    .await;
    for worker in &mut crew.workers {
        worker.drain().await;
    }
    fence(&producer).await;
    for queue in ["jobs", "dead", "retry.200", "retry.400"] {
        assert_eq!(producer.ready(queue).await, 0, "{queue} holds something");
    }

    let mut unknown = 0;
    for (id, call) in &calls {
        let (name, key) = (call["name"].as_str().expect("a text"), key_of(call));
        let replies = producer.replies_for(id);
        let said: HashSet<_> = replies.iter().map(|reply| reply.status().to_owned()).collect();
        let state = world.state(&key).await;
        match name {
            "search_orders" => assert_eq!((&*state, dead.contains(id)), ("none", false), "{call}"),
            "send_payment" => {
                // Taken over until it was done.
                assert_eq!(state, "completed", "{call}");
                assert_eq!(said, HashSet::from(["completed".to_owned()]), "{call}");
                let contents: HashSet<_> = replies.iter().map(|reply| reply.content()).collect();
                assert_eq!(contents.len(), 1, "{call}");
            }
            _ => {
                assert!(others.posts_of(&key) <= 1, "an unkeyed write was sent twice: {call}");
                let expected = HashSet::from([state.clone()]);
                assert_eq!(said, expected, "{call}");
                match &*state {
                    "completed" => assert_eq!(others.posts_of(&key), 1, "{call}"),
                    "unknown" => unknown += 1,
                    other => panic!("{call} is {other}"),
                }
            }
        }
    }
    let payments = calls.values().filter(|call| call["name"] == "send_payment").count();
    assert_eq!(keyed.effects(), payments, "one effect for each payment");
    assert!(unknown <= KILLS * 2, "{unknown} calls are unknown after {KILLS} deaths");
}

fn correlation_id(letter: &DeadLetter) -> Option<String> {
    letter.properties.correlation_id().as_ref().map(ToString::to_string)
}
