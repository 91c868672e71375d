//! The same call again, by every road by which it can come; and calls that only look the same.

use serde_json::{Value, json};

use crate::support::{Downstream, Reply, Tool, World, job, key_of};

fn payment() -> Value {
    job("send_payment", json!({"invoice": "INV-7", "amount": "120.00"}))
}

fn with(job: &Value, field: &str, value: impl Into<Value>) -> Value {
    let mut job = job.clone();
    job[field] = value.into();
    job
}

///
#[tokio::test]
async fn the_same_call_twice_acts_once_and_is_answered_alike() {
    let world = World::new().await;
    let downstream = Downstream::collapsing().await;
    let mut worker = world.worker(&[Tool::keyed("send_payment", &downstream)]).start().await;
    let producer = world.producer().await;

    let call = payment();
    let first = producer.call(&call).await;
    let second = producer.call(&with(&call, "call_id", "toolu_of_the_retried_turn")).await;

    assert_eq!(downstream.counts(), (1, 1));
    assert_eq!((first.status(), second.status()), ("completed", "completed"));
    assert_eq!(first.content(), "{\"id\": \"pay_1\",  \"ok\":true}");
    assert_eq!(first.content(), second.content());
    assert_eq!((first.replayed(), second.replayed()), (false, true));
    assert_eq!(first.json["call_id"], call["call_id"]);
    assert_eq!(second.json["call_id"], "toolu_of_the_retried_turn");
    assert_eq!((first.key(), second.key()), (&*key_of(&call), &*key_of(&call)));
    assert_eq!(first.delivery_mode, Some(2), "a reply is persistent");
    worker.drain().await;
    assert_eq!(producer.ready("jobs").await, 0);
    assert_eq!(producer.ready("dead").await, 0);
}

/// the roads that end in another message for the same call. What
/// the queue itself repeats is tested beside the broker's faults.
#[tokio::test]
async fn every_road_of_a_repeated_turn_leads_to_one_effect() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let mut worker = world.worker(&[Tool::keyed("send_payment", &downstream)]).start().await;
    let producer = world.producer().await;
    let call = payment();
    let first = producer.call(&call).await;

    // The client reconnects, with another reply queue, and sends its pending message again.
    let reconnected = world.producer().await;
    let resent = reconnected.call(&call).await;
    // A balancer repeats the request: the very same bytes, twice in one moment.
    let (one, other) = tokio::join!(producer.call(&call), producer.call(&call));
    // A person presses send again: the model spells the same arguments in another way.
    let spelt = json!({"amount": "120.00", "invoice": "INV-7"});
    let pressed = producer.call(&with(&call, "args", spelt)).await;
    // A retry loop asks for the turn again: another response with another call id.
    let again = with(&with(&call, "call_id", "toolu_9"), "response_id", "msg_9");
    let reissued = producer.call(&again).await;
    // The turn failed and was never committed, so asking again has its turn index.
    let asked = producer.call(&with(&again, "response_id", "msg_10")).await;

    assert_eq!(downstream.counts(), (1, 1));
    for reply in [&resent, &one, &other, &pressed, &reissued, &asked] {
        assert_eq!(reply.content(), first.content());
        assert_eq!((reply.status(), reply.replayed()), ("completed", true));
    }
    worker.drain().await;
    assert_eq!(producer.ready("jobs").await, 0);
    assert_eq!(world.rows().await, 1);
}

/// an answer that is an error is an answer.
#[tokio::test]
async fn a_stored_error_is_replayed_and_the_tool_not_asked_again() {
    let world = World::new().await;
    let downstream = Downstream::collapsing().await;
    let mut worker = world.worker(&[Tool::keyed("send_payment", &downstream)]).start().await;
    let producer = world.producer().await;
    downstream.script([crate::support::Does::Answer(422, "{\"error\": \"no funds\"}".to_owned())]);

    let call = payment();
    let (first, second) = (producer.call(&call).await, producer.call(&call).await);

    assert_eq!(downstream.counts(), (1, 0));
    for reply in [&first, &second] {
        assert_eq!((reply.status(), reply.kind()), ("completed", "tool_error"));
        assert_eq!(reply.json["is_error"], true);
        assert_eq!(reply.content(), "{\"error\": \"no funds\"}");
        assert!(reply.text.contains("422"), "{}", reply.text);
    }
    worker.drain().await;
}

///
#[tokio::test]
async fn two_equal_calls_of_one_turn_both_run_and_the_second_is_logged() {
    let world = World::new().await;
    let downstream = Downstream::collapsing().await;
    let mut worker = world.worker(&[Tool::keyed("send_payment", &downstream)]).start().await;
    let producer = world.producer().await;

    let call = payment();
    let first = producer.call(&call).await;
    assert!(!worker.logged("more than once in one turn"));
    let second = producer.call(&with(&call, "ordinal", 1)).await;

    assert_eq!(downstream.counts(), (2, 2));
    assert_ne!(first.key(), second.key());
    assert_ne!(first.content(), second.content());
    assert_eq!((first.replayed(), second.replayed()), (false, false));
    worker.drain().await;
    assert_eq!(worker.times_logged("more than once in one turn"), 1);
    assert!(worker.logged("ordinals_above_zero=1"));
}

/// what each part of the key keeps apart.
#[tokio::test]
async fn another_turn_conversation_tool_or_argument_is_another_call() {
    let world = World::new().await;
    let downstream = Downstream::collapsing().await;
    let tools =
        [Tool::keyed("send_payment", &downstream), Tool::keyed("void_payment", &downstream)];
    let mut worker = world.worker(&tools).start().await;
    let producer = world.producer().await;

    let call = payment();
    let calls = [
        call.clone(),
        with(&call, "turn_index", 5),
        with(&call, "conversation_id", "another user's"),
        with(&call, "name", "void_payment"),
        with(&call, "args", json!({"invoice": "INV-7", "amount": "120.0"})),
    ];
    let mut replies: Vec<Reply> = Vec::new();
    for call in &calls {
        replies.push(producer.call(call).await);
    }

    assert_eq!(downstream.counts(), (5, 5));
    for (reply, call) in replies.iter().zip(&calls) {
        assert_eq!((reply.status(), reply.replayed()), ("completed", false));
        assert_eq!(reply.key(), key_of(call));
    }
    worker.drain().await;
    assert_eq!(world.rows().await, 5);
}

/// B38: with the separator in an id, two calls could have one key.
#[tokio::test]
async fn a_separator_in_an_id_is_refused_before_any_claim() {
    let world = World::new().await;
    let downstream = Downstream::collapsing().await;
    let mut worker = world.worker(&[Tool::keyed("send_payment", &downstream)]).start().await;
    let producer = world.producer().await;

    let in_conversation = producer.call(&with(&payment(), "conversation_id", "acct|1")).await;
    let in_name = producer.call(&with(&payment(), "name", "2|send_payment")).await;

    assert_eq!(downstream.counts(), (0, 0));
    for reply in [&in_conversation, &in_name] {
        assert_eq!((reply.status(), reply.kind(), reply.key()), ("not_run", "bad_job", ""));
    }
    worker.drain().await;
    assert_eq!(world.rows().await, 0);
    let dead = producer.take_dead().await;
    assert_eq!(dead.iter().map(|dead| dead.reason()).collect::<Vec<_>>(), ["bad_job", "bad_job"]);
    assert!(dead[0].detail().contains("conversation_id"), "{}", dead[0].detail());
}

/// A tool without an effect has no row, and runs each time.
#[tokio::test]
async fn a_read_runs_each_time_and_leaves_no_row() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let mut worker = world.worker(&[Tool::read("search_orders", &downstream)]).start().await;
    let producer = world.producer().await;

    let call = job("search_orders", json!({"query": "late"}));
    let (first, second) = (producer.call(&call).await, producer.call(&call).await);

    assert_eq!(downstream.posts(), 2);
    assert_eq!((first.status(), second.status()), ("completed", "completed"));
    assert!(!first.replayed() && !second.replayed());
    worker.drain().await;
    assert_eq!(world.rows().await, 0);
}
