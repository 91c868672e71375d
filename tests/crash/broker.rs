//! RabbitMQ goes silent, blocks publishers, loses patience, is killed: nothing is lost, and nothing is
//! called a second time. Where the whole broker must fail, the test has one of its own.

use std::time::Duration;

use lapin::types::{AMQPValue, FieldTable};

use crate::scene::{Class, Scene};
use crate::servers::Server;
use crate::support::{Producer, Proxy, Publication, eventually, key_of, within};

const CONSUMING: &str = "consuming";
const NO_SESSION: &str = "no consuming session; building a new one";
const NOT_ACKED: &str = "not acked: the delivery comes again and is answered from the ledger";

/// B01, B04: the network drops without a word while a call is outstanding.
#[tokio::test]
async fn a_half_open_link_is_noticed_and_the_redelivery_is_replayed() {
    let scene = Scene::new(Class::Unkeyed).await;
    scene.stall();
    let (proxy, url) = Proxy::before(&scene.world.amqp_url).await;
    let mut silent = scene
        .worker()
        .env("AMQP_URL", &url)
        .set("broker_heartbeat", "1s")
        .set("broker_connect_timeout", "2s")
        .start()
        .await;
    let call = scene.call();
    let id = scene.producer.submit(&call).await;
    scene.downstream.wait_for_posts(1).await;

    proxy.swallow(true);
    let other = scene.start().await;
    silent.wait_until_said(NO_SESSION).await;
    let outstanding =
        "another attempt of this call is outstanding; waiting for it, nothing is sent";
    other.wait_until_said(outstanding).await;
    // What ran goes on, is recorded, and answers the redelivery.
    scene.release();
    let reply = scene.producer.reply_for(&id).await;
    assert_eq!((reply.status(), reply.replayed()), ("completed", true), "{reply:?}");

    proxy.swallow(false);
    proxy.cut();
    silent.wait_until_said_times(CONSUMING, 2).await;
    silent.wait_until_said(NOT_ACKED).await;
    let mut other = other;
    other.drain().await;
    // It comes back by itself, and works.
    let next = scene.call();
    let reply = scene.producer.call(&next).await;
    assert_eq!((reply.status(), reply.replayed()), ("completed", false), "{reply:?}");
    assert!(silent.runs());
    scene.drain([silent]).await;

    // Its own reply came late, and says the same.
    let replies = scene.replies_for(&id).await;
    assert_eq!(replies.len(), 2, "{replies:?}");
    assert_eq!(replies[0].content(), replies[1].content());
    scene.assert_each_acted_once(&[call, next]).await;
}

/// B09: a broker in an alarm reads nothing from who publishes.
#[tokio::test]
async fn an_alarm_holds_the_replies_up_and_nothing_else() {
    const CALLS: usize = 10;
    let (server, world) = Server::rabbitmq().await;
    let scene = Scene::of(world, Class::Unkeyed).await;
    scene.stall();
    let builder = || scene.worker().set("prefetch", "5").set("drain_timeout", "3s");
    let (mut leaving, staying) = (builder().start().await, builder().start().await);
    let calls = scene.calls(CALLS);
    let ids = scene.submit_all(&calls).await;
    scene.downstream.wait_for_posts(CALLS).await;

    server.rabbitmqctl(&["set_vm_memory_high_watermark", "0.0000001"]).await;
    scene.release();
    eventually("every outcome is recorded", async || {
        let completed = "SELECT count(*) FROM callonce_calls WHERE state = 'completed'";
        scene.world.count(completed).await == 10
    })
    .await;
    // SIGTERM works while replies wait; what they were for is the next worker's.
    leaving.terminate().await;
    assert!(leaving.logged("draining"));

    server.rabbitmqctl(&["set_vm_memory_high_watermark", "absolute", "1GB"]).await;
    scene.all_completed(&ids).await;
    scene.assert_each_acted_once(&calls).await;
    scene.drain([staying]).await;
}

/// B07: the broker closes the channel of a delivery that it waited for too long, and takes the
/// siblings with it.
#[tokio::test]
async fn a_channel_closed_for_a_late_ack_is_rebuilt_and_each_tool_runs_once() {
    let (server, world) = Server::rabbitmq().await;
    let patience = "application:set_env(rabbit, consumer_timeout, 3000).";
    let ticks = "application:set_env(rabbit, channel_tick_interval, 500).";
    server.rabbitmqctl(&["eval", patience]).await;
    server.rabbitmqctl(&["eval", ticks]).await;
    let scene = Scene::of(world, Class::Unkeyed).await;
    scene.stall();
    // Less than the broker's patience: who waits must not be the next to lose the channel.
    let worker = scene.worker().set("prefetch", "5").set("wait_for_claim", "500ms").start().await;
    let slow = scene.calls(2);
    let mut ids = scene.submit_all(&slow).await;
    scene.downstream.wait_for_posts(2).await;
    scene.downstream.otherwise(crate::support::Does::Act);
    let quick = scene.calls(3);
    ids.extend(scene.submit_all(&quick).await);

    worker.wait_until_said(NO_SESSION).await;
    worker.wait_until_said_times(CONSUMING, 2).await;
    // Their redeliveries wait for them, and are parked.
    worker.wait_until_said("waits in a delay queue").await;
    scene.release();
    scene.all_completed(&ids).await;
    worker.wait_until_said(NOT_ACKED).await;
    let calls = [slow, quick].concat();
    eventually("nothing waits any more", async || {
        let mut waiting = 0;
        for queue in ["jobs", "retry.200", "retry.400"] {
            waiting += scene.producer.ready(queue).await;
        }
        waiting == 0
    })
    .await;
    scene.assert_each_acted_once(&calls).await;
    scene.drain([worker]).await;
}

/// A broker that dies takes every connection with it, and comes back with its queues.
#[tokio::test]
async fn a_broker_that_is_killed_and_restarted_loses_no_job_and_no_reply() {
    const CALLS: usize = 10;
    let (server, world) = Server::rabbitmq().await;
    let mut scene = Scene::of(world, Class::Unkeyed).await;
    // A reply queue that outlives the broker's death, beside the worker's prefix.
    let beside = format!("{}-beside", scene.world.prefix);
    let keeper = Producer::connect(&scene.world.amqp_url, &beside).await;
    let mut quorum = FieldTable::default();
    quorum.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    keeper.declare("replies", quorum).await;

    scene.stall();
    let worker = scene.worker().set("prefetch", "5").start().await;
    // Some are under way, the others wait in the queue.
    let calls = scene.calls(CALLS);
    for call in &calls {
        let properties = keeper
            .properties(&key_of(call))
            .with_reply_to(lapin::types::ShortString::from(keeper.queue("replies")));
        let body = call.to_string().into_bytes();
        scene.producer.publish(Publication { body, properties }).await;
    }
    scene.downstream.wait_for_posts(5).await;
    drop(keeper);
    server.end("KILL").await;
    worker.wait_until_said(NO_SESSION).await;
    scene.release();
    eventually("what ran is recorded", async || {
        let completed = "SELECT count(*) FROM callonce_calls WHERE state = 'completed'";
        scene.world.count(completed).await == 5
    })
    .await;

    server.start_again().await;
    scene.producer = scene.world.producer().await;
    let keeper = Producer::connect(&scene.world.amqp_url, &beside).await;
    let mut replies = Vec::new();
    within(Duration::from_secs(60), "a reply for every job", async || {
        replies.extend(keeper.take("replies").await);
        calls.iter().all(|call| {
            let key = key_of(call);
            replies.iter().any(|reply| {
                let id = reply.properties.correlation_id().as_ref();
                id.is_some_and(|id| id.as_str() == key)
            })
        })
    })
    .await;
    for reply in &replies {
        let reply: serde_json::Value = serde_json::from_slice(&reply.body).expect("JSON");
        assert_eq!(reply["status"], "completed", "{reply}");
    }
    scene.assert_each_acted_once(&calls).await;
    scene.drain([worker]).await;
}
