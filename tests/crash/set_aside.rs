//! A job that ends its worker every time is set aside, and its neighbours are not.

use serde_json::json;

use crate::scene::{Class, Scene, fence};
use crate::support::{Does, Downstream, Tool, World, job, key_of};

const MAX_ATTEMPTS: usize = 2;
/// How often a delivery comes back before it is a suspect.
const DEATHS_OF_A_SUSPECT: usize = 3;

/// B35: no endless redelivery. Every worker dies with the request outstanding.
#[tokio::test]
async fn a_keyed_write_that_ends_every_worker_becomes_unknown_and_is_never_sent_again() {
    let scene = Scene::brief(Class::Keyed).await;
    scene.stall();
    let call = scene.call();
    let key = key_of(&call);
    let builder = || scene.worker().set("max_attempts", &MAX_ATTEMPTS.to_string());

    let id = {
        let mut worker = builder().start().await;
        let id = scene.producer.submit(&call).await;
        scene.downstream.wait_for_posts(1).await;
        worker.kill();
        id
    };
    for takeover in 1..=MAX_ATTEMPTS {
        let mut worker = builder().start().await;
        scene.downstream.wait_for_posts(1 + takeover).await;
        worker.kill();
    }
    scene.release();
    let worker = builder().start().await;
    let reply = scene.producer.reply_for(&id).await;
    assert_eq!((reply.status(), reply.kind()), ("unknown", "too_many_attempts"), "{reply:?}");

    // Not even when it is asked for again.
    let again = scene.producer.call(&call).await;
    assert_eq!((again.status(), again.kind()), ("unknown", "too_many_attempts"), "{again:?}");
    let dead = scene.producer.wait_for_dead(1).await;
    scene.drain([worker]).await;

    assert_eq!(dead.len(), 1);
    assert_eq!(
        (&*dead[0].reason(), &*dead[0].body),
        ("too_many_attempts", call.to_string().as_bytes())
    );
    assert_eq!(dead[0].header("x-callonce-answered"), "unknown");
    assert_eq!(scene.replies_for(&id).await.len(), 1);
    assert_eq!(scene.downstream.counts(), (1 + MAX_ATTEMPTS, 1));
    let row = scene.world.row(&key).await.expect("a write has a row");
    assert_eq!((&*row.state, row.too_many), ("unknown", true));
    let history = scene.world.history(&key).await;
    assert_eq!(history, ["takeover", "takeover", "became_unknown"]);
}

/// The worker that found that too many were lost is lost itself before the dead queue has the job.
#[tokio::test]
async fn a_job_is_set_aside_by_the_next_worker_where_the_one_that_decided_it_was_lost() {
    let scene = Scene::brief(Class::Keyed).await;
    scene.stall();
    let call = scene.call();
    let builder = || scene.worker().set("max_attempts", "1");
    let mut worker = builder().start().await;
    let id = scene.producer.submit(&call).await;
    scene.downstream.wait_for_posts(1).await;
    worker.kill();
    let mut worker = builder().start().await;
    scene.downstream.wait_for_posts(2).await;
    worker.kill();
    let mut worker = builder().failpoint("lapsed", 0).start().await;
    worker.wait_for_failpoint("lapsed").await;
    assert_eq!(scene.world.state(&key_of(&call)).await, "unknown");
    worker.kill();
    scene.release();

    let worker = builder().start().await;
    let reply = scene.producer.reply_for(&id).await;
    assert_eq!((reply.status(), reply.kind()), ("unknown", "too_many_attempts"), "{reply:?}");
    let dead = scene.producer.wait_for_dead(1).await;
    assert_eq!(&*dead[0].body, call.to_string().as_bytes());
    scene.drain([worker]).await;
    assert_eq!(scene.downstream.counts(), (2, 1));
}

/// What came back several times runs alone only until a row counts its attempts: a call that takes
/// long holds nobody up.
#[tokio::test]
async fn a_write_that_came_back_several_times_does_not_keep_others_waiting() {
    let world = World::new().await;
    let (slow, quick) = (Downstream::collapsing().await, Downstream::forgetful().await);
    let tools = [Tool::keyed("slow", &slow).with("lease", "\"1s\""), Tool::read("quick", &quick)];
    let producer = world.producer().await;
    slow.otherwise(Does::ActAndStall);
    let mut worker = world.worker(&tools).start().await;
    let id = producer.submit(&job("slow", json!({}))).await;
    for deaths in 0..DEATHS_OF_A_SUSPECT {
        slow.wait_for_posts(deaths + 1).await;
        worker.kill();
        worker = world.worker(&tools).start().await;
    }
    slow.wait_for_posts(DEATHS_OF_A_SUSPECT + 1).await;
    assert!(worker.logged("it runs alone"));

    assert_eq!(producer.call(&job("quick", json!({}))).await.status(), "completed");
    slow.release();
    assert_eq!(producer.reply_for(&id).await.status(), "completed");
    assert_eq!(slow.counts(), (DEATHS_OF_A_SUSPECT + 1, 1));
    worker.drain().await;
}

/// A worker that does not know the tool any more refuses the job, and what an attempt before it may
/// have done is not forgotten by that.
#[tokio::test]
async fn a_refused_job_whose_attempt_was_lost_is_answered_as_unknown() {
    let scene = Scene::brief(Class::Keyed).await;
    scene.stall();
    let call = scene.call();
    let mut worker = scene.start().await;
    let id = scene.producer.submit(&call).await;
    scene.downstream.wait_for_posts(1).await;
    worker.kill();
    scene.release();

    let others = [Tool::read("another_tool", &scene.downstream)];
    let worker = scene.world.worker(&others).start().await;
    let reply = scene.producer.reply_for(&id).await;
    assert_eq!((reply.status(), reply.kind()), ("unknown", "worker_lost"), "{reply:?}");
    scene.drain([worker]).await;
    assert_eq!(scene.downstream.counts(), (1, 1));
}

/// A read has no row that could count its attempts, so its deliveries are counted.
#[tokio::test]
async fn a_read_that_ends_every_worker_is_set_aside_and_its_neighbour_is_answered() {
    let world = World::new().await;
    let (deadly, innocent) = (Downstream::forgetful().await, Downstream::forgetful().await);
    let tools = [Tool::read("deadly", &deadly), Tool::read("innocent", &innocent)];
    let tools = tools.map(|tool| tool.with("timeout", "\"60s\""));
    let builder = || world.worker(&tools).set("max_attempts", &MAX_ATTEMPTS.to_string());
    let producer = world.producer().await;
    deadly.otherwise(Does::ActAndStall);
    innocent.otherwise(Does::ActAndStall);

    let calls = ["deadly", "innocent"].map(|name| job(name, json!({})));
    let mut worker = builder().start().await;
    let (deadly_id, innocent_id) =
        (producer.submit(&calls[0]).await, producer.submit(&calls[1]).await);
    // Both are under way at each of these deaths, and come back together.
    for deaths in 0..DEATHS_OF_A_SUSPECT {
        deadly.wait_for_posts(deaths + 1).await;
        innocent.wait_for_posts(deaths + 1).await;
        worker.kill();
        if deaths + 1 == DEATHS_OF_A_SUSPECT {
            innocent.otherwise(Does::Act);
        }
        worker = builder().start().await;
    }
    // From now on each runs alone, and who ends a worker is to blame alone.
    for deaths in DEATHS_OF_A_SUSPECT..DEATHS_OF_A_SUSPECT + MAX_ATTEMPTS {
        deadly.wait_for_posts(deaths + 1).await;
        worker.kill();
        worker = builder().start().await;
    }
    let dead = producer.wait_for_dead(1).await;
    let reply = producer.reply_for(&deadly_id).await;
    assert_eq!((reply.status(), reply.kind()), ("unknown", "too_many_attempts"), "{reply:?}");
    let reply = producer.reply_for(&innocent_id).await;
    assert_eq!((reply.status(), reply.replayed()), ("completed", false), "{reply:?}");
    worker.drain().await;

    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].body, calls[0].to_string().as_bytes());
    assert_eq!(dead[0].reason(), "too_many_attempts");
    assert_eq!(deadly.posts(), DEATHS_OF_A_SUSPECT + MAX_ATTEMPTS);
    fence(&producer).await;
    assert_eq!(producer.replies_for(&deadly_id).len(), 1);
    assert_eq!(producer.replies_for(&innocent_id).len(), 1);
    assert_eq!(producer.ready("jobs").await, 0);
    assert_eq!(producer.ready("dead").await, 0);
    // Neither is under suspicion any more.
    assert_eq!(world.count("SELECT count(*) FROM callonce_suspects").await, 0);
}
