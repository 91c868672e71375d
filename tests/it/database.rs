//! Postgres's faults: nothing runs without a committed claim, and no outcome is lost.

use serde_json::json;

use crate::support::{Does, Downstream, Proxy, Tool, World, job, key_of};

/// B34: only the write is repeated.
#[tokio::test]
async fn a_settling_that_fails_is_repeated_and_the_tool_is_not() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let mut worker = world.worker(&[Tool::unkeyed("create_ticket", &downstream)]).start().await;
    let producer = world.producer().await;
    // A sequence counts outside the transaction that fails.
    world
        .sql(
            "CREATE SEQUENCE tries;
             CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
               IF nextval('tries') <= 2 THEN
                 RAISE EXCEPTION 'not now' USING ERRCODE = '40001';
               ELSIF currval('tries') = 3 THEN
                 RAISE EXCEPTION 'not now' USING ERRCODE = '40P01';
               END IF;
               RETURN NEW;
             END $$;
             CREATE TRIGGER fail BEFORE UPDATE ON callonce_calls
             FOR EACH ROW WHEN (NEW.state = 'completed') EXECUTE FUNCTION fail()",
        )
        .await;

    let call = job("create_ticket", json!({"subject": "printer"}));
    let reply = producer.call(&call).await;

    assert_eq!((reply.status(), downstream.counts()), ("completed", (1, 1)));
    assert_eq!(world.count("SELECT last_value FROM tries").await, 4);
    worker.drain().await;
    assert_eq!(worker.times_logged("the outcome could not be recorded; trying again"), 3);
    assert_eq!(producer.ready("jobs").await, 0);
}

/// B27: no connection waits with a tool.
#[tokio::test]
async fn more_tools_run_at_a_time_than_there_are_connections() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.otherwise(Does::ActAndStall);
    let tools = [Tool::keyed("send_payment", &downstream)];
    let mut worker = world.worker(&tools).set("pool_size", "2").start().await;
    let producer = world.producer().await;

    for n in 0..20 {
        producer.submit(&job("send_payment", json!({"invoice": n}))).await;
    }
    downstream.wait_for_posts(20).await;
    assert_eq!(
        world.count("SELECT count(*) FROM callonce_calls WHERE state = 'in_flight'").await,
        20
    );
    let idle = "SELECT count(*) FROM pg_stat_activity
                WHERE application_name = 'callonce' AND state = 'idle in transaction'
                  AND query LIKE '%callonce_calls%' AND state_change < now() - interval '5 seconds'";
    assert_eq!(world.count(idle).await, 0);
    downstream.release();
    producer.wait_for_replies(20).await;

    assert_eq!((downstream.counts(), downstream.running_max()), ((20, 20), 20));
    worker.drain().await;
}

/// B25: every connection of the pool is dead, and no job is the worse for it.
#[tokio::test]
async fn connections_that_all_died_are_replaced_without_a_lost_job() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let (proxy, by_proxy) = Proxy::before(&world.database_url).await;
    let tools = [Tool::keyed("send_payment", &downstream)];
    let mut worker = world.worker(&tools).env("DATABASE_URL", &by_proxy).start().await;
    let producer = world.producer().await;

    producer.call(&job("send_payment", json!({"invoice": "first"}))).await;
    proxy.cut();
    for n in 0..20 {
        producer.submit(&job("send_payment", json!({"invoice": n}))).await;
    }
    producer.wait_for_replies(21).await;

    assert!(producer.replies().iter().all(|reply| reply.status() == "completed"));
    assert_eq!(downstream.counts(), (21, 21));
    worker.drain().await;
    assert_eq!((producer.ready("jobs").await, producer.ready("dead").await), (0, 0));
}

/// B22: without the ledger nothing runs; with it back, everything does.
#[tokio::test]
async fn nothing_runs_while_the_ledger_is_away() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let (proxy, by_proxy) = Proxy::before(&world.database_url).await;
    let tools = [Tool::keyed("send_payment", &downstream)];
    let mut worker = world.worker(&tools).env("DATABASE_URL", &by_proxy).start().await;
    let producer = world.producer().await;

    proxy.refuse(true);
    proxy.cut();
    let id = producer.submit(&job("send_payment", json!({"invoice": "INV-7"}))).await;
    worker.wait_until_logged("the ledger did not answer; nothing runs meanwhile").await;
    assert_eq!(downstream.counts(), (0, 0));
    proxy.refuse(false);
    let reply = producer.reply_for(&id).await;

    assert_eq!((reply.status(), downstream.counts()), ("completed", (1, 1)));
    worker.drain().await;
    assert_eq!(producer.ready("dead").await, 0);
}

/// What a tool answered while Postgres was away is settled when it is back.
#[tokio::test]
async fn an_outcome_waits_for_the_ledger_and_is_replied_after_it() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.otherwise(Does::ActAndStall);
    let (proxy, by_proxy) = Proxy::before(&world.database_url).await;
    let tools = [Tool::unkeyed("create_ticket", &downstream)];
    let mut worker = world.worker(&tools).env("DATABASE_URL", &by_proxy).start().await;
    let producer = world.producer().await;

    let call = job("create_ticket", json!({"subject": "printer"}));
    let id = producer.submit(&call).await;
    downstream.wait_for_posts(1).await;
    proxy.refuse(true);
    proxy.cut();
    downstream.release();
    worker.wait_until_logged("the outcome could not be recorded; trying again").await;
    assert!(producer.replies().is_empty(), "recorded before it is replied");
    assert_eq!(world.state(&key_of(&call)).await, "in_flight");
    proxy.refuse(false);
    let reply = producer.reply_for(&id).await;

    assert_eq!((reply.status(), downstream.counts()), ("completed", (1, 1)));
    assert_eq!(world.state(&key_of(&call)).await, "completed");
    worker.drain().await;
    assert_eq!((producer.ready("jobs").await, producer.replies().len()), (0, 1));
}

/// A wrong password for the ledger ends the worker and is not logged.
#[tokio::test]
async fn a_refused_login_to_the_ledger_ends_the_worker() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let mut url = url::Url::parse(&world.database_url).expect("a URL");
    url.set_password(Some("sesame-open")).expect("a password");

    let builder = world.worker(&[Tool::keyed("send_payment", &downstream)]);
    let mut worker = builder.env("DATABASE_URL", url.as_str()).spawn();
    let status = worker.exit(std::time::Duration::from_secs(15)).await;

    assert_eq!(status.code(), Some(1), "{}", worker.log());
    assert!(worker.logged("the ledger cannot be used"), "{}", worker.log());
    assert!(!worker.logged("sesame-open"));
}
