//! Postgres goes away, is killed, restarted, made read-only: nothing is sent that is not claimed,
//! nothing that happened is lost, and nobody has to restart a worker. Each test has a server of its
//! own.

use std::time::Duration;

use crate::scene::{Class, Scene};
use crate::servers::Server;
use crate::support::{WorkerBuilder, eventually, within};

/// A server may take a while to come back, and a worker looks for it every few seconds.
const RECOVERY: Duration = Duration::from_secs(60);

const AWAY: &str = "the ledger did not answer; nothing runs meanwhile";
const NOT_RECORDED: &str = "the outcome could not be recorded; trying again";

/// Nothing is dead, parked or refused.
async fn assert_untouched(scene: &Scene) {
    for queue in ["dead", "retry.200", "retry.400"] {
        assert_eq!(scene.producer.ready(queue).await, 0, "{queue} holds something");
    }
}

#[tokio::test]
async fn while_postgres_is_away_nothing_is_sent_and_afterwards_the_jobs_run() {
    let (server, world) = Server::postgres().await;
    let mut scene = Scene::of(world, Class::Unkeyed).await;
    let worker = scene.start().await;
    server.end("KILL").await;

    let calls = scene.calls(3);
    let ids = scene.submit_all(&calls).await;
    worker.wait_until_said_times(AWAY, 6).await;
    assert_eq!(scene.downstream.posts(), 0);
    assert_untouched(&scene).await;

    server.start_again().await;
    scene.world.reconnect().await;
    scene.all_completed(&ids).await;
    scene.assert_each_acted_once(&calls).await;
    scene.drain([worker]).await;
}

/// B34: the outcome waits for the server, and the call is not made again.
#[tokio::test]
async fn an_outcome_is_recorded_when_postgres_is_back() {
    let (server, world) = Server::postgres().await;
    let mut scene = Scene::of(world, Class::Unkeyed).await;
    scene.stall();
    let worker = scene.start().await;
    let calls = scene.calls(3);
    let ids = scene.submit_all(&calls).await;
    scene.downstream.wait_for_posts(3).await;

    server.end("KILL").await;
    scene.release();
    worker.wait_until_said_times(NOT_RECORDED, 6).await;
    assert_eq!(scene.producer.replies().len(), 0, "what is not recorded is not replied");
    assert_untouched(&scene).await;

    server.start_again().await;
    scene.world.reconnect().await;
    scene.all_completed(&ids).await;
    scene.assert_each_acted_once(&calls).await;
    assert_eq!(scene.world.count("SELECT count(*) FROM callonce_history").await, 0);
    scene.drain([worker]).await;
}

/// B25: dead connections of the pool are nobody's failure.
#[tokio::test]
async fn after_a_restart_the_pools_dead_connections_fail_no_job() {
    const CALLS: usize = 20;
    let (server, world) = Server::postgres().await;
    let mut scene = Scene::of(world, Class::Unkeyed).await;
    // In batches two connections would do the work of ten.
    let builder = scene.worker().set("pool_size", "10").set("batch_max", "1");
    let worker = named(builder, &scene).start().await;
    let mut calls = Vec::new();
    // A fast and an immediate shutdown, and a killed postmaster.
    for signal in ["INT", "QUIT", "KILL"] {
        fill_pool(&scene, &mut calls).await;
        let refused = worker.times_said(AWAY) + worker.times_said(NOT_RECORDED);
        server.end(signal).await;
        server.start_again().await;
        scene.world.reconnect().await;
        let next = scene.calls(CALLS);
        let ids = scene.submit_all(&next).await;
        scene.all_completed(&ids).await;
        calls.extend(next);
        assert_untouched(&scene).await;
        scene.assert_each_acted_once(&calls).await;
        // No spin: some of the jobs may have met one dead connection each, not many.
        let refused = worker.times_said(AWAY) + worker.times_said(NOT_RECORDED) - refused;
        assert!(refused <= 2 * CALLS, "{refused} refusals after SIG{signal}");
    }
    scene.drain([worker]).await;
}

fn named(builder: WorkerBuilder, scene: &Scene) -> WorkerBuilder {
    let (url, name) = (&scene.world.database_url, &scene.world.prefix);
    builder.env("DATABASE_URL", &format!("{url}&application_name={name}"))
}

/// Makes the worker use each connection of its pool, all at the same time.
async fn fill_pool(scene: &Scene, calls: &mut Vec<serde_json::Value>) {
    let next = scene.calls(20);
    scene.world.sql("BEGIN; LOCK TABLE callonce_calls IN EXCLUSIVE MODE").await;
    let ids = scene.submit_all(&next).await;
    scene.wait_for_blocked_sessions(&scene.world.prefix, 10).await;
    scene.world.sql("COMMIT").await;
    scene.all_completed(&ids).await;
    calls.extend(next);
}

/// B23: a demoted primary accepts connections and answers reads.
#[tokio::test]
async fn a_read_only_server_gets_no_calls_and_the_worker_recovers_by_itself() {
    let (_server, world) = Server::postgres().await;
    let scene = Scene::of(world, Class::Unkeyed).await;
    let mut worker = scene.start().await;
    let mut calls = scene.calls(1);
    scene.all_completed(&scene.submit_all(&calls).await).await;

    read_only(&scene, true).await;
    let next = scene.calls(3);
    let ids = scene.submit_all(&next).await;
    worker.wait_until_said_times(AWAY, 6).await;
    assert!(worker.logged("25006"), "the reason is the log's");
    assert_eq!(scene.downstream.posts(), 1, "no call while nothing can be claimed");
    assert_untouched(&scene).await;

    read_only(&scene, false).await;
    all_completed_in_time(&scene, &ids).await;
    calls.extend(next);
    scene.assert_each_acted_once(&calls).await;
    assert!(worker.runs());
    scene.drain([worker]).await;
}

/// B23, with the demotion between claim and settling.
#[tokio::test]
async fn an_outcome_is_recorded_when_a_read_only_server_is_writable_again() {
    let (_server, world) = Server::postgres().await;
    let scene = Scene::of(world, Class::Unkeyed).await;
    scene.stall();
    let worker = scene.start().await;
    let calls = scene.calls(3);
    let ids = scene.submit_all(&calls).await;
    scene.downstream.wait_for_posts(3).await;

    read_only(&scene, true).await;
    scene.release();
    worker.wait_until_said_times(NOT_RECORDED, 6).await;
    assert!(worker.logged("25006"), "the reason is the log's");
    assert_eq!(scene.producer.replies().len(), 0, "what is not recorded is not replied");

    read_only(&scene, false).await;
    all_completed_in_time(&scene, &ids).await;
    scene.assert_each_acted_once(&calls).await;
    scene.drain([worker]).await;
}

async fn read_only(scene: &Scene, on: bool) {
    let setting = if on { "on" } else { "off" };
    scene.world.sql(&format!("ALTER SYSTEM SET default_transaction_read_only = {setting}")).await;
    scene.world.sql("SELECT pg_reload_conf()").await;
    eventually("every session has the setting", async || {
        let query = format!(
            "SELECT (current_setting('default_transaction_read_only') = '{setting}')::int::bigint"
        );
        scene.world.count(&query).await == 1
    })
    .await;
}

async fn all_completed_in_time(scene: &Scene, ids: &[String]) {
    within(RECOVERY, "every reply", async || {
        ids.iter().all(|id| !scene.producer.replies_for(id).is_empty())
    })
    .await;
    scene.all_completed(ids).await;
}
