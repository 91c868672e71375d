//! Messages from real reports, with their properties and headers as they were; and messages that
//! nobody should send.

use std::collections::BTreeMap;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, ByteArray, DecimalValue, FieldArray, FieldTable, ShortString};
use serde_json::{Value, json};

use crate::support::{Does, Downstream, Publication, Reply, Tool, World, eventually, job, key_of};

const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/jobs/jobs.jsonl");

/// The reply queue that the cases name, which here is the producer's own.
const REPLIES: &str = "replies.demo";

fn short(text: &str) -> ShortString {
    ShortString::try_new(text.to_owned()).expect("a short text")
}

fn decode_base64(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        other => panic!("{other} is no base64"),
    };
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'=').map(digit).collect();
    let bytes = digits.chunks(4).flat_map(|chunk| {
        let group = (0..4).fold(0_u32, |group, at| {
            group << 6 | u32::from(chunk.get(at).copied().unwrap_or_default())
        });
        group.to_be_bytes()[1..chunk.len()].to_vec()
    });
    bytes.collect()
}

/// A header's value of any AMQP type; what JSON cannot hold is written as an object.
fn header(value: &Value) -> AMQPValue {
    match value {
        Value::Null => AMQPValue::Void,
        Value::Bool(yes) => AMQPValue::Boolean(*yes),
        Value::Number(number) => AMQPValue::LongLongInt(number.as_i64().expect("an integer")),
        Value::String(text) => AMQPValue::LongString(text.as_str().into()),
        Value::Array(items) => {
            AMQPValue::FieldArray(FieldArray::from(items.iter().map(header).collect::<Vec<_>>()))
        }
        Value::Object(members) => match members.iter().next() {
            Some((name, value)) if name == "$timestamp" => {
                AMQPValue::Timestamp(value.as_u64().expect("seconds"))
            }
            Some((name, value)) if name == "$bytes_b64" => {
                let bytes = decode_base64(value.as_str().expect("base64"));
                AMQPValue::ByteArray(ByteArray::from(bytes))
            }
            Some((name, value)) if name == "$decimal" => {
                let part = |name: &str| value[name].as_u64().expect("a number");
                AMQPValue::DecimalValue(DecimalValue {
                    scale: u8::try_from(part("scale")).expect("a small scale"),
                    value: u32::try_from(part("value")).expect("a small value"),
                })
            }
            Some((name, value)) if name == "$float" => {
                #[expect(clippy::cast_possible_truncation, reason = "the cases' floats are short")]
                let float = value.as_f64().expect("a float") as f32;
                AMQPValue::Float(float)
            }
            Some((name, value)) if name == "$i8" => {
                let number = value.as_i64().expect("an integer");
                AMQPValue::ShortShortInt(i8::try_from(number).expect("a small integer"))
            }
            _ => AMQPValue::FieldTable(headers(value)),
        },
    }
}

fn headers(value: &Value) -> FieldTable {
    let members = value.as_object().expect("an object");
    FieldTable::from(
        members
            .iter()
            .map(|(name, value)| (short(name), header(value)))
            .collect::<BTreeMap<ShortString, AMQPValue>>(),
    )
}

/// A case's message, byte for byte; `replies` stands for the reply queue that it names.
fn publication(case: &Value, replies: &str) -> Publication {
    let mut properties = BasicProperties::default();
    for (name, value) in case["properties"].as_object().expect("properties") {
        let text = || value.as_str().expect("a text");
        properties = match name.as_str() {
            "content_type" => properties.with_content_type(short(text())),
            "content_encoding" => properties.with_content_encoding(short(text())),
            "correlation_id" => properties.with_correlation_id(short(text())),
            "message_id" => properties.with_message_id(short(text())),
            "reply_to" if text() == REPLIES => properties.with_reply_to(short(replies)),
            "reply_to" => properties.with_reply_to(short(text())),
            "delivery_mode" => properties
                .with_delivery_mode(u8::try_from(value.as_u64().expect("1 or 2")).expect("1 or 2")),
            other => panic!("no case has the property {other}"),
        };
    }
    if let Some(table) = case.get("headers") {
        properties = properties.with_headers(headers(table));
    }
    Publication { body: decode_base64(case["body_b64"].as_str().expect("base64")), properties }
}

/// What our rules say of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// Run, and answered with the downstream's answer.
    Ran,
    /// Answered from the ledger.
    Replayed,
    /// Not run; the reply's kind and a part of its message, and in the dead queue.
    Refused(&'static str, &'static str),
    /// Run, and nobody could be told.
    RanUnanswered,
}

/// Our rules for the lines of the file, in order.
const RULES: [(&str, &[Expected]); 29] = [
    ("JG01", &[Expected::Ran, Expected::Replayed]),
    ("JG02", &[Expected::Ran, Expected::Ran]),
    ("JG03", &[Expected::Ran, Expected::Ran]),
    (
        "JG04",
        &[Expected::Refused("bad_job", "conversation_id"), Expected::Refused("bad_job", "name")],
    ),
    ("JG05", &[Expected::Replayed]),
    ("JG06", &[Expected::Refused("bad_job", "args is text")]),
    ("JG07", &[Expected::Refused("bad_job", "args is null")]),
    ("JG08", &[Expected::Refused("bad_job", "args is text")]),
    ("JG09", &[Expected::Ran]),
    ("JG10", &[Expected::Refused("unknown_tool", "no tool of this name")]),
    ("JG11", &[Expected::Ran]),
    ("JG12", &[Expected::Refused("unknown_tool", "no tool of this name")]),
    ("JG13", &[Expected::Refused("unknown_tool", "no tool of this name")]),
    ("JG14", &[Expected::Refused("bad_job", "name")]),
    ("JG15", &[Expected::Refused("bad_job", "no job")]),
    ("JG16", &[Expected::Refused("bad_job", "no job")]),
    ("JG17", &[Expected::Refused("bad_job", "no job")]),
    ("JG18", &[Expected::Refused("bad_job", "")]),
    ("JG19", &[Expected::Refused("bad_job", "turn_index")]),
    ("JG20", &[Expected::Refused("bad_job", "content_encoding is \"gzip\"")]),
    ("JG21", &[Expected::Refused("bad_job", "content_encoding is \"gzip\"")]),
    ("JG22", &[Expected::Replayed]),
    ("JG23", &[Expected::Refused("bad_job", "byte-order mark")]),
    ("JG24", &[Expected::Replayed]),
    ("JG25", &[Expected::RanUnanswered]),
    ("JG26", &[Expected::RanUnanswered]),
    ("JG27", &[Expected::Ran]),
    ("JG28", &[Expected::Ran]),
    ("JG29", &[Expected::Ran]),
];

/// B10, B14, B20, B30, B38, B40, B43, B50, B52, B54.
#[tokio::test]
async fn every_reported_message_is_run_replayed_or_refused_by_our_rules() {
    let world = World::new().await;
    let downstream = Downstream::collapsing().await;
    let names = ["send_payment", "write_file", "add_item", "pay", "list_orders", "echo"];
    let odd = ["calendar.respondToEvent", "\u{691c}\u{7d22}"];
    let tools: Vec<_> =
        names.iter().chain(&odd).map(|name| Tool::keyed(name, &downstream)).collect();
    let builder = world.worker(&tools).set("retry_delays", "50ms, 100ms");
    let mut worker = builder.start().await;
    let producer = world.producer().await;
    let text = std::fs::read_to_string(CASES).expect("the cases are there");
    let cases: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(cases.len(), RULES.len());

    let mut ran = 0;
    for (case, (id, expected)) in cases.iter().zip(RULES) {
        assert_eq!(case["id"], id);
        let messages = case["publish_in_order"].as_array().expect("messages");
        assert_eq!(messages.len(), expected.len(), "{id}");
        for (message, expected) in messages.iter().zip(expected) {
            let replied = producer.replies().len();
            let publication = publication(message, producer.reply_queue());
            let body = publication.body.clone();
            producer.publish(publication).await;
            if *expected == Expected::RanUnanswered {
                let key = message["key"].as_str().expect("a key");
                eventually(id, async || world.state(key).await == "completed").await;
                ran += 1;
                continue;
            }
            producer.wait_for_replies(replied + 1).await;
            let reply = producer.replies().pop().expect("the wait is over");
            assert_eq!(
                reply.correlation_id.as_deref(),
                message["properties"]["correlation_id"].as_str(),
                "{id}"
            );
            ran += usize::from(*expected == Expected::Ran);
            holds(id, *expected, &reply, message);
            if let Expected::Refused(kind, part) = *expected {
                let dead = producer.wait_for_dead(1).await;
                assert_eq!(dead.len(), 1, "{id}");
                assert_eq!(dead[0].body, body, "{id}");
                assert_eq!(dead[0].reason(), kind, "{id}");
                assert!(dead[0].detail().contains(part), "{id}: {}", dead[0].detail());
                assert_eq!(dead[0].header("x-callonce-answered"), "not_run", "{id}");
            }
        }
    }

    worker.wait_until_logged("the reply's queue is gone").await;
    assert_eq!(downstream.counts(), (ran, ran));
    for post in downstream.all() {
        assert_eq!(post.keys.len(), 1);
        assert_ne!(post.key(), "0".repeat(32));
    }
    worker.drain().await;
    assert_eq!(usize::try_from(world.rows().await).expect("few"), ran);
    for queue in ["jobs", "dead", "retry.50", "retry.100"] {
        assert_eq!(producer.ready(queue).await, 0, "{queue}");
    }
    for secret in ["1250.00", "half of", &"a".repeat(100)] {
        assert!(!worker.logged(secret), "the log holds {secret}");
    }
}

fn holds(id: &str, expected: Expected, reply: &Reply, message: &Value) {
    match expected {
        Expected::Ran | Expected::Replayed => {
            assert_eq!(reply.status(), "completed", "{id}: {}", reply.text);
            assert_eq!(reply.replayed(), expected == Expected::Replayed, "{id}");
            assert_eq!(reply.key(), message["key"], "{id}");
            assert_eq!(reply.json["call_id"], message["body"]["call_id"], "{id}");
        }
        Expected::Refused(kind, part) => {
            assert_eq!((reply.status(), reply.kind()), ("not_run", kind), "{id}");
            assert_eq!(reply.json["is_error"], true, "{id}");
            assert!(reply.text.contains(&part.replace('"', "\\\"")), "{id}: {}", reply.text);
        }
        Expected::RanUnanswered => {}
    }
}

/// B14: one bad message must not keep the good ones from being delivered.
#[tokio::test]
async fn as_many_poison_messages_as_the_prefetch_do_not_stop_the_good_jobs() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let tools = [Tool::keyed("send_payment", &downstream)];
    let mut worker = world.worker(&tools).set("prefetch", "3").start().await;
    let producer = world.producer().await;

    for poison in ["{", "[1,2,3]", "\u{0}"] {
        producer.submit_text(poison).await;
    }
    for n in 0..10 {
        producer.submit(&job("send_payment", json!({"invoice": n}))).await;
    }
    producer.wait_for_replies(13).await;

    assert_eq!(downstream.counts(), (10, 10));
    worker.drain().await;
    let dead = producer.take_dead().await;
    assert_eq!(dead.iter().map(|dead| dead.reason()).collect::<Vec<_>>(), ["bad_job"; 3]);
    assert_eq!((producer.ready("jobs").await, producer.replies().len()), (0, 13));
    assert!(worker.logged("deliveries=13"));
}

/// A tool that a newer worker may know goes through every delay before it is given up.
#[tokio::test]
async fn an_unknown_tool_is_tried_once_for_each_delay_and_then_kept_in_the_dead_queue() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let mut worker = world.worker(&[Tool::keyed("send_payment", &downstream)]).start().await;
    let producer = world.producer().await;

    let call = job("send_paymemt", json!({"secret": "INV-7-0815"}));
    let reply = producer.call(&call).await;

    assert_eq!((reply.status(), reply.kind()), ("not_run", "unknown_tool"));
    assert_eq!((reply.key(), &reply.json["call_id"]), (&*key_of(&call), &call["call_id"]));
    let dead = producer.wait_for_dead(1).await;
    assert_eq!(dead[0].reason(), "unknown_tool");
    // Without the ways that the broker has written into its headers.
    assert_eq!(dead[0].detail(), "no tool of this name is registered");
    assert_eq!(dead[0].header("x-callonce-round"), "LongUInt(2)");
    assert_eq!(dead[0].body, call.to_string().into_bytes());
    worker.drain().await;
    assert_eq!(worker.times_logged("waits in a delay queue"), 2);
    assert!(worker.logged("deliveries=3"));
    assert!(!worker.logged("INV-7-0815"));
    assert_eq!((downstream.counts(), world.rows().await), ((0, 0), 0));
}

/// A worker with a newer registry knows the tool: the job is not lost in a deploy.
#[tokio::test]
async fn a_tool_that_only_another_worker_knows_runs_there() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let builder = world.worker(&[Tool::keyed("send_payment", &downstream)]);
    let mut older = builder.set("retry_delays", "200ms, 1s").start().await;
    let producer = world.producer().await;

    let id = producer.submit(&job("pay_by_card", json!({}))).await;
    older.wait_until_logged("waits in a delay queue").await;
    older.drain().await;
    let builder = world.worker(&[Tool::keyed("pay_by_card", &downstream)]);
    let mut newer = builder.set("retry_delays", "200ms, 1s").start().await;
    let reply = producer.reply_for(&id).await;

    assert_eq!(reply.status(), "completed");
    assert_eq!(downstream.counts(), (1, 1));
    newer.drain().await;
    assert_eq!(producer.ready("dead").await, 0);
}

/// The model is told what to mend; nothing is kept, since another call comes.
#[tokio::test]
async fn arguments_that_break_the_schema_are_answered_with_their_violations() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let schema = r#"{ type = "object", required = ["invoice"], additionalProperties = false, properties = { invoice = { type = "string" }, amount = { type = "string", maxLength = 8 } } }"#;
    let tools = [Tool::keyed("send_payment", &downstream).schema(schema)];
    let mut worker = world.worker(&tools).start().await;
    let producer = world.producer().await;

    let call = job("send_payment", json!({"amount": "secret-amount-4711"}));
    let reply = producer.call(&call).await;

    assert_eq!((reply.status(), reply.kind()), ("not_run", "bad_arguments"));
    let violations = reply.json["error"]["violations"].as_array().expect("violations");
    assert_eq!(violations.len(), 2, "{violations:?}");
    assert!(violations.iter().any(|violation| violation["pointer"] == "/amount"), "{violations:?}");
    assert!(!reply.text.contains("4711"), "{}", reply.text);
    worker.drain().await;
    assert!(!worker.logged("4711"));
    assert_eq!((downstream.counts(), world.rows().await), ((0, 0), 0));
    assert_eq!((producer.ready("dead").await, producer.ready("jobs").await), (0, 0));
}

#[tokio::test]
async fn a_message_over_the_limit_is_refused_unread() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let tools = [Tool::keyed("send_payment", &downstream)];
    let mut worker = world.worker(&tools).set("message_bytes_max", "1000").start().await;
    let producer = world.producer().await;

    let reply = producer.call(&job("send_payment", json!({"memo": "x".repeat(1000)}))).await;
    let next = producer.call(&job("send_payment", json!({"memo": "x"}))).await;

    assert_eq!((reply.status(), reply.kind()), ("not_run", "bad_job"));
    assert!(reply.text.contains("more than 1000"), "{}", reply.text);
    assert_eq!(next.status(), "completed");
    assert_eq!(downstream.counts(), (1, 1));
    worker.drain().await;
    assert_eq!(producer.take_dead().await.len(), 1);
}

/// A copied `CC` would multiply jobs, a copied `x-death` would lose them.
#[tokio::test]
async fn a_dead_job_carries_its_own_properties_and_no_foreign_header() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let mut worker = world.worker(&[Tool::keyed("send_payment", &downstream)]).start().await;
    let producer = world.producer().await;

    // Whoever publishes the header again makes another copy.
    producer.declare("copies", FieldTable::default()).await;
    let table = headers(&json!({
        "CC": [producer.queue("copies")],
        "x-death": [{"count": 1, "queue": "jobs"}],
        "idempotency-key": "mine",
        "x-long": "y".repeat(5000),
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }));
    let properties = producer.properties("id-1").with_message_id("m-1".into()).with_headers(table);
    producer.publish(Publication { body: b"{\"args\": \"4711\"".to_vec(), properties }).await;
    producer.wait_for_replies(1).await;

    worker.drain().await;
    assert_eq!((producer.replies().len(), producer.ready("copies").await), (1, 1));
    producer.delete("copies").await;
    let dead = producer.take_dead().await;
    assert_eq!(dead.len(), 1);
    for dead in dead {
        let mut names = dead.header_names();
        // The broker itself counts deliveries.
        names.retain(|name| !name.starts_with("x-callonce-") && name != "x-delivery-count");
        assert_eq!(names, ["traceparent"]);
        assert_eq!(dead.properties.message_id().as_ref().map(ShortString::as_str), Some("m-1"));
        assert_eq!(
            dead.properties.correlation_id().as_ref().map(ShortString::as_str),
            Some("id-1")
        );
        let detail = dead.detail();
        assert!(detail.len() <= 1024, "{} bytes", detail.len());
        assert!(detail.contains("idempotency-key") && detail.contains("mine"), "{detail}");
        assert!(!detail.contains("4711"), "{detail}");
    }
}

/// A reply to one of our own queues would come back as a job.
#[tokio::test]
async fn a_reply_to_a_queue_of_our_own_is_refused() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let mut worker = world.worker(&[Tool::keyed("send_payment", &downstream)]).start().await;
    let producer = world.producer().await;

    let properties = producer.properties("id-1").with_reply_to(short(&producer.queue("jobs")));
    let body = job("send_payment", json!({})).to_string().into_bytes();
    producer.publish(Publication { body, properties }).await;
    let dead = producer.wait_for_dead(1).await;

    assert_eq!(dead[0].reason(), "bad_job");
    assert!(dead[0].detail().contains("reply_to"), "{}", dead[0].detail());
    worker.drain().await;
    assert!(worker.logged("deliveries=1"), "no reply came back as a job");
    assert_eq!((producer.ready("jobs").await, downstream.counts()), (0, (0, 0)));
}

/// B30: what no column of text could hold is stored and replayed byte for byte.
#[tokio::test]
async fn a_result_with_a_nul_is_stored_and_replayed_unchanged() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let answer = r#"{"t":"a\u0000b", "escape":"a\\u0000b", "n": 1.0e2, "m": 12345678901234567890}"#;
    downstream.otherwise(Does::ActAndAnswer(200, answer.to_owned()));
    let mut worker = world.worker(&[Tool::unkeyed("echo", &downstream)]).start().await;
    let producer = world.producer().await;

    let call = job("echo", json!({"t": "a\u{0}b"}));
    for _ in 0..3 {
        assert_eq!(producer.call(&call).await.content(), answer);
    }
    assert_eq!(downstream.counts(), (1, 1));
    worker.drain().await;
}
