//! Claims and settlings that go wrong in ways of the database: conflicts, rollbacks, lost answers,
//! lost rows and leases. The tool is called once all the same.

use crate::scene::{Class, Scene};
use crate::support::{Does, Proxy, WorkerBuilder, eventually, key_of};

/// The scene's database with something more in each session's set-up.
fn with_options(builder: WorkerBuilder, url: &str, options: &str, name: &str) -> WorkerBuilder {
    builder.env("DATABASE_URL", &format!("{url}{options}&application_name={name}"))
}

/// B34: serialization failures, a deadlock and a terminated session, all on the settling.
#[tokio::test]
async fn a_settling_that_fails_is_repeated_alone_and_the_tool_is_not() {
    let scene = Scene::new(Class::Unkeyed).await;
    let worker = scene.start().await;
    scene
        .world
        .sql(
            "CREATE SEQUENCE settlings;
             CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS $$
             DECLARE settling bigint := nextval('settlings');
             BEGIN
                 IF settling <= 2 THEN
                     RAISE EXCEPTION 'could not serialize access' USING ERRCODE = '40001';
                 ELSIF settling = 3 THEN
                     RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01';
                 ELSIF settling = 4 THEN
                     PERFORM pg_terminate_backend(pg_backend_pid());
                     PERFORM pg_sleep(10);
                 END IF;
                 RETURN NEW;
             END $$;
             CREATE TRIGGER spoil BEFORE UPDATE ON callonce_calls FOR EACH ROW
                 WHEN (NEW.state = 'completed') EXECUTE FUNCTION spoil();",
        )
        .await;
    let call = scene.call();
    let id = scene.producer.submit(&call).await;
    let reply = scene.producer.reply_for(&id).await;
    assert_eq!((reply.status(), reply.replayed()), ("completed", false), "{reply:?}");
    assert_eq!(reply.json["attempt"], 1);
    assert_eq!(scene.world.count("SELECT last_value FROM settlings").await, 5);
    scene.assert_each_acted_once(&[call]).await;
    scene.drain([worker]).await;
    assert_eq!(scene.replies_for(&id).await.len(), 1);
}

/// B32, as a trigger makes it: zero rows from the insert, and no row to read.
#[tokio::test]
async fn an_insert_that_conflicts_with_a_row_that_is_gone_is_tried_again() {
    let scene = Scene::new(Class::Unkeyed).await;
    let worker = scene.start().await;
    scene
        .world
        .sql(
            "CREATE SEQUENCE claims;
             CREATE FUNCTION vanish() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 RETURN CASE WHEN nextval('claims') > 3 THEN NEW END;
             END $$;
             CREATE TRIGGER vanish BEFORE INSERT ON callonce_calls FOR EACH ROW
                 EXECUTE FUNCTION vanish();",
        )
        .await;
    let call = scene.call();
    let reply = scene.producer.call(&call).await;
    assert_eq!((reply.status(), reply.replayed()), ("completed", false), "{reply:?}");
    assert_eq!(scene.world.count("SELECT last_value FROM claims").await, 4);
    scene.assert_each_acted_once(&[call]).await;
    scene.drain([worker]).await;
}

/// B32, as another session makes it: the claim waits for a transaction that then rolls back.
#[tokio::test]
async fn a_claim_that_waited_for_a_transaction_that_rolled_back_runs() {
    let scene = Scene::new(Class::Unkeyed).await;
    let name = scene.world.prefix.clone();
    let worker = with_options(scene.worker(), &scene.world.database_url, "", &name).start().await;
    let call = scene.call();
    let key = key_of(&call);
    scene
        .world
        .sql(&format!(
            "BEGIN;
             INSERT INTO callonce_calls
                 (key, digest, key_version, conversation_id, turn_index, name, ordinal, effect,
                  timeout_ms, sent_as, state, claim, attempt, lease_until, claimed_at,
                  last_claimed_at)
             VALUES (decode('{key}', 'hex'), decode(repeat('00', 32), 'hex'), 1, 'c', 0, 'n', 0,
                     'unkeyed_write', 1, '', 'in_flight', gen_random_uuid(), 1, now(), now(), now())"
        ))
        .await;
    let id = scene.producer.submit(&call).await;
    scene.wait_for_blocked_sessions(&name, 1).await;
    assert_eq!(scene.downstream.posts(), 0, "a call that is not claimed is not sent");
    scene.world.sql("ROLLBACK").await;
    let reply = scene.producer.reply_for(&id).await;
    assert_eq!((reply.status(), reply.replayed()), ("completed", false), "{reply:?}");
    scene.assert_each_acted_once(&[call]).await;
    scene.drain([worker]).await;
}

/// B32: each job twice at the same moment, to two workers.
#[tokio::test]
async fn of_two_deliveries_at_once_one_runs_and_the_other_is_answered_alike() {
    const CALLS: usize = 50;
    let scene = Scene::new(Class::Unkeyed).await;
    let workers = [scene.start().await, scene.start().await];
    let calls = scene.calls(CALLS);
    let pairs: Vec<_> = calls.iter().flat_map(|call| [call.clone(), call.clone()]).collect();
    let ids = scene.submit_all(&pairs).await;
    scene.all_completed(&ids).await;
    for pair in ids.chunks(2) {
        let [first, second] =
            [&pair[0], &pair[1]].map(|id| scene.producer.replies_for(id).remove(0));
        assert_eq!(first.content(), second.content());
        assert_ne!(first.replayed(), second.replayed());
    }
    scene.assert_each_acted_once(&calls).await;
    scene.drain(workers).await;
}

/// B27: neither a transaction nor a connection is held while a tool runs.
#[tokio::test]
async fn running_tools_hold_neither_a_transaction_nor_a_connection() {
    const CALLS: usize = 20;
    let scene = Scene::new(Class::Unkeyed).await;
    let name = scene.world.prefix.clone();
    scene.stall();
    let options = "%20-c%20idle_in_transaction_session_timeout%3D2s";
    let worker = with_options(scene.worker(), &scene.world.database_url, options, &name)
        .set("pool_size", "4")
        .start()
        .await;
    let calls = scene.calls(CALLS);
    let ids = scene.submit_all(&calls).await;

    let idle_in_transaction = format!(
        "SELECT count(*) FROM pg_stat_activity
         WHERE application_name = '{name}' AND state LIKE 'idle in transaction%'
           AND state_change < now() - interval '500 milliseconds'"
    );
    // Long enough that the server would have ended a transaction that is held open.
    let long_claimed = "SELECT count(*) FROM callonce_calls
         WHERE state = 'in_flight' AND claimed_at < now() - interval '2500 milliseconds'";
    eventually("twenty claims that everybody sees", async || {
        assert_eq!(scene.world.count(&idle_in_transaction).await, 0);
        scene.world.count(long_claimed).await == 20
    })
    .await;
    scene.release();
    scene.all_completed(&ids).await;
    assert_eq!(scene.downstream.running_max(), CALLS, "all of them at the same time");
    scene.assert_each_acted_once(&calls).await;
    scene.drain([worker]).await;
}

/// The claim stands and nobody said so: it is confirmed before anything is sent.
#[tokio::test]
async fn a_claim_whose_answer_was_lost_is_confirmed_and_runs_once() {
    let scene = Scene::new(Class::Unkeyed).await;
    let (proxy, url) = Proxy::before(&scene.world.database_url).await;
    let worker = scene.worker().env("DATABASE_URL", &url).start().await;
    let call = scene.call();
    // Of all statements the claim alone names the conversation.
    let conversation = call["conversation_id"].as_str().expect("a text");
    proxy.lose_answer_to(conversation, 0);
    let reply = scene.producer.call(&call).await;
    assert_eq!(proxy.answers_lost(), 1);
    assert_eq!((reply.status(), reply.replayed()), ("completed", false), "{reply:?}");
    assert_eq!(reply.json["attempt"], 1);
    assert_eq!(scene.world.history(&key_of(&call)).await, [""; 0]);
    scene.assert_each_acted_once(&[call]).await;
    scene.drain([worker]).await;
}

/// The same of a takeover: it must not wait for its own lease, nor count itself twice.
#[tokio::test]
async fn a_takeover_whose_answer_was_lost_is_confirmed_and_runs_once() {
    let scene = Scene::brief(Class::Keyed).await;
    let call = scene.call();
    let mut killed = scene.worker().failpoint("claimed", 0).start().await;
    let id = scene.producer.submit(&call).await;
    killed.wait_for_failpoint("claimed").await;
    killed.kill();

    let (proxy, url) = Proxy::before(&scene.world.database_url).await;
    let name = format!("taker-{}", scene.world.prefix);
    // An insert that conflicts and a takeover name the worker; nothing else does.
    proxy.lose_answer_to(&name, 1);
    let worker = scene.worker().env("DATABASE_URL", &url).set("worker_name", &name).start().await;
    let reply = scene.producer.reply_for(&id).await;
    assert_eq!(proxy.answers_lost(), 1);
    assert_eq!((reply.status(), reply.replayed()), ("completed", false), "{reply:?}");
    assert_eq!(reply.json["attempt"], 2);
    assert_eq!(scene.world.history(&key_of(&call)).await, ["takeover"]);
    scene.assert_each_acted_once(&[call]).await;
    scene.drain([worker]).await;
}

/// The settling stands and nobody said so.
#[tokio::test]
async fn a_settling_whose_answer_was_lost_is_read_and_replied() {
    let scene = Scene::new(Class::Unkeyed).await;
    let (proxy, url) = Proxy::before(&scene.world.database_url).await;
    let worker = scene.worker().env("DATABASE_URL", &url).start().await;
    proxy.lose_answer_to("pay_1", 0);
    let call = scene.call();
    let reply = scene.producer.call(&call).await;
    assert_eq!(proxy.answers_lost(), 1);
    assert_eq!((reply.status(), reply.replayed()), ("completed", false), "{reply:?}");
    assert_eq!(reply.content(), "{\"id\": \"pay_1\",  \"ok\":true}");
    assert_eq!(scene.world.history(&key_of(&call)).await, [""; 0]);
    scene.assert_each_acted_once(&[call]).await;
    scene.drain([worker]).await;
}

/// A lease may be as short as it takes to make a connection, so the renewals' own is there before.
#[tokio::test]
async fn a_lease_is_renewed_although_no_new_connection_can_be_made() {
    let scene = Scene::brief(Class::Unkeyed).await;
    scene.stall();
    let (proxy, url) = Proxy::before(&scene.world.database_url).await;
    // One connection for statements, which the start has made, and the renewals' own.
    let worker = scene.worker().env("DATABASE_URL", &url).set("pool_size", "1").start().await;
    proxy.refuse(true);
    let call = scene.call();
    let id = scene.producer.submit(&call).await;
    eventually("a renewed lease", async || {
        let renewed = "SELECT count(*) FROM callonce_calls
             WHERE state = 'in_flight' AND lease_until > claimed_at + interval '1500 milliseconds'";
        scene.world.count(renewed).await == 1
    })
    .await;
    scene.release();
    scene.all_completed(&[id]).await;
    scene.assert_each_acted_once(&[call]).await;
    scene.drain([worker]).await;
}

/// As after a failover that lost the claim: the completion is what is left.
#[tokio::test]
async fn a_row_that_was_lost_while_the_tool_ran_is_inserted_as_completed() {
    let scene = Scene::brief(Class::Unkeyed).await;
    scene.stall();
    let worker = scene.start().await;
    let call = scene.call();
    let key = key_of(&call);
    let id = scene.producer.submit(&call).await;
    scene.downstream.wait_for_posts(1).await;
    scene.world.sql("DELETE FROM callonce_calls").await;
    scene.release();
    let reply = scene.producer.reply_for(&id).await;
    assert_eq!((reply.status(), reply.replayed()), ("completed", false), "{reply:?}");
    assert_eq!(scene.world.history(&key).await, ["row_was_lost"]);
    let row = scene.world.row(&key).await.expect("it was inserted");
    assert_eq!((&*row.state, row.attempt), ("completed", 1));

    let again = scene.producer.call(&call).await;
    assert_eq!((again.status(), again.replayed()), ("completed", true));
    assert_eq!(again.content(), reply.content());
    scene.assert_each_acted_once(&[call]).await;
    scene.drain([worker]).await;
}

/// Which of the two attempts is answered first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum First {
    Overtaken,
    Overtaking,
}

#[tokio::test]
async fn a_late_completion_is_kept_while_the_overtaking_attempt_runs() {
    overtaken(First::Overtaken).await;
}

#[tokio::test]
async fn a_late_completion_after_the_overtaking_attempts_is_answered_from_the_row() {
    overtaken(First::Overtaking).await;
}

/// A worker that cannot reach the database while its call is outstanding loses its lease, and
/// another takes over.
async fn overtaken(first: First) {
    let scene = Scene::brief(Class::Keyed).await;
    let call = scene.call();
    let key = key_of(&call);
    let (proxy, url) = Proxy::before(&scene.world.database_url).await;
    let cut_off = scene
        .worker()
        .env("DATABASE_URL", &url)
        .set("prefetch", "1")
        .set("database_statement_timeout", "1s")
        .set("database_connect_timeout", "1s")
        .start()
        .await;
    scene.stall();
    let id = scene.producer.submit(&call).await;
    scene.downstream.wait_for_posts(1).await;
    proxy.swallow(true);

    // The same call once more, to the other worker: this one holds all that it may.
    let overtaking = match first {
        First::Overtaken => scene.start().await,
        First::Overtaking => {
            scene.downstream.otherwise(Does::Act);
            scene.start().await
        }
    };
    let again = scene.producer.submit(&call).await;
    scene.downstream.wait_for_posts(2).await;
    if first == First::Overtaking {
        scene.producer.reply_for(&again).await;
    }
    let heal = || {
        proxy.swallow(false);
        proxy.cut();
    };
    match first {
        First::Overtaken => {
            heal();
            // Only the first request is answered: the connection of the second is still held.
            scene.downstream.release_next(1);
            eventually("the late completion is kept", async || {
                scene.world.history(&key).await == ["takeover", "late_completion"]
            })
            .await;
            assert_eq!(scene.world.state(&key).await, "in_flight");
            scene.release();
        }
        First::Overtaking => {
            scene.release();
            heal();
        }
    }
    let replies = [scene.producer.reply_for(&id).await, scene.producer.reply_for(&again).await];
    for reply in &replies {
        assert_eq!((reply.status(), reply.key()), ("completed", &*key), "{reply:?}");
        assert_eq!(reply.content(), "{\"id\": \"pay_1\",  \"ok\":true}");
    }
    scene.drain([cut_off, overtaking]).await;
    assert_eq!(scene.downstream.counts(), (2, 1));
    let row = scene.world.row(&key).await.expect("a write has a row");
    assert_eq!((&*row.state, row.attempt), ("completed", 2));
    let history = scene.world.history(&key).await;
    match first {
        First::Overtaken => assert_eq!(history, ["takeover", "late_completion"]),
        First::Overtaking => assert_eq!(history, ["takeover"]),
    }
}
