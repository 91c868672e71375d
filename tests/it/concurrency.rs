//! Duplicates in one moment: one attempt acts, the others wait, are parked, or take over.

use serde_json::json;

use crate::support::{Does, Downstream, Reply, Tool, World, eventually, job, key_of};

const OUTSTANDING: &str = "another attempt of this call is outstanding";
const PARKED: &str = "waits in a delay queue";

fn all_alike(replies: &[Reply]) -> bool {
    let content = replies[0].content();
    replies.iter().all(|reply| reply.status() == "completed" && reply.content() == content)
}

/// a hundred claims for one key, on two workers.
#[tokio::test]
async fn a_hundred_deliveries_of_one_call_in_one_moment_send_one_request() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.otherwise(Does::ActAndStall);
    let tools = [Tool::unkeyed("create_ticket", &downstream)];
    let builder = || world.worker(&tools).set("wait_for_claim", "20s");
    let (mut one, mut two) = (builder().start().await, builder().start().await);
    let producer = world.producer().await;

    let text = job("create_ticket", json!({"subject": "one of a hundred"})).to_string();
    for _ in 0..100 {
        producer.submit_text(&text).await;
    }
    eventually("99 deliveries that wait", async || {
        one.times_logged(OUTSTANDING) + two.times_logged(OUTSTANDING) == 99
    })
    .await;
    assert!(one.logged(OUTSTANDING) && two.logged(OUTSTANDING), "both workers had some");
    assert!(producer.replies().is_empty());
    downstream.release();
    producer.wait_for_replies(100).await;

    let replies = producer.replies();
    assert!(all_alike(&replies));
    assert_eq!(replies.iter().filter(|reply| !reply.replayed()).count(), 1);
    assert_eq!(downstream.counts(), (1, 1));
    one.drain().await;
    two.drain().await;
    assert_eq!((producer.ready("jobs").await, producer.replies().len()), (0, 100));
    assert_eq!(world.rows().await, 1);
}

/// B32: a loser of the race for a key ends as waiting or answered, never as an error.
#[tokio::test]
async fn each_of_many_calls_published_twice_in_one_moment_acts_once() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let tools = [Tool::keyed("send_payment", &downstream)];
    let (mut one, mut two) =
        (world.worker(&tools).start().await, world.worker(&tools).start().await);
    let producer = world.producer().await;

    let calls: Vec<_> = (0..100).map(|n| job("send_payment", json!({"invoice": n}))).collect();
    for call in &calls {
        tokio::join!(producer.submit(call), producer.submit(call));
    }
    producer.wait_for_replies(200).await;

    assert_eq!(downstream.counts(), (100, 100));
    for call in &calls {
        let key = key_of(call);
        let replies: Vec<_> =
            producer.replies().into_iter().filter(|reply| reply.key() == key).collect();
        assert_eq!(replies.len(), 2);
        assert!(all_alike(&replies));
        assert_eq!(downstream.posts_of(&key), 1);
    }
    one.drain().await;
    two.drain().await;
    assert_eq!((producer.ready("jobs").await, producer.ready("dead").await), (0, 0));
}

/// who has waited long enough is parked, and answered when it comes back.
#[tokio::test]
async fn a_delivery_that_waits_too_long_is_parked_and_answered_later() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.otherwise(Does::ActAndStall);
    let tools = [Tool::unkeyed("create_ticket", &downstream)];
    let mut worker = world.worker(&tools).set("wait_for_claim", "100ms").start().await;
    let producer = world.producer().await;

    let call = job("create_ticket", json!({"subject": "slow"}));
    let first = producer.submit(&call).await;
    downstream.wait_for_posts(1).await;
    let second = producer.submit(&call).await;
    // More often than a job's rounds: a wait is no round.
    eventually("the job is parked four times", async || worker.times_logged(PARKED) >= 4).await;
    assert!(producer.replies().is_empty());
    downstream.release();
    let (first, second) = (producer.reply_for(&first).await, producer.reply_for(&second).await);

    assert!(all_alike(&[first.clone(), second.clone()]));
    assert_eq!((first.replayed(), second.replayed()), (false, true));
    assert_eq!(downstream.counts(), (1, 1));
    worker.drain().await;
    for queue in ["jobs", "dead", "retry.200"] {
        assert_eq!(producer.ready(queue).await, 0, "{queue}");
    }
}

/// Waiting is bounded: who finds no place to wait in is parked at once.
#[tokio::test]
async fn more_waiting_deliveries_than_may_wait_are_parked_at_once() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.otherwise(Does::ActAndStall);
    let tools = [Tool::keyed("send_payment", &downstream)];
    let builder = world.worker(&tools).set("wait_for_claim", "20s").set("max_waiting", "1");
    let mut worker = builder.start().await;
    let producer = world.producer().await;

    let call = job("send_payment", json!({"invoice": "INV-7"}));
    producer.submit(&call).await;
    downstream.wait_for_posts(1).await;
    producer.submit(&call).await;
    worker.wait_until_logged(OUTSTANDING).await;
    producer.submit(&call).await;
    worker.wait_until_logged(PARKED).await;
    downstream.release();
    producer.wait_for_replies(3).await;

    assert!(all_alike(&producer.replies()));
    assert_eq!(downstream.counts(), (1, 1));
    worker.drain().await;
    assert_eq!(producer.ready("jobs").await, 0);
}

/// A replay does not wait behind running tools.
#[tokio::test]
async fn a_stored_outcome_is_replayed_while_every_permit_is_taken() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let tools = [Tool::keyed("send_payment", &downstream).with("max_concurrency", "1")];
    let mut worker = world.worker(&tools).start().await;
    let producer = world.producer().await;

    let done = job("send_payment", json!({"invoice": "INV-7"}));
    let first = producer.call(&done).await;
    downstream.otherwise(Does::ActAndStall);
    let slow = producer.submit(&job("send_payment", json!({"invoice": "INV-8"}))).await;
    downstream.wait_for_posts(2).await;
    let again = producer.call(&done).await;

    assert_eq!(again.content(), first.content());
    assert!(producer.replies_for(&slow).is_empty());
    downstream.release();
    producer.reply_for(&slow).await;
    assert_eq!(downstream.counts(), (2, 2));
    worker.drain().await;
}

/// Nobody holds a delivery for ever: what finds no permit in time is parked, with no claim.
#[tokio::test]
async fn a_delivery_that_finds_no_permit_in_time_is_parked_without_a_claim() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.otherwise(Does::ActAndStall);
    let tools = [Tool::unkeyed("create_ticket", &downstream).with("max_concurrency", "1")];
    let mut worker = world.worker(&tools).set("hold_max", "100ms").start().await;
    let producer = world.producer().await;

    producer.submit(&job("create_ticket", json!({"subject": "first"}))).await;
    downstream.wait_for_posts(1).await;
    let second = job("create_ticket", json!({"subject": "second"}));
    producer.submit(&second).await;
    eventually("it is parked more than once", async || worker.times_logged(PARKED) >= 2).await;
    assert_eq!(world.state(&key_of(&second)).await, "none");
    downstream.release();
    producer.wait_for_replies(2).await;

    assert_eq!((downstream.counts(), downstream.running_max()), ((2, 2), 1));
    worker.drain().await;
    assert_eq!((producer.ready("jobs").await, producer.ready("dead").await), (0, 0));
}

/// the row of a lost worker is found, waited for, and taken over.
#[tokio::test]
async fn a_keyed_call_of_a_lost_worker_is_taken_over_when_its_lease_ran_out() {
    let world = World::new().await;
    let downstream = Downstream::collapsing().await;
    downstream.script([Does::ActAndStall]);
    let tools = [Tool::keyed("send_payment", &downstream).with("lease", "\"3s\"")];
    let mut lost = world.worker(&tools).set("worker_name", "lost").start().await;
    let producer = world.producer().await;

    let call = job("send_payment", json!({"invoice": "INV-7"}));
    let id = producer.submit(&call).await;
    downstream.wait_for_posts(1).await;
    let seen = world.row(&key_of(&call)).await.expect("the claim is committed before the request");
    assert_eq!((&*seen.state, seen.worker.as_deref()), ("in_flight", Some("lost")));
    // It consumes already, so that the redelivery finds a lease that stands.
    let mut next = world.worker(&tools).set("worker_name", "next").start().await;
    lost.kill();
    let reply = producer.reply_for(&id).await;

    assert!(next.logged(OUTSTANDING), "it waited for the lease");
    assert_eq!((reply.status(), reply.replayed()), ("completed", false));
    assert_eq!(reply.json["attempt"], 2);
    assert_eq!(reply.content(), "{\"id\": \"pay_1\",  \"ok\":true}");
    assert_eq!(downstream.counts(), (2, 1));
    assert_eq!(downstream.posts_of(&key_of(&call)), 2);
    let row = world.row(&key_of(&call)).await.expect("a row");
    assert_eq!((&*row.state, row.attempt, row.lapses), ("completed", 2, 0));
    assert_eq!(row.worker.as_deref(), Some("next"));
    assert_eq!(world.history(&key_of(&call)).await, ["takeover"]);
    next.drain().await;
    assert_eq!((producer.ready("jobs").await, producer.replies().len()), (0, 1));
}

/// A-079, B35: what nobody deduplicates is never sent again.
#[tokio::test]
async fn an_unkeyed_call_of_a_lost_worker_becomes_unknown_and_is_not_sent_again() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.script([Does::ActAndStall]);
    let tools = [Tool::unkeyed("create_ticket", &downstream).with("lease", "\"1s\"")];
    let mut lost = world.worker(&tools).start().await;
    let producer = world.producer().await;

    let call = job("create_ticket", json!({"subject": "printer"}));
    let id = producer.submit(&call).await;
    downstream.wait_for_posts(1).await;
    lost.kill();
    let mut next = world.worker(&tools).start().await;
    let reply = producer.reply_for(&id).await;
    let again = producer.call(&call).await;

    for reply in [&reply, &again] {
        assert_eq!((reply.status(), reply.kind()), ("unknown", "worker_lost"));
        assert_eq!((reply.replayed(), &reply.json["content"]), (true, &json!(null)));
        let message = reply.json["error"]["message"].as_str().expect("a message");
        for part in ["unknown", "look it up by its key", "do not resubmit"] {
            assert!(message.contains(part), "{message}");
        }
    }
    assert_eq!(downstream.counts(), (1, 1));
    assert_eq!(world.history(&key_of(&call)).await, ["became_unknown"]);
    next.drain().await;
    assert_eq!((producer.ready("jobs").await, producer.ready("dead").await), (0, 0));
}

/// The crowds of slow tools make room for the calls of another, and each of their calls runs in the end.
#[tokio::test]
async fn slow_tools_at_their_limits_do_not_stop_the_others() {
    let world = World::new().await;
    let (slow, quick) = (Downstream::forgetful().await, Downstream::forgetful().await);
    slow.otherwise(Does::ActAndStall);
    let tools = [
        Tool::keyed("send_payment", &slow).with("max_concurrency", "1"),
        Tool::keyed("refund_payment", &slow).with("max_concurrency", "1"),
        Tool::keyed("create_ticket", &quick),
    ];
    let mut worker = world.worker(&tools).set("prefetch", "10").start().await;
    let producer = world.producer().await;

    for invoice in 0..10 {
        producer.submit(&job("send_payment", json!({"invoice": invoice}))).await;
        producer.submit(&job("refund_payment", json!({"invoice": invoice}))).await;
    }
    slow.wait_for_posts(2).await;
    let ticket = producer.call(&job("create_ticket", json!({"subject": "quick"}))).await;
    assert_eq!(ticket.status(), "completed");
    assert_eq!((slow.posts(), producer.replies().len()), (2, 1));
    assert!(worker.logged(PARKED), "somebody gave way");

    slow.otherwise(Does::Act);
    slow.release();
    producer.wait_for_replies(21).await;
    assert_eq!((slow.counts(), slow.running_max()), ((20, 20), 2));
    worker.drain().await;
    for queue in ["jobs", "dead", "retry.200", "retry.400"] {
        assert_eq!(producer.ready(queue).await, 0, "{queue}");
    }
}

/// A repeat that waits for a delivery of its own worker asks for itself where that has no answer.
#[tokio::test]
async fn a_repeat_asks_for_itself_when_the_first_was_not_answered() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.script([Does::ActAndStall]);
    let tool =
        Tool::unkeyed("create_ticket", &downstream).timeout("2s").with("connect_timeout", "\"1s\"");
    let mut worker = world.worker(&[tool]).set("wait_for_claim", "20s").start().await;
    let producer = world.producer().await;

    let call = job("create_ticket", json!({"subject": "lost"}));
    let first = producer.submit(&call).await;
    downstream.wait_for_posts(1).await;
    let second = producer.submit(&call).await;
    worker.wait_until_logged(OUTSTANDING).await;
    let (first, second) = (producer.reply_for(&first).await, producer.reply_for(&second).await);

    assert_eq!((first.status(), second.status()), ("unknown", "unknown"));
    assert_eq!((first.replayed(), second.replayed()), (false, true));
    assert_eq!(downstream.posts(), 1);
    downstream.release();
    worker.drain().await;
}
