//! Every refusal of a job whose key can be derived asks the ledger first.

use serde_json::{Value, json};

use crate::support::{Does, Downstream, Tool, World, job, key_of};

fn expiring(call: &Value, at: &str) -> Value {
    let mut call = call.clone();
    call["expires_at"] = json!(at);
    call
}

const PAST: &str = "2020-01-01T00:00:00Z";
const FUTURE: &str = "2120-01-01T00:00:00+02:00";

#[tokio::test]
async fn a_stored_outcome_answers_where_the_tool_is_no_longer_known() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let mut older = world.worker(&[Tool::keyed("send_payment", &downstream)]).start().await;
    let producer = world.producer().await;
    let call = job("send_payment", json!({"invoice": "INV-7"}));
    let first = producer.call(&call).await;
    older.drain().await;

    let mut newer = world.worker(&[Tool::keyed("pay_by_card", &downstream)]).start().await;
    let second = producer.call(&call).await;

    assert_eq!((second.status(), second.replayed()), ("completed", true));
    assert_eq!(second.content(), first.content());
    assert_eq!(downstream.counts(), (1, 1));
    newer.drain().await;
    assert_eq!((producer.ready("dead").await, newer.times_logged("waits in a delay")), (0, 0));
}

#[tokio::test]
async fn a_stored_outcome_answers_where_the_schema_became_stricter() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let mut older = world.worker(&[Tool::keyed("send_payment", &downstream)]).start().await;
    let producer = world.producer().await;
    let call = job("send_payment", json!({"invoice": "INV-7"}));
    let first = producer.call(&call).await;
    older.drain().await;

    let stricter = Tool::keyed("send_payment", &downstream)
        .schema(r#"{ type = "object", required = ["amount"] }"#);
    let mut newer = world.worker(&[stricter]).start().await;
    let second = producer.call(&call).await;
    let other = producer.call(&job("send_payment", json!({"invoice": "INV-8"}))).await;

    assert_eq!((second.status(), second.replayed()), ("completed", true));
    assert_eq!(second.content(), first.content());
    assert_eq!((other.status(), other.kind()), ("not_run", "bad_arguments"));
    assert_eq!(downstream.counts(), (1, 1));
    newer.drain().await;
}

/// The key can be derived, since only a field that is no part of it is wrong.
#[tokio::test]
async fn a_stored_outcome_answers_a_job_whose_key_is_right_and_whose_meta_is_wrong() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let mut worker = world.worker(&[Tool::keyed("send_payment", &downstream)]).start().await;
    let producer = world.producer().await;
    let call = job("send_payment", json!({"invoice": "INV-7"}));
    let mut wrong = call.clone();
    wrong["meta"] = json!("no object");

    let refused = producer.call(&wrong).await;
    let first = producer.call(&call).await;
    let second = producer.call(&wrong).await;

    assert_eq!((refused.status(), refused.kind()), ("not_run", "bad_job"));
    assert_eq!(refused.key(), key_of(&call));
    assert_eq!((second.status(), second.replayed()), ("completed", true));
    assert_eq!(second.content(), first.content());
    assert_eq!(downstream.counts(), (1, 1));
    worker.drain().await;
    assert_eq!(producer.take_dead().await.len(), 1);
}

/// A refusal waits for an attempt that runs: it may not say "not run" of it.
#[tokio::test]
async fn a_refusal_waits_for_the_attempt_that_runs() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.otherwise(Does::ActAndStall);
    let older = [Tool::keyed("send_payment", &downstream)];
    // With room for one delivery, it has none left for the second.
    let mut older = world.worker(&older).set("prefetch", "1").start().await;
    let producer = world.producer().await;
    let call = job("send_payment", json!({"invoice": "INV-7"}));
    let first = producer.submit(&call).await;
    downstream.wait_for_posts(1).await;

    let mut newer = world.worker(&[Tool::keyed("pay_by_card", &downstream)]).start().await;
    let second = producer.submit(&call).await;
    newer.wait_until_logged("waits in a delay queue").await;
    assert!(producer.replies().is_empty());
    downstream.release();
    let (first, second) = (producer.reply_for(&first).await, producer.reply_for(&second).await);

    assert_eq!((first.status(), second.status()), ("completed", "completed"));
    assert_eq!(first.content(), second.content());
    assert_eq!(downstream.counts(), (1, 1));
    older.drain().await;
    newer.drain().await;
    assert_eq!((producer.ready("jobs").await, producer.ready("dead").await), (0, 0));
}

#[tokio::test]
async fn an_expired_job_without_a_row_is_not_begun() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let tools = [
        Tool::keyed("send_payment", &downstream),
        Tool::unkeyed("create_ticket", &downstream),
        Tool::read("search_orders", &downstream),
        Tool::keyed("without_ledger", &downstream).with("ledger", "false"),
    ];
    let mut worker = world.worker(&tools).start().await;
    let producer = world.producer().await;

    for name in ["send_payment", "create_ticket", "search_orders", "without_ledger"] {
        let reply = producer.call(&expiring(&job(name, json!({})), PAST)).await;
        assert_eq!((reply.status(), reply.kind()), ("not_run", "expired"), "{name}");
        assert_eq!((reply.replayed(), &reply.json["attempt"]), (true, &json!(0)), "{name}");
    }
    assert_eq!((downstream.counts(), world.rows().await), ((0, 0), 0));
    let reply = producer.call(&expiring(&job("send_payment", json!({})), FUTURE)).await;
    assert_eq!((reply.status(), downstream.counts()), ("completed", (1, 1)));
    worker.drain().await;
    assert_eq!((producer.ready("jobs").await, producer.ready("dead").await), (0, 0));
}

#[tokio::test]
async fn an_expired_job_whose_call_is_completed_is_answered_with_its_outcome() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let mut worker = world.worker(&[Tool::keyed("send_payment", &downstream)]).start().await;
    let producer = world.producer().await;

    let call = job("send_payment", json!({"invoice": "INV-7"}));
    let first = producer.call(&call).await;
    let second = producer.call(&expiring(&call, PAST)).await;

    assert_eq!((second.status(), second.replayed()), ("completed", true));
    assert_eq!(second.content(), first.content());
    assert_eq!(downstream.counts(), (1, 1));
    worker.drain().await;
}

#[tokio::test]
async fn an_expired_job_whose_call_was_not_run_is_not_begun() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.otherwise(Does::Answer(503, "{}".to_owned()));
    let tools = [Tool::keyed("send_payment", &downstream).retry("50ms", 0)];
    let mut worker = world.worker(&tools).start().await;
    let producer = world.producer().await;

    let call = job("send_payment", json!({"invoice": "INV-7"}));
    let refused = producer.call(&call).await;
    assert_eq!((refused.status(), refused.kind()), ("not_run", "refused"));
    let posts = downstream.posts();
    downstream.otherwise(Does::Act);
    let expired = producer.call(&expiring(&call, PAST)).await;
    assert_eq!((expired.status(), expired.kind()), ("not_run", "expired"));
    assert_eq!(downstream.counts(), (posts, 0));
    let run = producer.call(&call).await;
    assert_eq!((run.status(), downstream.effects()), ("completed", 1));
    worker.drain().await;
}

/// B38: a row of another call under the same key is an alarm, never a replay.
#[tokio::test]
async fn a_row_that_was_made_of_another_call_is_not_replayed() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let mut worker = world.worker(&[Tool::keyed("send_payment", &downstream)]).start().await;
    let producer = world.producer().await;

    let call = job("send_payment", json!({"invoice": "INV-7"}));
    producer.call(&call).await;
    world.sql("UPDATE callonce_calls SET conversation_id = 'somebody else''s'").await;
    let reply = producer.call(&call).await;

    assert_eq!((reply.status(), reply.kind()), ("not_run", "bad_job"));
    assert_eq!(reply.json["content"], json!(null));
    assert_eq!(downstream.counts(), (1, 1));
    worker.drain().await;
    assert!(worker.logged("another call has this key") && worker.logged("collisions=1"));
}
