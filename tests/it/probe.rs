//! Asking the downstream by key what became of a call, instead of sending it again.

use serde_json::{Value, json};

use crate::support::{Does, Downstream, Says, Tool, World, eventually, job, key_of};

/// A registry's word that a call which the probe does not know has not run, with short waits.
const NOT_RUN: &str = ", not_found = \"not_run\", settle_delay = \"100ms\", deadline = \"5s\"";

/// A probe whose `not_found` says nothing.
const UNKNOWN: &str = ", settle_delay = \"100ms\", deadline = \"500ms\"";

/// What the history says of the attempt's requests.
async fn steps(world: &World, key: &str) -> Value {
    let shown = world.run(&["ledger", "show", "--json", key], "").await;
    let shown: Value = serde_json::from_str(&shown.out).expect("the call is in the ledger");
    let requests = shown["history"].as_array().expect("a history").iter();
    requests
        .filter(|entry| entry["event"] == "requests")
        .map(|entry| entry["detail"].clone())
        .next_back()
        .unwrap_or_default()
}

#[tokio::test]
async fn an_ambiguous_call_is_asked_for_and_not_sent_again() {
    for class in [Tool::unkeyed, Tool::keyed] {
        let world = World::new().await;
        let downstream = Downstream::forgetful().await;
        downstream.script([Does::ActAndClose]);
        downstream.says([Says::Running, Says::Status(500), Says::Running]);
        let tool = class("pay", &downstream).probe(&downstream, NOT_RUN);
        let mut worker = world.worker(&[tool]).start().await;
        let producer = world.producer().await;

        let call = job("pay", json!({"n": 1}));
        let reply = producer.call(&call).await;
        let again = producer.call(&call).await;

        assert_eq!((reply.status(), reply.replayed()), ("completed", false));
        assert_eq!(reply.content(), "{\"id\": \"pay_1\",  \"ok\":true}", "byte for byte");
        assert_eq!((again.content(), again.replayed()), (reply.content(), true));
        assert_eq!((downstream.counts(), downstream.questions()), ((1, 1), 4));
        let steps = steps(&world, &key_of(&call)).await;
        assert_eq!(steps[0]["branch"], "lost");
        assert_eq!(steps.as_array().map(Vec::len), Some(5), "{steps}");
        worker.drain().await;
    }
}

#[tokio::test]
async fn a_call_that_failed_downstream_is_completed_with_an_error() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.script([Does::ActAndCut]);
    downstream.says([Says::This(r#"{"state":"failed","result":{"why":"no funds"}}"#.to_owned())]);
    let tool = Tool::unkeyed("pay", &downstream).probe(&downstream, NOT_RUN);
    let mut worker = world.worker(&[tool]).start().await;
    let producer = world.producer().await;

    let reply = producer.call(&job("pay", json!({}))).await;

    assert_eq!((reply.status(), reply.kind()), ("completed", "tool_error"));
    assert_eq!(reply.content(), r#"{"why":"no funds"}"#);
    assert_eq!(downstream.posts(), 1);
    worker.drain().await;
}

#[tokio::test]
async fn a_call_that_the_downstream_does_not_know_runs_again_once_that_counts() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    // Read and thrown away: nothing was done.
    downstream.script([Does::Close]);
    let tool = Tool::unkeyed("pay", &downstream).probe(&downstream, NOT_RUN);
    let mut worker = world.worker(&[tool]).start().await;
    let producer = world.producer().await;

    let call = job("pay", json!({}));
    let reply = producer.call(&call).await;

    assert_eq!((reply.status(), &reply.json["attempt"]), ("completed", &json!(1)));
    assert_eq!(downstream.counts(), (2, 1));
    // The first `not_found` came before it could count.
    assert!(downstream.questions() >= 2, "{}", downstream.questions());
    worker.drain().await;
}

#[tokio::test]
async fn a_not_found_that_says_nothing_leaves_the_call_unknown() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.script([Does::Close]);
    let tool = Tool::unkeyed("pay", &downstream).probe(&downstream, UNKNOWN);
    let mut worker = world.worker(&[tool]).start().await;
    let producer = world.producer().await;

    let call = job("pay", json!({}));
    assert_eq!(producer.call(&call).await.status(), "unknown");
    assert_eq!(downstream.posts(), 1);
    let asked = downstream.questions();
    // The next delivery asks again, and sends nothing either.
    assert_eq!(producer.call(&call).await.status(), "unknown");
    assert!(downstream.questions() > asked);
    assert_eq!(downstream.posts(), 1);
    worker.drain().await;
}

#[tokio::test]
async fn a_probe_that_cannot_be_answered_leaves_unknown_or_the_same_key() {
    for (class, status, posts) in [
        (Tool::unkeyed as fn(&str, &Downstream) -> Tool, "unknown", 1),
        (Tool::keyed, "completed", 2),
    ] {
        let world = World::new().await;
        let downstream = Downstream::collapsing().await;
        downstream.script([Does::ActAndClose]);
        downstream.says_otherwise(Says::Status(500));
        let tool = class("pay", &downstream).probe(&downstream, UNKNOWN);
        let mut worker = world.worker(&[tool]).start().await;
        let producer = world.producer().await;

        let reply = producer.call(&job("pay", json!({}))).await;

        assert_eq!(reply.status(), status);
        assert_eq!(downstream.counts(), (posts, 1));
        worker.drain().await;
    }
}

/// What one delivery could not find out, a later one can.
#[tokio::test]
async fn an_unknown_call_is_asked_for_again_by_its_next_delivery() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.script([Does::ActAndClose]);
    downstream.says_otherwise(Says::Status(503));
    let tool = Tool::unkeyed("pay", &downstream).probe(&downstream, UNKNOWN);
    let mut worker = world.worker(&[tool]).start().await;
    let producer = world.producer().await;

    let call = job("pay", json!({}));
    assert_eq!(producer.call(&call).await.status(), "unknown");
    downstream.says_otherwise(Says::TheTruth);
    let reply = producer.call(&call).await;

    assert_eq!((reply.status(), reply.replayed()), ("completed", true));
    assert_eq!(downstream.counts(), (1, 1));
    let history = world.history(&key_of(&call)).await;
    assert_eq!(history, ["requests", "became_unknown", "probe_completed"]);
    worker.drain().await;
}

/// A downstream that has the key, but not its answer, is asked for the answer.
#[tokio::test]
async fn a_duplicate_is_asked_for_its_result() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.script([Does::ActAndAnswer(409, "{}".to_owned())]);
    let tool = Tool::unkeyed("pay", &downstream)
        .http("duplicate_status", "[409]")
        .probe(&downstream, NOT_RUN);
    let mut worker = world.worker(&[tool]).start().await;
    let producer = world.producer().await;

    let reply = producer.call(&job("pay", json!({}))).await;

    assert_eq!((reply.status(), &reply.json["warnings"]), ("completed", &json!([])));
    assert_eq!(reply.content(), "{\"id\": \"pay_1\",  \"ok\":true}");
    assert_eq!(downstream.counts(), (1, 1));
    worker.drain().await;
}

#[tokio::test]
async fn a_duplicate_without_a_probe_is_completed_without_its_result() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.script([Does::ActAndClose, Does::Answer(409, "{}".to_owned())]);
    let tool = Tool::keyed("pay", &downstream).http("duplicate_status", "[409]");
    let mut worker = world.worker(&[tool]).start().await;
    let producer = world.producer().await;

    let reply = producer.call(&job("pay", json!({}))).await;

    assert_eq!(
        (reply.status(), &reply.json["warnings"]),
        ("completed", &json!(["result_unavailable"]))
    );
    assert_eq!(downstream.counts(), (2, 1));
    worker.drain().await;
}

/// A downstream that has said that it has the key is not believed when its probe does not know it.
#[tokio::test]
async fn a_not_found_decides_nothing_of_a_key_that_the_tool_has_said_it_has() {
    for (class, field, status, warnings, posts) in [
        (
            Tool::keyed as fn(&str, &Downstream) -> Tool,
            "duplicate_status",
            "completed",
            json!(["result_unavailable"]),
            2,
        ),
        (Tool::unkeyed, "in_progress_status", "unknown", json!([]), 1),
    ] {
        let world = World::new().await;
        let downstream = Downstream::collapsing().await;
        if posts > 1 {
            downstream.script([Does::ActAndClose]);
        }
        downstream.otherwise(Does::ActAndAnswer(409, "{}".to_owned()));
        downstream.says_otherwise(Says::NotFound);
        let tool = class("pay", &downstream).http(field, "[409]").probe(&downstream, NOT_RUN);
        let mut worker = world.worker(&[tool]).start().await;
        let producer = world.producer().await;

        let call = job("pay", json!({}));
        let reply = producer.call(&call).await;

        assert_eq!((reply.status(), &reply.json["warnings"]), (status, &warnings), "{field}");
        assert_eq!(downstream.counts(), (posts, 1), "{field}");
        // Nor is it believed by a later delivery.
        assert_eq!(producer.call(&call).await.status(), status, "{field}");
        assert_eq!(downstream.counts(), (posts, 1), "{field}");
        worker.drain().await;
    }
}

/// What a person has said while the tool was asked is what the delivery is told.
#[tokio::test]
async fn a_call_that_is_resolved_while_it_is_asked_for_is_answered_as_resolved() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.script([Does::ActAndClose]);
    downstream.says_otherwise(Says::Running);
    let tool = Tool::unkeyed("pay", &downstream).probe(&downstream, ", deadline = \"1s\"");
    let mut worker = world.worker(&[tool]).start().await;
    let producer = world.producer().await;
    let call = job("pay", json!({}));
    assert_eq!(producer.call(&call).await.status(), "unknown");

    let asked = downstream.questions();
    let id = producer.submit(&call).await;
    eventually("it is asked for", async || downstream.questions() > asked).await;
    let key = key_of(&call);
    let words =
        ["ledger", "resolve", &key, "--completed", "-", "--by", "ana", "--reason", "seen there"];
    assert_eq!(world.run(&words, "7").await.code, Some(0));
    let reply = producer.reply_for(&id).await;

    assert_eq!((reply.status(), reply.content().as_str()), ("completed", "7"));
    worker.drain().await;
}

/// What the tool has said is not lost because the ledger did not take it at once: it is asked again.
#[tokio::test]
async fn an_answer_that_could_not_be_recorded_is_asked_for_again() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.script([Does::ActAndClose]);
    downstream.says_otherwise(Says::Status(503));
    let tool = Tool::unkeyed("pay", &downstream).probe(&downstream, UNKNOWN);
    let builder = world.worker(&[tool]).set("database_statement_timeout", "500ms");
    let mut worker = builder.start().await;
    let producer = world.producer().await;
    let call = job("pay", json!({}));
    assert_eq!(producer.call(&call).await.status(), "unknown");
    downstream.says_otherwise(Says::TheTruth);

    // The row can be read, and not be written.
    world.sql("BEGIN; SELECT 1 FROM callonce_calls FOR UPDATE").await;
    let asked = downstream.questions();
    let id = producer.submit(&call).await;
    eventually("it is asked for twice", async || downstream.questions() >= asked + 2).await;
    world.sql("COMMIT").await;
    let reply = producer.reply_for(&id).await;

    assert_eq!((reply.status(), reply.replayed()), ("completed", true), "{}", reply.text);
    assert_eq!(downstream.counts(), (1, 1));
    worker.drain().await;
}

/// A probe may take a minute: a drain does not wait for it, and what is known by then is recorded.
#[tokio::test]
async fn a_drain_ends_the_asking_and_records_what_is_known() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.script([Does::ActAndClose]);
    downstream.says_otherwise(Says::Running);
    let tool = Tool::unkeyed("pay", &downstream).probe(&downstream, ", deadline = \"60s\"");
    let mut worker = world.worker(&[tool]).start().await;
    let producer = world.producer().await;

    let call = job("pay", json!({}));
    let id = producer.submit(&call).await;
    eventually("it is asked for", async || downstream.questions() > 0).await;
    worker.drain().await;

    assert_eq!(producer.reply_for(&id).await.status(), "unknown");
    assert_eq!(world.history(&key_of(&call)).await, ["requests", "became_unknown"]);
    assert_eq!(downstream.posts(), 1);
}

/// A key that the downstream knows with other arguments is an error that somebody should look at.
#[tokio::test]
async fn a_key_that_is_used_with_other_arguments_is_loud_and_counted() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.script([Does::Answer(422, "{\"error\":\"key reused\"}".to_owned())]);
    let tool = Tool::keyed("pay", &downstream).http("key_reused_status", "[422]");
    let mut worker = world.worker(&[tool]).start().await;
    let producer = world.producer().await;

    let reply = producer.call(&job("pay", json!({}))).await;

    assert_eq!((reply.status(), reply.kind()), ("completed", "tool_error"));
    worker.drain().await;
    assert!(worker.logged("keys_reused=1"), "{}", worker.log());
    assert!(worker.log().lines().any(|line| line.contains("\"ERROR\"") && line.contains("422")));
}
