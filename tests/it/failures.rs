//! What a tool's failure permits: known not to have happened, or perhaps.

use serde_json::json;

use crate::support::{Does, Downstream, Tool, World, eventually, job, key_of};

fn no_answer(status: u16) -> Does {
    Does::Answer(status, "{\"error\":\"no\"}".to_owned())
}

/// B37, B43.
#[tokio::test]
async fn a_refusal_before_any_work_is_tried_again_within_the_budget() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.script([no_answer(503), no_answer(429)]);
    let mut worker = world.worker(&[Tool::unkeyed("create_ticket", &downstream)]).start().await;
    let producer = world.producer().await;

    let call = job("create_ticket", json!({"subject": "printer"}));
    let reply = producer.call(&call).await;

    assert_eq!((reply.status(), &reply.json["attempt"]), ("completed", &json!(1)));
    assert_eq!(downstream.counts(), (3, 1));
    assert_eq!(downstream.posts_of(&key_of(&call)), 3);
    worker.drain().await;
    assert_eq!(worker.times_logged("waits in a delay queue"), 0);
}

/// A downstream that asks for more time than the round has left gets it in a delay queue.
#[tokio::test]
async fn a_retry_after_longer_than_the_budget_ends_the_round() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.script([Does::AnswerWith(503, "retry-after: 60", "{}".to_owned())]);
    let mut worker = world.worker(&[Tool::keyed("send_payment", &downstream)]).start().await;
    let producer = world.producer().await;

    let reply = producer.call(&job("send_payment", json!({}))).await;

    assert_eq!((reply.status(), &reply.json["attempt"]), ("completed", &json!(2)));
    assert_eq!(downstream.counts(), (2, 1));
    worker.drain().await;
    assert_eq!(worker.times_logged("waits in a delay queue"), 1);
}

#[tokio::test]
async fn what_was_never_sent_goes_through_its_rounds_and_ends_as_not_run() {
    let world = World::new().await;
    let mut downstream = Downstream::refusing(false).await;
    let tools = [Tool::unkeyed("create_ticket", &downstream).retry("50ms", 2)];
    let mut worker = world.worker(&tools).start().await;
    let producer = world.producer().await;

    let call = job("create_ticket", json!({"subject": "printer"}));
    let reply = producer.call(&call).await;

    assert_eq!((reply.status(), reply.kind()), ("not_run", "not_sent"));
    assert_eq!(reply.json["error"]["phase"], "connect");
    assert_eq!(reply.json["attempt"], 3);
    assert_eq!(world.state(&key_of(&call)).await, "not_run");
    assert_eq!(worker.times_logged("waits in a delay queue"), 2);
    let dead = producer.wait_for_dead(1).await;
    assert_eq!(
        (&*dead[0].reason(), &*dead[0].header("x-callonce-answered")),
        ("not_sent", "not_run")
    );
    assert_eq!(dead[0].header("x-callonce-round"), "LongUInt(2)");

    // Nothing has happened under this key so far; the same job may still run it.
    downstream.listen();
    let run = producer.call(&call).await;
    assert_eq!(
        (run.status(), run.replayed(), &run.json["attempt"]),
        ("completed", false, &json!(4))
    );
    assert_eq!(downstream.counts(), (1, 1));
    worker.drain().await;
    assert_eq!(producer.ready("jobs").await, 0);
}

#[tokio::test]
async fn what_was_not_sent_in_one_round_is_sent_in_the_next() {
    let world = World::new().await;
    let mut downstream = Downstream::refusing(false).await;
    let tools = [Tool::unkeyed("create_ticket", &downstream).retry("50ms", 20)];
    let mut worker = world.worker(&tools).start().await;
    let producer = world.producer().await;

    let id = producer.submit(&job("create_ticket", json!({"subject": "printer"}))).await;
    worker.wait_until_logged("waits in a delay queue").await;
    downstream.listen();
    let reply = producer.reply_for(&id).await;

    assert_eq!(reply.status(), "completed");
    assert_eq!(downstream.counts(), (1, 1));
    worker.drain().await;
    assert_eq!((producer.ready("jobs").await, producer.ready("dead").await), (0, 0));
}

#[tokio::test]
async fn an_ambiguous_unkeyed_call_is_unknown_at_once_and_never_sent_again() {
    for does in [Does::ActAndClose, Does::ActAndCut, Does::Close, no_answer(500), no_answer(504)] {
        let world = World::new().await;
        let downstream = Downstream::forgetful().await;
        downstream.script([does.clone()]);
        let mut worker = world.worker(&[Tool::unkeyed("create_ticket", &downstream)]).start().await;
        let producer = world.producer().await;

        let call = job("create_ticket", json!({"subject": "printer"}));
        let first = producer.call(&call).await;
        let second = producer.call(&call).await;

        for reply in [&first, &second] {
            assert_eq!((reply.status(), reply.kind()), ("unknown", "ambiguous"), "{does:?}");
            assert!(reply.text.contains("do not resubmit"), "{}", reply.text);
        }
        assert_eq!((first.replayed(), second.replayed()), (false, true));
        assert_eq!(downstream.posts(), 1, "{does:?}");
        assert_eq!(world.history(&key_of(&call)).await, ["requests", "became_unknown"]);
        worker.drain().await;
        assert_eq!((producer.ready("jobs").await, producer.ready("dead").await), (0, 0));
    }
}

#[tokio::test]
async fn an_ambiguous_keyed_call_is_sent_again_under_its_key_and_acts_once() {
    for does in [Does::ActAndClose, Does::ActAndCut, Does::Close, no_answer(500), no_answer(504)] {
        let world = World::new().await;
        let downstream = Downstream::collapsing().await;
        downstream.script([does.clone()]);
        let mut worker = world.worker(&[Tool::keyed("send_payment", &downstream)]).start().await;
        let producer = world.producer().await;

        let call = job("send_payment", json!({"invoice": "INV-7"}));
        let reply = producer.call(&call).await;

        assert_eq!((reply.status(), &reply.json["attempt"]), ("completed", &json!(1)), "{does:?}");
        assert_eq!(downstream.counts(), (2, 1), "{does:?}");
        assert_eq!(downstream.posts_of(&key_of(&call)), 2);
        worker.drain().await;
        assert_eq!(world.history(&key_of(&call)).await, ["requests"]);
    }
}

/// The answer to a resend is not always the answer to the call.
#[tokio::test]
async fn an_error_after_an_ambiguous_request_does_not_settle_the_call() {
    let world = World::new().await;
    let downstream = Downstream::collapsing().await;
    downstream.script([Does::ActAndClose]);
    downstream.otherwise(no_answer(401));
    let tools = [Tool::keyed("send_payment", &downstream).retry("100ms", 0)];
    let mut worker = world.worker(&tools).start().await;
    let producer = world.producer().await;

    let call = job("send_payment", json!({"invoice": "INV-7"}));
    let unclear = producer.call(&call).await;
    assert_eq!((unclear.status(), unclear.kind()), ("unknown", "ambiguous"));
    assert!(downstream.posts() >= 2, "it was sent again");
    assert_eq!((downstream.effects(), &*world.state(&key_of(&call)).await), (1, "unknown"));

    // The token is right again: the same key brings the answer to light.
    downstream.otherwise(Does::Act);
    let clear = producer.call(&call).await;
    assert_eq!((clear.status(), clear.replayed()), ("completed", false));
    assert_eq!(clear.content(), "{\"id\": \"pay_1\",  \"ok\":true}");
    assert_eq!(downstream.effects(), 1);
    worker.drain().await;
    assert_eq!(producer.ready("dead").await, 0);
}

/// A refused connect after an ambiguous request changes nothing: it is not "not run".
#[tokio::test]
async fn a_refusal_after_an_ambiguous_request_does_not_make_it_not_run() {
    let world = World::new().await;
    let downstream = Downstream::collapsing().await;
    downstream.script([Does::ActAndClose]);
    downstream.otherwise(no_answer(503));
    let tools = [Tool::keyed("send_payment", &downstream).retry("100ms", 1)];
    let mut worker = world.worker(&tools).start().await;
    let producer = world.producer().await;

    let call = job("send_payment", json!({"invoice": "INV-7"}));
    let reply = producer.call(&call).await;

    assert_eq!((reply.status(), reply.kind()), ("unknown", "ambiguous"));
    assert_eq!(reply.json["attempt"], 2);
    let row = world.row(&key_of(&call)).await.expect("a row");
    assert_eq!((&*row.state, row.maybe), ("unknown", true));
    assert_eq!(downstream.effects(), 1);
    worker.drain().await;
    assert_eq!(producer.ready("dead").await, 0);
}

/// B35: the lease is for lost workers, not for slow tools.
#[tokio::test]
async fn a_lease_shorter_than_the_tools_time_is_renewed_for_as_long_as_it_runs() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.otherwise(Does::ActAndStall);
    let tools = [Tool::unkeyed("create_ticket", &downstream).with("lease", "\"2s\"")];
    let builder = || world.worker(&tools).set("wait_for_claim", "20s");
    let (mut one, mut two) = (builder().start().await, builder().start().await);
    let producer = world.producer().await;

    let call = job("create_ticket", json!({"subject": "slow"}));
    let first = producer.submit(&call).await;
    downstream.wait_for_posts(1).await;
    let second = producer.submit(&call).await;
    eventually("the claim is older than two leases and stands", async || {
        let query = "SELECT count(*) FROM callonce_calls
                     WHERE state = 'in_flight' AND lease_until > now()
                       AND now() > claimed_at + interval '5 seconds'";
        world.count(query).await == 1
    })
    .await;
    downstream.release();
    let (first, second) = (producer.reply_for(&first).await, producer.reply_for(&second).await);

    assert_eq!((first.status(), second.status()), ("completed", "completed"));
    assert_eq!((first.content(), &first.json["attempt"]), (second.content(), &json!(1)));
    assert_eq!(downstream.counts(), (1, 1));
    assert!(world.history(&key_of(&call)).await.is_empty());
    one.drain().await;
    two.drain().await;
}

/// A tool that never answers is given up at its timeout: ambiguous, not forgotten.
#[tokio::test]
async fn a_request_over_its_timeout_is_ambiguous() {
    let world = World::new().await;
    let downstream = Downstream::collapsing().await;
    downstream.script([Does::ActAndStall]);
    let tools = [Tool::keyed("send_payment", &downstream)
        .with("timeout", "\"500ms\"")
        .with("connect_timeout", "\"400ms\"")];
    let mut worker = world.worker(&tools).start().await;
    let producer = world.producer().await;

    let call = job("send_payment", json!({"invoice": "INV-7"}));
    let reply = producer.call(&call).await;

    assert_eq!(reply.status(), "completed");
    assert_eq!(downstream.counts(), (2, 1));
    worker.drain().await;
    assert!(worker.logged("no answer within 500ms"));
}

/// Same key means same place: what was sent to one is not sent to another.
#[tokio::test]
async fn an_unknown_call_is_not_sent_again_to_another_place() {
    let world = World::new().await;
    let downstream = Downstream::collapsing().await;
    downstream.script([Does::ActAndClose]);
    let tool = Tool::keyed("send_payment", &downstream).retry("1ms", 0);
    let mut older = world.worker(std::slice::from_ref(&tool)).start().await;
    let producer = world.producer().await;
    let call = job("send_payment", json!({"invoice": "INV-7"}));
    let first = producer.call(&call).await;
    older.drain().await;

    let moved = tool.clone().at(downstream.url("/v2/calls"));
    let mut newer = world.worker(&[moved]).start().await;
    let second = producer.call(&call).await;
    newer.drain().await;
    assert_eq!(downstream.counts(), (1, 1));
    let mut back = world.worker(&[tool]).start().await;
    let third = producer.call(&call).await;
    back.drain().await;

    assert_eq!((first.status(), second.status()), ("unknown", "unknown"));
    assert_eq!((first.replayed(), second.replayed()), (false, true));
    assert_eq!((third.status(), downstream.counts()), ("completed", (2, 1)));
    assert_eq!((producer.ready("jobs").await, producer.ready("dead").await), (0, 0));
}

/// A key that the downstream may have forgotten collapses nothing.
#[tokio::test]
async fn a_keyed_call_whose_key_may_be_forgotten_is_not_sent_again() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.script([Does::ActAndClose]);
    // A resend could take until its time-out, and by then the key may be gone.
    let tools = [Tool::keyed("send_payment", &downstream)
        .with("timeout", "\"10s\"")
        .with("key_memory", "\"5s\"")];
    let mut worker = world.worker(&tools).start().await;
    let producer = world.producer().await;

    let call = job("send_payment", json!({"invoice": "INV-7"}));
    let (first, second) = (producer.call(&call).await, producer.call(&call).await);

    for reply in [&first, &second] {
        assert_eq!((reply.status(), reply.kind()), ("unknown", "ambiguous"));
    }
    assert_eq!(downstream.counts(), (1, 1));
    worker.drain().await;
    assert_eq!((producer.ready("jobs").await, producer.ready("dead").await), (0, 0));
}

/// A read has no effect to be unknown about.
#[tokio::test]
async fn a_read_that_is_never_answered_is_repeated_and_ends_as_not_run() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.otherwise(no_answer(500));
    let tools = [Tool::read("search_orders", &downstream).retry("50ms", 1)];
    let mut worker = world.worker(&tools).start().await;
    let producer = world.producer().await;

    let call = job("search_orders", json!({"query": "late"}));
    let reply = producer.call(&call).await;

    assert_eq!((reply.status(), reply.kind()), ("not_run", "ambiguous"));
    assert!(downstream.posts() >= 2, "each round sends at least one request");
    let dead = producer.wait_for_dead(1).await;
    assert_eq!((&*dead[0].reason(), dead[0].body.clone()), ("ambiguous", call.to_string().into()));
    worker.drain().await;
    assert_eq!((world.rows().await, producer.ready("jobs").await), (0, 0));
}
