//! Calls that wait for a person: unknown ones are resolved, held ones approved or denied.

use serde_json::{Value, json};

use crate::support::{Does, Downstream, Ran, Tool, World, eventually, job, key_of};

const WORD: [&str; 4] = ["--by", "ana", "--reason", "looked it up"];

/// `callonce ledger` with these words and the name and reason of whoever decides.
async fn decide(world: &World, words: &[&str], input: &str) -> Ran {
    let words = [&["ledger"], words, &WORD[..]].concat();
    world.run(&words, input).await
}

async fn shown(world: &World, key: &str) -> Value {
    let shown = world.run(&["ledger", "show", "--json", key], "").await;
    serde_json::from_str(&shown.out).unwrap_or_else(|error| panic!("{error}: {shown:?}"))
}

/// A call of a tool without keys whose answer was lost.
async fn unknown(world: &World, downstream: &Downstream) -> Value {
    downstream.script([Does::ActAndClose]);
    let tool = Tool::unkeyed("create_ticket", downstream)
        .with("timeout", "\"1s\"")
        .with("connect_timeout", "\"500ms\"");
    let mut worker = world.worker(&[tool]).start().await;
    let producer = world.producer().await;
    let call = job("create_ticket", json!({"subject": "printer"}));
    assert_eq!(producer.call(&call).await.status(), "unknown");
    worker.drain().await;
    call
}

#[tokio::test]
async fn what_a_person_found_is_what_every_later_delivery_is_told() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let call = unknown(&world, &downstream).await;
    let key = key_of(&call);

    let listed = world.run(&["ledger", "list", "--state", "unknown"], "").await;
    assert!(listed.out.contains(&key), "{listed:?}");
    let people = world.run(&["ledger", "show", &key], "").await;
    assert!(people.out.contains("ledger resolve"), "{people:?}");
    assert!(people.out.contains("Look in the records of the tool"), "{people:?}");
    let why = "lost in await_response: the connection was lost before any answer";
    assert!(people.out.contains(&why[..50]), "{people:?}");

    let bad = decide(&world, &["resolve", &key, "--completed", "-"], "{\"id\": ").await;
    assert_eq!((bad.code, bad.out.as_str()), (Some(1), ""), "{bad:?}");
    let found = "{ \"id\": \"T-7\", \"n\": 1.50 }";
    let resolved = decide(&world, &["resolve", &key, "--completed", "-"], found).await;
    assert_eq!((resolved.code, resolved.log.as_str()), (Some(0), ""), "{resolved:?}");
    let twice = decide(&world, &["resolve", &key, "--completed", "-"], "{}").await;
    assert_eq!(twice.code, Some(1));
    assert!(twice.log.contains("the call is completed, not unknown"), "{twice:?}");

    let mut worker = world.worker(&[Tool::unkeyed("create_ticket", &downstream)]).start().await;
    let reply = world.producer().await.call(&call).await;
    assert_eq!(
        (reply.status(), reply.replayed(), reply.content().as_str()),
        ("completed", true, found)
    );
    assert_eq!(downstream.counts(), (1, 1));
    let last = shown(&world, &key).await["history"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(
        (&last["event"], &last["by"], &last["reason"]),
        (&json!("resolved_completed"), &json!("ana"), &json!("looked it up"))
    );
    worker.drain().await;
}

#[tokio::test]
async fn that_nothing_happened_counts_only_when_no_request_can_be_on_its_way() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let call = unknown(&world, &downstream).await;
    let key = key_of(&call);

    // A second of time-out, and two in which a request that was given up may still arrive.
    world.sql("UPDATE callonce_calls SET settled_at = now()").await;
    let early = decide(&world, &["resolve", &key, "--not-run"], "").await;
    assert_eq!(early.code, Some(1), "{early:?}");
    assert!(early.log.contains("too early") && early.log.contains("wait 3s"), "{early:?}");
    assert_eq!(world.state(&key).await, "unknown");

    world.sql("UPDATE callonce_calls SET settled_at = now() - interval '3100 ms'").await;
    let resolved = decide(&world, &["resolve", &key, "--not-run"], "").await;
    assert_eq!(resolved.code, Some(0), "{resolved:?}");
    assert_eq!(world.state(&key).await, "not_run");

    let mut worker = world.worker(&[Tool::unkeyed("create_ticket", &downstream)]).start().await;
    let reply = world.producer().await.call(&call).await;
    assert_eq!((reply.status(), &reply.json["attempt"]), ("completed", &json!(2)));
    assert_eq!(downstream.posts(), 2);
    worker.drain().await;
}

/// The registry says how long a downstream may take to know of a call.
#[tokio::test]
async fn a_person_waits_as_long_as_the_registry_says() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let call = unknown(&world, &downstream).await;
    let slow =
        Tool::unkeyed("create_ticket", &downstream).probe(&downstream, ", settle_delay = \"1h\"");
    let registry = world.registry(&[slow]);

    world.sql("UPDATE callonce_calls SET settled_at = now() - interval '10 minutes'").await;
    let tools = registry.to_string_lossy();
    let words = ["--tools", &tools, "resolve", &key_of(&call), "--not-run"];
    let early = decide(&world, &words, "").await;
    assert!(early.log.contains("too early") && early.log.contains("wait 50m"), "{early:?}");
}

#[tokio::test]
async fn only_unknown_and_held_calls_can_be_decided_and_only_with_a_name_and_a_reason() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let call = unknown(&world, &downstream).await;
    let key = key_of(&call);
    for words in [&["approve", &key][..], &["deny", &key]] {
        let ran = decide(&world, words, "").await;
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.log.contains("the call is unknown, not held"), "{ran:?}");
    }
    let none = decide(&world, &["approve", &"0".repeat(32)], "").await;
    assert!(none.log.contains("no call in the ledger"), "{none:?}");
    for words in [
        &["ledger", "resolve", &key, "--not-run"][..],
        &["ledger", "resolve", &key, "--not-run", "--by", "", "--reason", "x"],
        &["ledger", "resolve", &key, "--by", "ana", "--reason", "x"],
        &["ledger", "resolve", &key, "--not-run", "--completed", "f", "--by", "a", "--reason", "x"],
        &["ledger", "approve", &key, "--by", "ana"],
    ] {
        assert_eq!(world.run(words, "").await.code, Some(2), "{words:?}");
    }
}

#[tokio::test]
async fn a_held_call_runs_once_it_is_approved_and_is_not_held_again() {
    let world = World::new().await;
    let mut downstream = Downstream::refusing(false).await;
    let tool =
        Tool::unkeyed("wire_money", &downstream).with("approval", "\"required\"").retry("50ms", 0);
    let mut worker = world.worker(&[tool]).start().await;
    let producer = world.producer().await;
    let call = job("wire_money", json!({"amount": "1000000.00"}));
    let key = key_of(&call);

    for _ in 0..2 {
        let reply = producer.call(&call).await;
        assert_eq!((reply.status(), reply.kind()), ("not_run", "held"));
        assert!(reply.replayed());
    }
    assert_eq!(world.state(&key).await, "held");
    assert_eq!(producer.ready("dead").await, 0);
    let people = world.run(&["ledger", "show", &key], "").await;
    assert!(people.out.contains("ledger approve"), "{people:?}");
    let to_send = shown(&world, &key).await["job"].clone();
    assert_eq!(key_of(&to_send), key, "the job to send is the same call: {to_send}");

    let approved = decide(&world, &["approve", &key], "").await;
    assert_eq!(approved.code, Some(0), "{approved:?}");
    assert_eq!(world.state(&key).await, "not_run");
    assert_eq!(downstream.posts(), 0, "nothing is sent before the job comes again");

    // It cannot be sent yet; what is approved stays so.
    assert_eq!(producer.call(&to_send).await.kind(), "not_sent");
    downstream.listen();
    let reply = producer.call(&to_send).await;
    assert_eq!((reply.status(), reply.replayed()), ("completed", false));
    assert_eq!(downstream.counts(), (1, 1));
    assert_eq!(world.history(&key).await[0], "approved");
    worker.drain().await;
}

#[tokio::test]
async fn a_denied_call_says_so_until_it_is_approved_after_all() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let tool = Tool::keyed("wire_money", &downstream).with("approval", "\"required\"");
    let mut worker = world.worker(&[tool]).start().await;
    let producer = world.producer().await;
    let call = job("wire_money", json!({"amount": "1.00"}));
    let key = key_of(&call);
    producer.call(&call).await;

    assert_eq!(decide(&world, &["deny", &key], "").await.code, Some(0));
    for _ in 0..2 {
        let reply = producer.call(&call).await;
        assert_eq!((reply.status(), reply.kind()), ("not_run", "denied"));
    }
    assert_eq!(world.state(&key).await, "held");
    let listed = world.run(&["ledger", "list", "--state", "held"], "").await;
    assert!(listed.out.contains("held, denied"), "{listed:?}");
    assert_eq!(decide(&world, &["approve", &key], "").await.code, Some(0));
    assert_eq!(producer.call(&call).await.status(), "completed");
    assert_eq!(downstream.counts(), (1, 1));
    assert_eq!(world.history(&key).await, ["denied", "approved"]);
    worker.drain().await;
    assert!(worker.logged("held=3"), "{}", worker.log());
}

/// A tool that needs approval from now on: what had not run before is held too.
#[tokio::test]
async fn a_call_that_had_not_run_is_held_when_its_tool_comes_to_need_approval() {
    let world = World::new().await;
    let downstream = Downstream::refusing(false).await;
    let tool = Tool::unkeyed("wire_money", &downstream).retry("50ms", 0);
    let producer = world.producer().await;
    let call = job("wire_money", json!({}));
    let mut worker = world.worker(std::slice::from_ref(&tool)).start().await;
    assert_eq!(producer.call(&call).await.kind(), "not_sent");
    worker.drain().await;

    let mut worker = world.worker(&[tool.with("approval", "\"required\"")]).start().await;
    assert_eq!(producer.call(&call).await.kind(), "held");
    worker.drain().await;
}

/// What is shown and what is said may be long.
#[tokio::test]
async fn a_long_answer_is_shown_and_one_that_is_too_long_is_refused() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let call = unknown(&world, &downstream).await;
    let key = key_of(&call);
    let long = format!("\"{}\"", "x".repeat(1024 * 1024));
    let refused = decide(&world, &["resolve", &key, "--completed", "-"], &long).await;
    assert_eq!(refused.code, Some(1));
    assert!(refused.log.contains("longer than result_max"), "{refused:?}");

    let answer = format!("\"{}\"", "x".repeat(100_000));
    assert_eq!(decide(&world, &["resolve", &key, "--completed", "-"], &answer).await.code, Some(0));
    let people = world.run(&["ledger", "show", &key], "").await;
    assert_eq!(people.code, Some(0), "{}", people.log);
    assert!(people.out.contains(&answer));
}

/// A name that an argument has cannot carry the key as well: the model is told what to mend.
#[tokio::test]
async fn an_argument_with_the_name_of_the_keys_field_is_a_bad_argument() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let tool = Tool::keyed("pay", &downstream).http("key_field", "\"a/b\"");
    let mut worker = world.worker(&[tool]).start().await;
    let producer = world.producer().await;
    let reply = producer.call(&job("pay", json!({"a/b": 1}))).await;
    assert_eq!((reply.status(), reply.kind()), ("not_run", "bad_arguments"));
    assert_eq!(reply.json["error"]["violations"][0]["pointer"], "/a~1b");
    let reply = producer.call(&job("pay", json!({"n": 1}))).await;
    assert_eq!(reply.status(), "completed");
    let posts = downstream.all();
    let [post] = &posts[..] else { panic!("{} requests", posts.len()) };
    assert_eq!(
        (post.body.as_str(), &post.keys),
        (&*format!("{{\"a/b\":\"{}\",\"n\":1}}", reply.key()), &vec![])
    );
    worker.drain().await;
}

/// Streams that end without their terminal event are listed until somebody says that it is mended.
#[tokio::test]
async fn the_audit_lists_streams_without_a_terminal_event_until_they_are_mended() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let stream = "event: progress\ndata: {\"pct\": 50}\n\n";
    let unended = || Does::AnswerWith(200, "content-type: text/event-stream", stream.to_owned());
    downstream.script([unended(), unended()]);
    let tool = Tool::read("start_report", &downstream);
    let mut worker = world.worker(std::slice::from_ref(&tool)).start().await;
    let producer = world.producer().await;
    for n in 0..2 {
        let reply = producer.call(&job("start_report", json!({"n": n}))).await;
        assert_eq!(
            (reply.status(), &reply.json["warnings"]),
            ("completed", &json!(["missing_terminal_event"]))
        );
        assert_eq!(reply.content(), "{\"pct\": 50}");
    }
    worker.drain().await;

    let registry = world.registry(&[tool]);
    let tools = registry.to_string_lossy();
    let audit = async || {
        let ran = world.run(&["tools", "audit", "--json", "--tools", &tools], "").await;
        serde_json::from_str::<Value>(&ran.out).unwrap()["unended_streams"].clone()
    };
    eventually("both streams are counted", async || audit().await["streams"] == 2).await;
    let text = world.run(&["tools", "audit", "--tools", &tools], "").await;
    assert!(text.out.contains("2 of its event streams ended without a terminal event"), "{text:?}");
    let mended = ["tools", "audit", "--mended", "start_report"];
    assert_eq!(world.run(&mended, "").await.code, Some(0));
    assert_eq!(audit().await, Value::Null);
    assert_eq!(world.run(&mended, "").await.code, Some(1));
}
