//! The same call again, by every road by which it can come.

use serde_json::json;

use crate::support::{Downstream, Tool, World, job, key_of};

///
#[tokio::test]
async fn the_same_call_twice_acts_once_and_is_answered_alike() {
    let world = World::new().await;
    let downstream = Downstream::collapsing().await;
    let mut worker = world.worker(&[Tool::keyed("send_payment", &downstream)]).start().await;
    let producer = world.producer().await;

    let call = job("send_payment", json!({"invoice": "INV-7", "amount": "120.00"}));
    let first = producer.call(&call).await;
    let mut again = call.clone();
    again["call_id"] = json!("toolu_of_the_retried_turn");
    let second = producer.call(&again).await;

    assert_eq!(downstream.counts(), (1, 1));
    assert_eq!((first.status(), second.status()), ("completed", "completed"));
    assert_eq!(first.content(), "{\"id\": \"pay_1\",  \"ok\":true}");
    assert_eq!(first.content(), second.content());
    assert_eq!((first.replayed(), second.replayed()), (false, true));
    assert_eq!(first.json["call_id"], call["call_id"]);
    assert_eq!(second.json["call_id"], "toolu_of_the_retried_turn");
    assert_eq!((first.key(), second.key()), (&*key_of(&call), &*key_of(&call)));
    worker.drain().await;
    assert_eq!(producer.ready("jobs").await, 0);
}
