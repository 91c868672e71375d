//! The crash table of the design, section 6: a worker killed between any two steps, for each class
//! of tool.

use serde_json::Value;

use crate::scene::{Class, Scene};
use crate::support::{Reply, key_of};

/// Where the first worker is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum At {
    Received,
    Claimed,
    Sending,
    /// While the request is outstanding: it has arrived, and it has acted.
    Outstanding,
    Answered,
    Settling,
    Settled,
    Replied,
}

/// What the next worker must make of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    /// It is the first to act.
    Runs,
    /// A read: nothing is remembered, and it is asked again.
    AsksAgain,
    /// It waits out the lease, takes over, and sends the same under the same key.
    TakesOver,
    /// It waits out the lease and says that nobody knows.
    SaysUnknown,
    /// It answers from the row.
    Replays,
}

macro_rules! crash_table {
    ($($name:ident: $at:ident, $class:ident => $then:ident;)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                killed(At::$at, Class::$class, Then::$then).await;
            }
        )*
    };
}

crash_table! {
    a_read_that_was_received_runs: Received, Read => Runs;
    a_read_that_was_about_to_be_sent_runs: Sending, Read => Runs;
    a_read_that_was_outstanding_runs_again: Outstanding, Read => AsksAgain;
    a_read_that_was_answered_runs_again: Answered, Read => AsksAgain;
    a_read_before_its_settling_runs_again: Settling, Read => AsksAgain;
    a_read_before_its_reply_runs_again: Settled, Read => AsksAgain;
    a_read_after_its_reply_runs_and_is_replied_again: Replied, Read => AsksAgain;

    a_keyed_write_that_was_received_runs: Received, Keyed => Runs;
    a_keyed_write_that_was_claimed_is_taken_over: Claimed, Keyed => TakesOver;
    a_keyed_write_that_was_about_to_be_sent_is_taken_over: Sending, Keyed => TakesOver;
    a_keyed_write_that_was_outstanding_is_taken_over: Outstanding, Keyed => TakesOver;
    a_keyed_write_that_was_answered_is_taken_over: Answered, Keyed => TakesOver;
    a_keyed_write_before_its_settling_is_taken_over: Settling, Keyed => TakesOver;
    a_keyed_write_before_its_reply_is_replayed: Settled, Keyed => Replays;
    a_keyed_write_after_its_reply_is_replayed_again: Replied, Keyed => Replays;

    an_unkeyed_write_that_was_received_runs: Received, Unkeyed => Runs;
    // Nothing was sent, and nobody can know: the claim says that it may have been.
    an_unkeyed_write_that_was_claimed_is_unknown: Claimed, Unkeyed => SaysUnknown;
    an_unkeyed_write_that_was_about_to_be_sent_is_unknown: Sending, Unkeyed => SaysUnknown;
    an_unkeyed_write_that_was_outstanding_is_unknown: Outstanding, Unkeyed => SaysUnknown;
    an_unkeyed_write_that_was_answered_is_unknown: Answered, Unkeyed => SaysUnknown;
    an_unkeyed_write_before_its_settling_is_unknown: Settling, Unkeyed => SaysUnknown;
    an_unkeyed_write_before_its_reply_is_replayed: Settled, Unkeyed => Replays;
    an_unkeyed_write_after_its_reply_is_replayed_again: Replied, Unkeyed => Replays;
}

impl At {
    /// The name of the point in the worker; none where the downstream decides.
    fn failpoint(self) -> Option<&'static str> {
        match self {
            Self::Received => Some("received"),
            Self::Claimed => Some("claimed"),
            Self::Sending => Some("sending"),
            Self::Outstanding => None,
            Self::Answered => Some("answered"),
            Self::Settling => Some("settling"),
            Self::Settled => Some("settled"),
            Self::Replied => Some("replied"),
        }
    }

    /// What the ledger says of a write then.
    fn state(self) -> &'static str {
        match self {
            Self::Received => "none",
            Self::Claimed | Self::Sending | Self::Outstanding | Self::Answered | Self::Settling => {
                "in_flight"
            }
            Self::Settled | Self::Replied => "completed",
        }
    }

    /// How many requests have been made then.
    fn posts(self) -> usize {
        usize::from(self >= Self::Outstanding)
    }

    /// How many replies have been confirmed then.
    fn replies(self) -> usize {
        usize::from(self == Self::Replied)
    }
}

async fn killed(at: At, class: Class, then: Then) {
    let scene = Scene::brief(class).await;
    let call = scene.call();
    let key = key_of(&call);
    let id = kill_at(&scene, at, &call).await;

    let state = if class == Class::Read { "none" } else { at.state() };
    assert_eq!(scene.world.state(&key).await, state);
    assert_eq!(scene.downstream.counts(), (at.posts(), at.posts()));
    assert_eq!(scene.replies_for(&id).await.len(), at.replies());

    let worker = scene.start().await;
    scene.producer.wait_for_replies_of(&id, at.replies() + 1).await;
    scene.drain([worker]).await;

    let replies = scene.replies_for(&id).await;
    assert_eq!(replies.len(), at.replies() + 1, "{replies:?}");
    let last = replies.last().expect("there is one");
    assert_eq!((last.key(), &last.json["call_id"]), (&*key, &call["call_id"]));
    if let [first, second] = &replies[..]
        && class != Class::Read
    {
        assert_eq!(first.content(), second.content());
    }
    assert_then(&scene, at, class, then, &call, last).await;
}

/// Kills a worker at the point and says the job's correlation id.
async fn kill_at(scene: &Scene, at: At, call: &Value) -> String {
    let builder = match at.failpoint() {
        Some(name) => scene.worker().failpoint(name, 0),
        None => {
            scene.stall();
            scene.worker()
        }
    };
    let mut worker = builder.start().await;
    let id = scene.producer.submit(call).await;
    match at.failpoint() {
        Some(name) => worker.wait_for_failpoint(name).await,
        None => scene.downstream.wait_for_posts(1).await,
    }
    worker.kill();
    scene.release();
    id
}

/// An `unkeyed_write` whose worker was lost is asked for by its key: what it did is known then, and
/// nothing is sent again.
#[tokio::test]
async fn a_lost_unkeyed_write_is_asked_for_by_its_key() {
    let mut scene = Scene::brief(Class::Unkeyed).await;
    scene.tool = scene.tool.clone().probe(&scene.downstream, ", deadline = \"5s\"");
    let call = scene.call();
    let id = kill_at(&scene, At::Outstanding, &call).await;

    let worker = scene.start().await;
    let reply = scene.producer.reply_for(&id).await;

    assert_eq!((reply.status(), reply.replayed()), ("completed", true), "{reply:?}");
    assert_eq!(scene.downstream.counts(), (1, 1));
    let history = scene.world.history(&key_of(&call)).await;
    assert_eq!(history, ["became_unknown", "probe_completed"]);
    scene.drain([worker]).await;
}

/// That the downstream does not know the call counts once the lost attempt's time-out is over, and
/// then the call runs.
#[tokio::test]
async fn a_lost_unkeyed_write_that_never_arrived_runs_once_that_is_certain() {
    let mut scene = Scene::brief(Class::Unkeyed).await;
    let probe = ", not_found = \"not_run\", settle_delay = \"100ms\", deadline = \"5s\"";
    let quick = scene.tool.clone().with("connect_timeout", "\"500ms\"");
    scene.tool = quick.probe(&scene.downstream, probe).timeout("1s");
    let call = scene.call();
    let id = kill_at(&scene, At::Sending, &call).await;

    let worker = scene.start().await;
    let reply = scene.producer.reply_for(&id).await;

    assert_eq!((reply.status(), reply.replayed()), ("completed", false), "{reply:?}");
    assert_eq!(scene.downstream.counts(), (1, 1));
    assert!(scene.downstream.questions() >= 2, "the first answer came too early to count");
    let history = scene.world.history(&key_of(&call)).await;
    assert_eq!(history, ["became_unknown", "probe_not_found"]);
    scene.drain([worker]).await;
}

async fn assert_then(scene: &Scene, at: At, class: Class, then: Then, call: &Value, reply: &Reply) {
    let key = key_of(call);
    let counts = scene.downstream.counts();
    let row = scene.world.row(&key).await;
    let row = row.as_ref().map(|row| (&*row.state, row.attempt, row.lapses, row.too_many));
    let history = scene.world.history(&key).await;
    let attempt = reply.json["attempt"].as_i64();
    let said = (reply.status(), reply.replayed(), attempt);
    for post in scene.downstream.all() {
        assert_eq!(post.keys, [&*key], "every request has the key, once");
        assert_eq!(post.body, call["args"].to_string(), "every request has the same body");
    }
    match then {
        Then::Runs | Then::AsksAgain => {
            assert_eq!(said, ("completed", false, Some(1)));
            assert_eq!(counts, (at.posts() + 1, at.posts() + 1));
            let expected = (class != Class::Read).then_some(("completed", 1, 0, false));
            assert_eq!(row, expected);
            assert_eq!(history, [""; 0]);
        }
        Then::TakesOver => {
            assert_eq!(said, ("completed", false, Some(2)));
            assert_eq!(reply.content(), "{\"id\": \"pay_1\",  \"ok\":true}");
            assert_eq!(counts, (at.posts() + 1, 1));
            assert_eq!(row, Some(("completed", 2, 0, false)));
            assert_eq!(history, ["takeover"]);
        }
        Then::SaysUnknown => {
            assert_unknown(reply);
            assert_eq!(said, ("unknown", true, Some(1)));
            assert_eq!(counts, (at.posts(), at.posts()));
            assert_eq!(row, Some(("unknown", 1, 0, false)));
            assert_eq!(history, ["became_unknown"]);
            assert_stays_unknown(scene, call).await;
        }
        Then::Replays => {
            assert_eq!(said, ("completed", true, Some(1)));
            assert_eq!(reply.content(), "{\"id\": \"pay_1\",  \"ok\":true}");
            assert_eq!(counts, (1, 1));
            assert_eq!(row, Some(("completed", 1, 0, false)));
            assert_eq!(history, [""; 0]);
        }
    }
}

/// The message says three things: it is unknown, look it up by its key, do not resubmit.
fn assert_unknown(reply: &Reply) {
    assert_eq!((reply.status(), reply.kind()), ("unknown", "worker_lost"), "{reply:?}");
    assert_eq!(reply.content(), "null");
    assert_eq!(reply.json["is_error"], true);
    let message = reply.json["error"]["message"].as_str().expect("a message");
    for part in ["unknown", "by its key", "do not resubmit"] {
        assert!(message.contains(part), "{part:?} is missing in {message:?}");
    }
}

/// The call of a retried turn makes no other request.
async fn assert_stays_unknown(scene: &Scene, call: &Value) {
    let posts = scene.downstream.posts();
    let worker = scene.start().await;
    let mut again = call.clone();
    again["call_id"] = "toolu_of_the_retried_turn".into();
    let reply = scene.producer.call(&again).await;
    assert_unknown(&reply);
    assert_eq!(reply.json["call_id"], "toolu_of_the_retried_turn");
    scene.drain([worker]).await;
    assert_eq!(scene.downstream.posts(), posts);
}
