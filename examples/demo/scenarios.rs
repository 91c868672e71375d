//! The repeats, one function each: what is done, and the least that must be seen for it to count.

use std::fmt;

use anyhow::{Context as _, bail, ensure};
use callonce::call::job::{Job, Limits};

use crate::place::Reply;
use crate::say;
use crate::stage::Stage;
use crate::watch::{Books, Logs, Said, until};

/// A scenario that was played.
pub(crate) struct Act {
    /// Its row in the table.
    pub(crate) row: &'static str,
    pub(crate) calls: Vec<Call>,
    pub(crate) replies: Vec<Reply>,
}

/// A logical call: what shares one key.
pub(crate) struct Call {
    pub(crate) key: String,
    /// For people.
    pub(crate) name: String,
}

/// What was seen of some calls.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seen {
    pub(crate) deliveries: usize,
    pub(crate) posts: usize,
    pub(crate) effects: usize,
    pub(crate) replays: usize,
}

/// Submits the same message two times.
pub(crate) async fn the_same_job_twice(stage: &mut Stage<'_>) -> anyhow::Result<Act> {
    let act = Begun::new("1. The same job twice", "1 the same job twice")?;
    let turn = Turn { conversation: "conv_1", index: 0, response: "msg_1a" };
    let job = turn.pays(r#"{"invoice": "INV-1", "amount": "120.00"}"#, 0, "toolu_1a");
    say("   submitted: pay INV-1, twice and at once")?;
    let jobs = vec![job.clone(), job];
    let replies = stage.submit(&jobs).await?;
    act.ends(stage, &jobs, replies, Seen { deliveries: 2, posts: 1, effects: 1, replays: 1 }).await
}

/// Asks for a turn's calls, and again after its stream was cut: the model's second response has
/// other ids, another order of calls and members, and other white space.
pub(crate) async fn a_turn_under_new_call_ids(stage: &mut Stage<'_>) -> anyhow::Result<Act> {
    let act =
        Begun::new("2. The same turn retried under new call ids", "2 a turn under new call ids")?;
    let turn = Turn { conversation: "conv_2", index: 4, response: "msg_2a" };
    let mut jobs = vec![
        turn.pays(r#"{"invoice": "INV-2", "amount": "20.00"}"#, 0, "toolu_2a"),
        turn.pays(r#"{"invoice": "INV-3", "amount": "30.00"}"#, 0, "toolu_2b"),
    ];
    say("   submitted: a turn that pays INV-2 and INV-3")?;
    let mut replies = stage.submit(&jobs).await?;
    let retried = Turn { response: "msg_2b", ..turn };
    let again = [
        retried.pays(r#"{"amount":"30.00","invoice":"INV-3"}"#, 0, "toolu_2c"),
        retried.pays(r#"{"amount":"20.00","invoice":"INV-2"}"#, 0, "toolu_2d"),
    ];
    say("   submitted: the turn again, as after a cut stream: other ids, order and spacing")?;
    replies.extend(stage.submit(&again).await?);
    jobs.extend(again);
    act.ends(stage, &jobs, replies, Seen { deliveries: 4, posts: 2, effects: 2, replays: 2 }).await
}

/// Kills a worker that has sent its POST and has no answer yet.
pub(crate) async fn a_worker_killed(stage: &mut Stage<'_>) -> anyhow::Result<Act> {
    let act = Begun::new(
        "3. A worker ended with SIGKILL while its POST is outstanding",
        "3 a worker ended with SIGKILL",
    )?;
    let turn = Turn { conversation: "conv_3", index: 0, response: "msg_3a" };
    let jobs = vec![turn.pays(r#"{"invoice": "INV-4", "amount": "45.00"}"#, 0, "toolu_3a")];
    let key = Call::of(&jobs[0])?.key;
    let place = stage.place;
    let before = stage.books().await?;
    stage.stall_next().await?;
    say("   submitted: pay INV-4")?;
    let killed = async {
        stage.stalled(&before).await?;
        let holder = stage.worker_of(&key)?;
        let killed = stage.kill(holder).await?;
        say(&format!("   INV-4 is paid and not answered: worker {} gets SIGKILL", killed.number))
    };
    let (replies, ()) = tokio::try_join!(place.submit(&jobs), killed)?;
    let reply = replies.first().context("no reply")?;
    ensure!(reply.attempt == 2, "the reply is of attempt {}, not of the second", reply.attempt);
    let [other] = &stage.workers[..] else { bail!("not one worker was left") };
    let payment = reply.content["payment"].as_str().context("the reply names no payment")?;
    say(&format!(
        "   worker {} waited for the lease to run out and sent the same key: the API says {payment}",
        other.number
    ))?;
    stage.add_worker()?;
    stage.all_consume().await?;
    act.ends(stage, &jobs, replies, Seen { deliveries: 2, posts: 2, effects: 1, replays: 0 }).await
}

/// Has the broker close the consuming connection of a worker that waits for its answer: what it
/// then stores it cannot ack.
pub(crate) async fn a_connection_closed(stage: &mut Stage<'_>) -> anyhow::Result<Act> {
    let act = Begun::new(
        "4. A connection closed by the broker before the ack",
        "4 a connection closed before the ack",
    )?;
    let turn = Turn { conversation: "conv_4", index: 0, response: "msg_4a" };
    let jobs = vec![turn.pays(r#"{"invoice": "INV-5", "amount": "50.00"}"#, 0, "toolu_4a")];
    let key = Call::of(&jobs[0])?.key;
    let place = stage.place;
    // Looked up before, so that the tool's time-out is not spent on it.
    let listed = place.rabbitmqctl(&["-q", "list_connections", "pid", "client_properties"]).await?;
    let before = stage.books().await?;
    stage.stall_next().await?;
    say("   submitted: pay INV-5")?;
    let closed = async {
        stage.stalled(&before).await?;
        let worker = &stage.workers[stage.worker_of(&key)?];
        let named = format!("\"{} consumes\"", worker.name);
        let connection = listed
            .lines()
            .find(|line| line.contains(&named))
            .and_then(|line| line.split_whitespace().next())
            .with_context(|| format!("the broker lists no connection {named}"))?;
        let lost = place.logs_of(worker)?.count(Said::SessionLost);
        place.rabbitmqctl(&["-q", "close_connection", connection, "demo"]).await?;
        until("a worker notices that its connection was closed", async || {
            Ok((place.logs_of(worker)?.count(Said::SessionLost) > lost).then_some(()))
        })
        .await?;
        say(&format!(
            "   INV-5 is paid and not answered: the broker closes worker {}'s connection",
            worker.number
        ))?;
        stage.release().await?;
        until("the ack finds its session gone", async || {
            Ok((place.logs()?.count_of(&key, Said::NotAcked) > 0).then_some(()))
        })
        .await?;
        say("   the API answered, the outcome is stored, the ack was not possible")?;
        Ok(())
    };
    let (replies, ()) = tokio::try_join!(place.submit(&jobs), closed)?;
    stage.all_consume().await?;
    act.ends(stage, &jobs, replies, Seen { deliveries: 2, posts: 1, effects: 1, replays: 1 }).await
}

/// Submits a call that the model means twice.
pub(crate) async fn two_ordinals(stage: &mut Stage<'_>) -> anyhow::Result<Act> {
    let act = Begun::new("5. Two identical calls with ordinals 0 and 1", "5 ordinals 0 and 1")?;
    let turn = Turn { conversation: "conv_5", index: 0, response: "msg_5a" };
    let arguments = r#"{"invoice": "INV-6", "amount": "60.00"}"#;
    let jobs = vec![turn.pays(arguments, 0, "toolu_5a"), turn.pays(arguments, 1, "toolu_5b")];
    say("   submitted: pay INV-6, and once more in the same turn: both are meant")?;
    let replies = stage.submit(&jobs).await?;
    act.ends(stage, &jobs, replies, Seen { deliveries: 2, posts: 2, effects: 2, replays: 0 }).await
}

/// Submits a payment that was made before, in a later turn.
pub(crate) async fn a_later_turn(stage: &mut Stage<'_>) -> anyhow::Result<Act> {
    let act =
        Begun::new("6. The same payment in a later turn", "6 a payment again in a later turn")?;
    let arguments = r#"{"invoice": "INV-7", "amount": "70.00"}"#;
    let turn = Turn { conversation: "conv_6", index: 0, response: "msg_6a" };
    let later = Turn { index: 1, response: "msg_6b", ..turn };
    let jobs = vec![turn.pays(arguments, 0, "toolu_6a"), later.pays(arguments, 0, "toolu_6b")];
    say("   submitted: pay INV-7; when it is paid, the same in the next turn: both are meant")?;
    let mut replies = stage.submit(&jobs[..1]).await?;
    replies.extend(stage.submit(&jobs[1..]).await?);
    act.ends(stage, &jobs, replies, Seen { deliveries: 2, posts: 2, effects: 2, replays: 0 }).await
}

/// Loses the answer of a tool that ignores keys: nobody of ours can know whether it acted, so a person
/// looks it up.
pub(crate) async fn a_call_that_ends_unknown(stage: &mut Stage<'_>) -> anyhow::Result<Act> {
    let act = Begun::new(
        "7. A call that ends unknown, and is resolved by a person",
        "7 unknown, and resolved",
    )?;
    let turn = Turn { conversation: "conv_7", index: 0, response: "msg_7a" };
    let jobs = vec![turn.calls("create_ticket", r#"{"subject": "printer"}"#, 0, "toolu_7a")];
    let key = Call::of(&jobs[0])?.key;
    stage.lose_next().await?;
    say("   submitted: open a ticket; it is opened, and a gateway answers 504 in its place")?;
    let told = stage.submit(&jobs).await?;
    let told = told.first().context("no reply")?;
    ensure!(told.status == "unknown", "the reply says {}, not unknown", told.status);
    say("   the reply says unknown: the API ignores keys, so nothing is sent again")?;
    let answer = stage.ticket_of(&key).await?;
    say(&format!("   a person finds the key in the API's own records: {answer}"))?;
    let decided = stage.place.resolve(&key, &answer).await?;
    say(&format!("   callonce ledger resolve … --completed FILE: {}", decided.trim()))?;
    say("   submitted: the job again")?;
    let replies = stage.submit(&jobs).await?;
    act.ends(stage, &jobs, replies, Seen { deliveries: 2, posts: 1, effects: 1, replays: 1 }).await
}

/// A scenario that is being played.
struct Begun {
    row: &'static str,
}

impl Begun {
    fn new(title: &str, row: &'static str) -> anyhow::Result<Self> {
        say("")?;
        say(title)?;
        Ok(Self { row })
    }

    /// Waits until as much was seen as the scenario is about, and says what it was.
    async fn ends(
        self,
        stage: &Stage<'_>,
        jobs: &[String],
        replies: Vec<Reply>,
        least: Seen,
    ) -> anyhow::Result<Act> {
        ensure!(replies.len() == jobs.len(), "{} jobs, {} replies", jobs.len(), replies.len());
        let mut calls = Vec::new();
        for job in jobs {
            let call = Call::of(job)?;
            if !calls.iter().any(|known: &Call| known.key == call.key) {
                calls.push(call);
            }
        }
        let mut seen = Seen::default();
        until("the repeat happens for real", async || {
            seen = Seen::of(&calls, &stage.books().await?, &stage.place.logs()?);
            Ok(seen.covers(least).then_some(()))
        })
        .await
        .with_context(|| format!("wanted are at least {least}; seen: {seen}"))?;
        say(&format!("   seen: {seen}"))?;
        Ok(Act { row: self.row, calls, replies })
    }
}

/// One response of the model.
#[derive(Clone, Copy)]
struct Turn {
    conversation: &'static str,
    index: u32,
    response: &'static str,
}

impl Turn {
    /// A job of this turn.
    fn pays(self, arguments: &str, ordinal: u32, call_id: &str) -> String {
        self.calls("send_payment", arguments, ordinal, call_id)
    }

    fn calls(self, name: &str, arguments: &str, ordinal: u32, call_id: &str) -> String {
        let Self { conversation, index, response } = self;
        format!(
            r#"{{"conversation_id": "{conversation}", "turn_index": {index}, "ordinal": {ordinal}, "#
        ) + &format!(r#""call_id": "{call_id}", "response_id": "{response}", "#)
            + &format!(r#""name": "{name}", "args": {arguments}}}"#)
    }
}

impl Call {
    /// The call that a job asks for.
    fn of(job: &str) -> anyhow::Result<Self> {
        let job = Job::decode(&job.to_owned().into(), None, None, &Limits::default())
            .map_err(|bad| bad.error)?;
        let (conversation, turn, ordinal) = (&job.conversation_id, job.turn_index, job.ordinal);
        let arguments = String::from_utf8_lossy(&job.args);
        Ok(Self {
            key: job.key().to_string(),
            name: format!(
                "{conversation}, turn {}, ordinal {}, {arguments}",
                turn.get(),
                ordinal.get()
            ),
        })
    }
}

impl Seen {
    /// Deliveries and replays are what the workers logged, the killed one's included; POSTs and
    /// payments are what the payments API counted.
    pub(crate) fn of(calls: &[Call], books: &Books, logs: &Logs) -> Self {
        let mut seen = Self::default();
        for Call { key, .. } in calls {
            seen.deliveries += logs.count_of(key, Said::Received);
            seen.replays += logs.count_of(key, Said::Replayed);
            seen.posts += books.of(key).posts;
            seen.effects += books.of(key).effects;
        }
        seen
    }

    fn covers(self, least: Self) -> bool {
        self.deliveries >= least.deliveries
            && self.posts >= least.posts
            && self.effects >= least.effects
            && self.replays >= least.replays
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |count: usize, one: &'static str, more: &'static str| {
            format!("{count} {}", if count == 1 { one } else { more })
        };
        write!(
            f,
            "{}, {}, {}, {}",
            plural(self.deliveries, "delivery", "deliveries"),
            plural(self.posts, "POST", "POSTs"),
            plural(self.effects, "effect", "effects"),
            plural(self.replays, "replay", "replays"),
        )
    }
}
