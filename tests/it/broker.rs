//! The broker's faults: lost connections, deleted queues, wrong addresses.

use std::time::Duration;

use lapin::types::{AMQPValue, FieldTable};
use serde_json::json;

use crate::support::{DEADLINE, Does, Downstream, Proxy, Publication, Tool, World, job, key_of};

/// A-044, B04: an ack never crosses sessions, and a lost one costs a replay.
#[tokio::test]
async fn a_consuming_connection_lost_while_a_tool_runs_costs_a_replay_and_no_request() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.otherwise(Does::ActAndStall);
    let tools = [Tool::unkeyed("create_ticket", &downstream)];
    let (proxy, by_proxy) = Proxy::before(&world.amqp_url).await;
    let builder = world.worker(&tools).env("AMQP_URL", &by_proxy).set("wait_for_claim", "30s");
    let mut worker = builder.start().await;
    let producer = world.producer().await;

    let call = job("create_ticket", json!({"subject": "printer"}));
    let id = producer.submit(&call).await;
    downstream.wait_for_posts(1).await;
    assert_eq!(proxy.cut_named("consumes"), 1);
    worker.wait_until_said_times("consuming", 2).await;
    // The redelivery waits for the attempt that the lost session began.
    worker.wait_until_logged("another attempt of this call is outstanding").await;
    downstream.release();
    producer.wait_for_replies(2).await;

    let replies = producer.replies_for(&id);
    assert_eq!(replies.len(), 2);
    assert_eq!(replies[0].content(), replies[1].content());
    assert_eq!(replies.iter().filter(|reply| reply.replayed()).count(), 1);
    assert_eq!(downstream.counts(), (1, 1));
    assert_eq!(world.state(&key_of(&call)).await, "completed");
    worker.drain().await;
    assert_eq!(worker.times_logged("not acked: the delivery comes again"), 1);
    assert!(worker.logged("acks_lost=1"));
    assert_eq!((producer.ready("jobs").await, producer.replies().len()), (0, 2));
}

/// B06.
#[tokio::test]
async fn a_jobs_queue_deleted_while_a_tool_runs_is_declared_and_consumed_again() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.script([Does::ActAndStall]);
    let mut worker = world.worker(&[Tool::unkeyed("create_ticket", &downstream)]).start().await;
    let producer = world.producer().await;

    let call = job("create_ticket", json!({"subject": "printer"}));
    let id = producer.submit(&call).await;
    downstream.wait_for_posts(1).await;
    producer.delete("jobs").await;
    worker.wait_until_said_times("consuming", 2).await;
    downstream.release();
    let first = producer.reply_for(&id).await;
    let again = producer.call(&call).await;
    let other = producer.call(&job("create_ticket", json!({"subject": "screen"}))).await;

    assert_eq!((first.status(), other.status()), ("completed", "completed"));
    assert_eq!((again.content(), again.replayed()), (first.content(), true));
    assert_eq!(downstream.counts(), (2, 2));
    assert!(worker.logged("the broker cancelled the consumer"));
    worker.drain().await;
    assert_eq!(producer.ready("jobs").await, 0);
}

#[tokio::test]
async fn a_publishing_connection_lost_while_a_tool_runs_is_rebuilt_for_its_reply() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.script([Does::Act, Does::ActAndStall]);
    let (proxy, by_proxy) = Proxy::before(&world.amqp_url).await;
    let tools = [Tool::unkeyed("create_ticket", &downstream)];
    let mut worker = world.worker(&tools).env("AMQP_URL", &by_proxy).start().await;
    let producer = world.producer().await;

    // The connection is made for the first reply.
    producer.call(&job("create_ticket", json!({"subject": "first"}))).await;
    let id = producer.submit(&job("create_ticket", json!({"subject": "second"}))).await;
    downstream.wait_for_posts(2).await;
    assert_eq!(proxy.cut_named("publishes"), 1);
    downstream.release();
    let reply = producer.reply_for(&id).await;

    assert_eq!((reply.status(), reply.replayed()), ("completed", false));
    assert_eq!(downstream.counts(), (2, 2));
    worker.drain().await;
    assert_eq!(worker.times_said("consuming"), 1, "the consuming session lived on");
    assert!(!worker.logged("not acked"));
    assert_eq!(producer.ready("jobs").await, 0);
}

/// A broker that is away for a while is waited for, with what was done meanwhile kept.
#[tokio::test]
async fn a_broker_that_comes_back_gets_the_reply_of_what_ran_meanwhile() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.otherwise(Does::ActAndStall);
    let (proxy, by_proxy) = Proxy::before(&world.amqp_url).await;
    let tools = [Tool::unkeyed("create_ticket", &downstream)];
    let mut worker = world.worker(&tools).env("AMQP_URL", &by_proxy).start().await;
    let producer = world.producer().await;

    let call = job("create_ticket", json!({"subject": "printer"}));
    let id = producer.submit(&call).await;
    downstream.wait_for_posts(1).await;
    proxy.refuse(true);
    proxy.cut();
    worker.wait_until_logged("no consuming session; building a new one").await;
    downstream.release();
    worker.wait_until_logged("not confirmed; publishing again").await;
    assert_eq!(world.state(&key_of(&call)).await, "completed");
    proxy.refuse(false);
    let reply = producer.reply_for(&id).await;

    assert_eq!(reply.status(), "completed");
    assert_eq!(downstream.counts(), (1, 1));
    producer.wait_until_ready("jobs", 0).await;
    worker.wait_until_said_times("consuming", 2).await;
    worker.drain().await;
    assert_eq!(producer.ready("jobs").await, 0);
}

#[tokio::test]
async fn a_queue_with_other_arguments_is_one_error_that_names_it() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let producer = world.producer().await;
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("classic".into()));
    producer.declare("jobs", arguments).await;

    let mut worker = world.worker(&[Tool::keyed("send_payment", &downstream)]).spawn();
    let status = worker.exit(DEADLINE).await;

    assert_eq!(status.code(), Some(1));
    let log = worker.log();
    let last = log.lines().last().expect("a log");
    assert!(last.contains(&producer.queue("jobs")), "{last}");
    assert_eq!(last.matches("inequivalent arg").count(), 1, "{last}");
    assert!(!worker.logged("\"message\":\"consuming\""));
}

/// B03: a refused login ends the worker, and no log says the password.
#[tokio::test]
async fn a_wrong_password_or_vhost_ends_the_worker_and_is_not_logged() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let url = url::Url::parse(&world.amqp_url).expect("a URL");
    let password = url.password().expect("the services have one").to_owned();
    let (mut wrong_password, mut wrong_vhost) = (url.clone(), url);
    wrong_password.set_password(Some("sesame-open")).expect("a password");
    wrong_vhost.set_path("/nowhere");

    for url in [wrong_password, wrong_vhost] {
        let builder = world.worker(&[Tool::keyed("send_payment", &downstream)]);
        let mut worker =
            builder.env("AMQP_URL", url.as_str()).set("broker_connect_timeout", "10s").spawn();
        let status = worker.exit(Duration::from_secs(15)).await;
        assert_eq!(status.code(), Some(1), "{}", worker.log());
        assert!(worker.logged("the broker cannot be used"), "{}", worker.log());
        for secret in ["sesame-open", &password] {
            assert!(!worker.logged(secret), "the log holds the password");
        }
    }
}

/// Where operators provision the queues, a worker declares nothing.
#[tokio::test]
async fn a_passive_worker_declares_nothing_and_uses_what_is_there() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let tools = [Tool::keyed("send_payment", &downstream)];
    let mut early = world.worker(&tools).arg("--passive").arg("true").spawn();
    assert_eq!(early.exit(DEADLINE).await.code(), Some(1));
    let log = early.log();
    let last = log.lines().last().expect("a log");
    assert!(last.contains(&format!("queue {}.", world.prefix)), "{last}");

    world.worker(&tools).start().await.drain().await;
    let mut passive = world.worker(&tools).set("passive", "true").start().await;
    let producer = world.producer().await;
    assert_eq!(producer.call(&job("send_payment", json!({}))).await.status(), "completed");
    assert_eq!(downstream.counts(), (1, 1));
    passive.drain().await;
}

/// B10: nobody is there to hear it any more; the outcome stays in the ledger.
#[tokio::test]
async fn a_reply_queue_that_is_gone_is_logged_and_consuming_goes_on() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.otherwise(Does::ActAndStall);
    let mut worker = world.worker(&[Tool::unkeyed("create_ticket", &downstream)]).start().await;
    let producer = world.producer().await;
    let call = job("create_ticket", json!({"subject": "printer"}));
    {
        let gone = world.producer().await;
        gone.submit(&call).await;
        downstream.wait_for_posts(1).await;
        gone.close().await;
    }
    downstream.release();
    worker.wait_until_logged("the reply's queue is gone").await;
    let reply = producer.call(&call).await;

    assert_eq!((reply.status(), reply.replayed()), ("completed", true));
    assert_eq!(downstream.counts(), (1, 1));
    worker.drain().await;
    assert!(worker.logged("replies_lost=1"));
    assert_eq!((producer.ready("jobs").await, producer.ready("dead").await), (0, 0));
}

/// A queue that is full refuses: the reply is offered a few times, and the delivery acked.
#[tokio::test]
async fn a_full_reply_queue_does_not_hold_the_delivery() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let mut worker = world.worker(&[Tool::unkeyed("create_ticket", &downstream)]).start().await;
    let producer = world.producer().await;
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(1));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    let full = producer.declare_reply_queue(arguments).await;
    producer.publish_to(&full, Publication::default()).await;

    let call = job("create_ticket", json!({"subject": "printer"}));
    let properties = producer.properties("full").with_reply_to(full.as_str().into());
    producer.publish(Publication { body: call.to_string().into_bytes(), properties }).await;
    worker.wait_until_logged("the reply's queue is full").await;
    let reply = producer.call(&call).await;

    assert_eq!((reply.status(), reply.replayed()), ("completed", true));
    assert_eq!(downstream.counts(), (1, 1));
    worker.drain().await;
    assert!(worker.logged("replies_lost=1"));
    assert_eq!(producer.ready("jobs").await, 0);
}

/// The client library can tie a return to another publication's confirm.
#[tokio::test]
async fn a_reply_that_is_returned_is_never_taken_for_its_neighbour() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.otherwise(Does::ActAndStall);
    let tools = [Tool::keyed("send_payment", &downstream).with("max_concurrency", "100")];
    let mut worker = world.worker(&tools).start().await;
    let producer = world.producer().await;

    for n in 0..60 {
        let properties = producer.properties(&n.to_string());
        let properties = match n % 2 {
            0 => properties,
            _ => properties.with_reply_to("no-such-queue".into()),
        };
        let body = job("send_payment", json!({"n": n})).to_string().into_bytes();
        producer.publish(Publication { body, properties }).await;
    }
    downstream.wait_for_posts(60).await;
    // All at once, so that they share a set.
    downstream.release();
    producer.wait_for_replies(30).await;
    worker.drain().await;

    for n in (0..60).step_by(2) {
        assert_eq!(producer.replies_for(&n.to_string()).len(), 1, "{n}");
    }
    assert!(worker.logged("replies_lost=30"));
    assert_eq!(worker.times_logged("the reply's queue is gone"), 30);
    assert_eq!(downstream.counts(), (60, 60));
    assert_eq!((producer.ready("jobs").await, producer.replies().len()), (0, 30));
}

/// The broker returns everything mandatory that goes there, so it is not.
#[tokio::test]
async fn a_direct_reply_to_is_answered() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let mut worker = world.worker(&[Tool::unkeyed("create_ticket", &downstream)]).start().await;
    let producer = world.producer().await;

    let call = job("create_ticket", json!({"subject": "printer"}));
    let reply = producer.call_with_direct_reply_to(&call).await;

    assert_eq!((&reply["status"], &reply["key"]), (&json!("completed"), &json!(key_of(&call))));
    assert_eq!(downstream.counts(), (1, 1));
    worker.drain().await;
    assert!(!worker.logged("replies_lost"));
    assert_eq!(producer.ready("jobs").await, 0);
}

/// A job that no queue took is never acked.
#[tokio::test]
async fn a_job_is_kept_until_its_delay_queue_is_there_again() {
    let world = World::new().await;
    let mut downstream = Downstream::refusing(false).await;
    let tools = [Tool::unkeyed("create_ticket", &downstream).retry("1ms", 1)];
    let mut worker = world.worker(&tools).start().await;
    let producer = world.producer().await;

    producer.delete("retry.200").await;
    let id = producer.submit(&job("create_ticket", json!({"subject": "printer"}))).await;
    worker.wait_until_logged("the queue did not take the job; trying again").await;
    assert_eq!((producer.ready("jobs").await, producer.replies().len()), (0, 0));
    downstream.listen();
    // Any worker that starts declares it anew.
    let mut other = world.worker(&tools).start().await;
    let reply = producer.reply_for(&id).await;

    assert_eq!((reply.status(), downstream.counts()), ("completed", (1, 1)));
    worker.drain().await;
    other.drain().await;
    assert_eq!((producer.ready("jobs").await, producer.ready("dead").await), (0, 0));
}

/// B03: a broker that takes connections and says nothing is given up in time, and tried again.
#[tokio::test]
async fn a_broker_that_says_nothing_is_given_up_after_the_connect_timeout_and_tried_again() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let (proxy, by_proxy) = Proxy::before(&world.amqp_url).await;
    proxy.swallow(true);
    let builder = world.worker(&[Tool::keyed("send_payment", &downstream)]);
    let builder = builder.env("AMQP_URL", &by_proxy).set("broker_connect_timeout", "300ms");
    let mut worker = builder.spawn();
    worker.wait_until_logged("the broker did not answer within 300ms").await;
    proxy.swallow(false);
    worker.wait_until_said("consuming").await;
    worker.drain().await;
}

/// What cannot be reached yet does not keep a worker from being told to stop.
#[tokio::test]
async fn a_worker_that_still_looks_for_its_broker_stops_when_it_is_told() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let (proxy, by_proxy) = Proxy::before(&world.amqp_url).await;
    proxy.swallow(true);
    let builder = world.worker(&[Tool::keyed("send_payment", &downstream)]);
    let mut worker = builder.env("AMQP_URL", &by_proxy).spawn();
    worker.wait_until_said("started").await;
    worker.drain().await;
    assert!(!worker.logged("\"message\":\"consuming\""));
}
