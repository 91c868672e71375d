//! Two layers, and neither replaces the other: the ledger guards against our own concurrency, the
//! forwarded key against the loss of our own data.

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{Does, Downstream, Publication, Tool, World, job, key_of, key_of_text};

/// A-083: without the row, the downstream collapses by the key.
#[tokio::test]
async fn a_lost_row_is_made_good_by_the_downstream() {
    let world = World::new().await;
    let downstream = Downstream::collapsing().await;
    let mut worker = world.worker(&[Tool::keyed("send_payment", &downstream)]).start().await;
    let producer = world.producer().await;

    let call = job("send_payment", json!({"invoice": "INV-7"}));
    let first = producer.call(&call).await;
    world.sql("DELETE FROM callonce_calls").await;
    let second = producer.call(&call).await;

    assert_eq!(downstream.counts(), (2, 1));
    assert_eq!(downstream.posts_of(&key_of(&call)), 2);
    assert_eq!(second.content(), "{\"id\": \"pay_1\",  \"ok\":true}");
    assert_eq!(first.content(), second.content());
    assert!(!second.replayed());
    worker.drain().await;
    assert_eq!(world.state(&key_of(&call)).await, "completed");
}

/// A-084: where the downstream ignores the key, the ledger answers.
#[tokio::test]
async fn a_downstream_that_ignores_keys_acts_once_as_long_as_the_ledger_stands() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let mut worker = world.worker(&[Tool::keyed("send_payment", &downstream)]).start().await;
    let producer = world.producer().await;

    let call = job("send_payment", json!({"invoice": "INV-7"}));
    let (first, second) = (producer.call(&call).await, producer.call(&call).await);

    assert_eq!(downstream.counts(), (1, 1));
    assert_eq!(first.content(), second.content());
    worker.drain().await;

    // The other way round there is neither: that both are needed is what this shows.
    world.sql("DELETE FROM callonce_calls").await;
    let mut worker = world.worker(&[Tool::keyed("send_payment", &downstream)]).start().await;
    let third = producer.call(&call).await;
    assert_eq!(downstream.counts(), (2, 2));
    assert_ne!(third.content(), first.content());
    worker.drain().await;
}

/// A-094: the price of going without the ledger is a trip downstream.
#[tokio::test]
async fn a_keyed_tool_without_the_ledger_sends_each_duplicate_and_acts_once() {
    let world = World::new().await;
    let downstream = Downstream::collapsing().await;
    let tools = [Tool::keyed("send_payment", &downstream).with("ledger", "false")];
    let mut worker = world.worker(&tools).start().await;
    let producer = world.producer().await;

    let call = job("send_payment", json!({"invoice": "INV-7"}));
    let (first, second) = (producer.call(&call).await, producer.call(&call).await);

    assert_eq!(downstream.counts(), (2, 1));
    assert_eq!(downstream.posts_of(&key_of(&call)), 2);
    assert_eq!(first.content(), second.content());
    assert!(!second.replayed());
    worker.drain().await;
    assert_eq!(world.rows().await, 0);
}

/// A-066, A-075, A-082, B43: exactly one key header, the derived key, and the arguments' own bytes,
/// at every attempt and on every worker.
#[tokio::test]
async fn the_key_and_the_body_are_the_same_at_every_attempt() {
    let world = World::new().await;
    let downstream = Downstream::collapsing().await;
    downstream.script([
        Does::Answer(503, "{}".to_owned()),
        Does::ActAndClose,
        Does::ActAndCut,
        Does::Answer(500, "{}".to_owned()),
        Does::ActAndStall,
    ]);
    let tools = [Tool::keyed("send_payment", &downstream).with("lease", "\"2s\"")];
    let mut lost = world.worker(&tools).start().await;
    let producer = world.producer().await;

    let args = r#"{"b": 1.50,  "a":"\u00e9é", "big": 123456789012345678901234567890}"#;
    let text = format!(
        r#"{{"conversation_id":"{}","turn_index":0,"name":"send_payment","args":{args}}}"#,
        world.prefix
    );
    let key = key_of_text(&text);
    let mut headers = lapin::types::FieldTable::default();
    let foreign = lapin::types::AMQPValue::LongString("00000000000000000000000000000000".into());
    headers.insert("idempotency-key".into(), foreign);
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    headers.insert("traceparent".into(), lapin::types::AMQPValue::LongString(trace.into()));
    let properties = producer.properties("the-one").with_headers(headers);
    producer.publish(Publication { body: text.into_bytes(), properties }).await;
    downstream.wait_for_posts(5).await;
    lost.kill();
    let mut next = world.worker(&tools).start().await;
    let reply = producer.reply_for("the-one").await;

    assert_eq!((reply.status(), reply.key()), ("completed", &*key));
    assert_eq!(downstream.counts(), (6, 1));
    for post in downstream.all() {
        assert_eq!(post.keys, [key.as_str()]);
        assert_eq!(post.body, args);
        assert_eq!(post.header("content-type"), Some("application/json"));
        assert_eq!(post.header("traceparent"), Some(trace));
    }
    next.drain().await;
}

/// The body at every attempt is the first delivery's, however a later one spells the arguments.
#[tokio::test]
async fn a_resend_carries_the_arguments_as_they_first_came() {
    let world = World::new().await;
    let downstream = Downstream::collapsing().await;
    downstream.script([Does::ActAndClose]);
    let tools = [Tool::keyed("send_payment", &downstream).retry("1ms", 0)];
    let mut worker = world.worker(&tools).start().await;
    let producer = world.producer().await;

    let spelt = |args: &str| {
        format!(
            r#"{{"conversation_id":"{}","turn_index":0,"name":"send_payment","args":{args}}}"#,
            world.prefix
        )
    };
    let (first, second) = (spelt(r#"{"b": "é",  "a":1}"#), spelt(r#"{"a":1,"b":"\u00e9"}"#));
    assert_eq!(key_of_text(&first), key_of_text(&second));
    let id = producer.submit_text(&first).await;
    assert_eq!(producer.reply_for(&id).await.status(), "unknown");
    let id = producer.submit_text(&second).await;
    let reply = producer.reply_for(&id).await;

    assert_eq!((reply.status(), reply.replayed()), ("completed", false));
    assert_eq!(downstream.counts(), (2, 1));
    for post in downstream.all() {
        assert_eq!(post.body, r#"{"b": "é",  "a":1}"#);
        assert_eq!(post.key(), key_of_text(&first));
    }
    worker.drain().await;
}

/// What a worker must not be: it asks what is recorded, acts, and records after it has succeeded.
struct RecordsAfterSuccess<'a> {
    world: &'a World,
    downstream: &'a Downstream,
}

impl RecordsAfterSuccess<'_> {
    /// Runs a call; `lost` is whether the worker is lost right after it acted.
    async fn run(&self, key: &str, lost: bool) -> Option<String> {
        let known = "SELECT answer FROM answers WHERE key = $1";
        let known = self.world.database().query_opt(known, &[&key]).await.expect("a good query");
        if let Some(row) = known {
            return Some(row.get(0));
        }
        let answer = self.post(key).await;
        if lost {
            return None;
        }
        let record = "INSERT INTO answers (key, answer) VALUES ($1, $2)";
        self.world.database().execute(record, &[&key, &answer]).await.expect("a good statement");
        Some(answer)
    }

    async fn post(&self, key: &str) -> String {
        let url = url::Url::parse(&self.downstream.url("/calls")).expect("a URL");
        let address = url.socket_addrs(|| None).expect("an address")[0];
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        let request = format!(
            "POST /calls HTTP/1.1\r\nhost: downstream\r\nidempotency-key: {key}\r\ncontent-length: 2\r\n\r\n{{}}"
        );
        stream.write_all(request.as_bytes()).await.expect("it reads");
        stream.shutdown().await.expect("the request is whole");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("it answers");
        answer.split_once("\r\n\r\n").expect("a head and a body").1.to_owned()
    }
}

/// A-078: the order of things is the promise. The same loss, at the same point, in both orders.
#[tokio::test]
async fn recording_after_success_acts_twice_where_claiming_first_acts_once() {
    let world = World::new().await;
    world.sql("CREATE TABLE answers (key text PRIMARY KEY, answer text NOT NULL)").await;
    let downstream = Downstream::forgetful().await;
    let other_order = RecordsAfterSuccess { world: &world, downstream: &downstream };
    assert_eq!(other_order.run("k", true).await, None);
    let answer = other_order.run("k", false).await;
    assert_eq!(answer, other_order.run("k", false).await);
    assert_eq!(downstream.counts(), (2, 2), "the loss between effect and record acts twice");

    let downstream = Downstream::forgetful().await;
    let tools = [Tool::unkeyed("create_ticket", &downstream).with("lease", "\"1s\"")];
    let mut lost = world.worker(&tools).failpoint("answered", 0).start().await;
    let producer = world.producer().await;
    let id = producer.submit(&job("create_ticket", json!({"subject": "printer"}))).await;
    lost.wait_for_failpoint("answered").await;
    lost.kill();
    let mut next = world.worker(&tools).start().await;
    let reply = producer.reply_for(&id).await;

    assert_eq!(downstream.counts(), (1, 1));
    assert_eq!((reply.status(), reply.kind()), ("unknown", "worker_lost"));
    next.drain().await;
}
