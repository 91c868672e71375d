//! SIGTERM: what runs finishes, what was not begun goes back, nothing is left behind.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use crate::support::{DEADLINE, Does, Downstream, Tool, World, eventually, job, key_of};

const DRAINING: &str = "draining: nothing new is taken";

#[tokio::test]
async fn a_drain_finishes_what_runs_and_hands_back_what_does_not() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.otherwise(Does::ActAndStall);
    let tools = [Tool::unkeyed("create_ticket", &downstream).with("max_concurrency", "3")];
    let mut worker = world.worker(&tools).set("prefetch", "8").start().await;
    let producer = world.producer().await;

    for n in 0..8 {
        producer.submit(&job("create_ticket", json!({"subject": n}))).await;
    }
    downstream.wait_for_posts(3).await;
    producer.wait_until_ready("jobs", 0).await;
    worker.signal(Signal::TERM);
    worker.wait_until_said(DRAINING).await;
    producer.wait_until_ready("jobs", 5).await;
    assert_eq!((downstream.posts(), world.rows().await), (3, 3));
    assert!(worker.runs());
    downstream.release();
    let status = worker.exit(DEADLINE).await;

    assert_eq!(status.code(), Some(0));
    eventually("three replies", async || producer.replies().len() == 3).await;
    assert_eq!(downstream.counts(), (3, 3));
    assert_eq!(
        world.count("SELECT count(*) FROM callonce_calls WHERE state = 'completed'").await,
        3
    );
    assert_eq!((world.rows().await, producer.ready("jobs").await), (3, 5));

    let mut next = world.worker(&tools).start().await;
    producer.wait_for_replies(8).await;
    assert_eq!(downstream.counts(), (8, 8));
    next.drain().await;
    assert_eq!((producer.ready("jobs").await, producer.replies().len()), (0, 8));
}

/// A call that waits for its next try, of which nothing was ever sent, is not waited for.
#[tokio::test]
async fn a_drain_hands_back_a_call_of_which_nothing_was_sent() {
    let world = World::new().await;
    let mut downstream = Downstream::refusing(false).await;
    let tool = Tool::unkeyed("create_ticket", &downstream).with("lease", "\"1h\"");
    let patient = [tool.clone().retry("60s", 2)];
    let mut worker = world.worker(&patient).start().await;
    let producer = world.producer().await;

    let call = job("create_ticket", json!({"subject": "printer"}));
    let id = producer.submit(&call).await;
    worker.wait_until_logged("the request did not settle the call").await;
    worker.drain().await;
    assert_eq!((producer.ready("jobs").await, producer.replies().len()), (1, 0));
    assert_eq!(world.state(&key_of(&call)).await, "not_run");

    downstream.listen();
    let mut next = world.worker(&patient).start().await;
    assert_eq!(producer.reply_for(&id).await.status(), "completed");
    assert_eq!(downstream.counts(), (1, 1));
    next.drain().await;
}

/// A delivery that waits for another worker's attempt goes back.
#[tokio::test]
async fn a_drain_hands_back_a_delivery_that_waits_for_another_attempt() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.otherwise(Does::ActAndStall);
    let tools = [Tool::unkeyed("create_ticket", &downstream)];
    let builder = || world.worker(&tools).set("wait_for_claim", "60s");
    let mut runs = builder().set("prefetch", "1").start().await;
    let producer = world.producer().await;
    let call = job("create_ticket", json!({"subject": "slow"}));
    producer.submit(&call).await;
    downstream.wait_for_posts(1).await;
    let mut waits = builder().start().await;
    producer.submit(&call).await;
    waits.wait_until_logged("another attempt of this call is outstanding").await;

    waits.drain().await;
    producer.wait_until_ready("jobs", 1).await;
    downstream.release();
    producer.wait_for_replies(2).await;

    assert_eq!(downstream.counts(), (1, 1));
    runs.drain().await;
    assert_eq!(producer.ready("jobs").await, 0);
}

#[tokio::test]
async fn a_drain_that_takes_too_long_exits_1_and_the_next_worker_judges() {
    let world = World::new().await;
    let (keyed, unkeyed) = (Downstream::collapsing().await, Downstream::forgetful().await);
    keyed.script([Does::ActAndStall]);
    unkeyed.script([Does::ActAndStall]);
    let tools = [
        Tool::keyed("send_payment", &keyed).with("lease", "\"1s\""),
        Tool::unkeyed("create_ticket", &unkeyed).with("lease", "\"1s\""),
    ];
    let mut worker = world.worker(&tools).set("drain_timeout", "300ms").start().await;
    let producer = world.producer().await;
    let (payment, ticket) = (job("send_payment", json!({})), job("create_ticket", json!({})));
    let payment_id = producer.submit(&payment).await;
    let ticket_id = producer.submit(&ticket).await;
    keyed.wait_for_posts(1).await;
    unkeyed.wait_for_posts(1).await;

    let status = worker.terminate().await;
    assert_eq!(status.code(), Some(1));
    assert!(worker.logged("2 deliveries were still under way when the drain ended"));
    producer.wait_until_ready("jobs", 2).await;
    assert_eq!(world.state(&key_of(&payment)).await, "in_flight");
    assert_eq!(world.state(&key_of(&ticket)).await, "in_flight");

    let mut next = world.worker(&tools).start().await;
    let payment = producer.reply_for(&payment_id).await;
    let ticket = producer.reply_for(&ticket_id).await;
    assert_eq!((payment.status(), keyed.counts()), ("completed", (2, 1)));
    assert_eq!((ticket.status(), ticket.kind()), ("unknown", "worker_lost"));
    assert_eq!(unkeyed.counts(), (1, 1));
    next.drain().await;
    assert_eq!((producer.ready("jobs").await, producer.replies().len()), (0, 2));
}

#[tokio::test]
async fn a_second_signal_ends_the_worker_at_once() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.otherwise(Does::ActAndStall);
    let tools = [Tool::unkeyed("create_ticket", &downstream)];
    let mut worker = world.worker(&tools).set("drain_timeout", "10m").start().await;
    let producer = world.producer().await;
    let call = job("create_ticket", json!({}));
    producer.submit(&call).await;
    downstream.wait_for_posts(1).await;

    worker.signal(Signal::INT);
    worker.wait_until_said(DRAINING).await;
    worker.signal(Signal::TERM);
    let status = worker.exit(Duration::from_secs(10)).await;

    assert_eq!(status.code(), Some(1));
    assert!(worker.logged("1 deliveries were still under way when the drain ended"));
    producer.wait_until_ready("jobs", 1).await;
    assert_eq!(
        (world.state(&key_of(&call)).await.as_str(), downstream.counts()),
        ("in_flight", (1, 1))
    );
}
