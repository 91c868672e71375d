//! The matrix: clients of an event stream, each against a server of jobs that refuses, breaks off,
//! closes without a word, or is asked twice. What counts is how many jobs there are, not what the
//! client believed; each server is on a port of its own, with books of its own, and goes with its
//! test.
//!
//! The clients that are rejected stay here, with the way in which each fails.

#[path = "../../examples/jobs/server.rs"]
mod server;

mod clients;
mod worker;

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::task::JoinSet;

use clients::{Client, Failed};
use server::{Counts, Jobs};
pub(crate) use server::{Does, Keys};

/// A disposable job server.
pub(crate) struct Server {
    pub(crate) jobs: Arc<Jobs>,
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl Server {
    pub(crate) async fn new(keys: Keys, otherwise: Does) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let jobs = Arc::new(Jobs::new(keys, otherwise));
        let mut tasks = JoinSet::new();
        tasks.spawn(server::serve(listener, Arc::clone(&jobs)));
        Self { jobs, address, _tasks: tasks }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Requests for a job, and jobs.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let Counts { posts, jobs, running } = self.jobs.counts();
        assert_eq!(running, 0, "a job is still on its way");
        (posts, jobs)
    }
}

/// What can become of one request for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    RejectedThenAccepted,
    ClosedAfterTheFirstEvent,
    ClosedWithoutTheTerminalEvent,
    TheSameKeyTwice,
}

impl Case {
    const ALL: [Self; 4] = [
        Self::RejectedThenAccepted,
        Self::ClosedAfterTheFirstEvent,
        Self::ClosedWithoutTheTerminalEvent,
        Self::TheSameKeyTwice,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::RejectedThenAccepted => "rejected before headers, then accepted",
            Self::ClosedAfterTheFirstEvent => "closed after the first event",
            Self::ClosedWithoutTheTerminalEvent => "clean close without the terminal event",
            Self::TheSameKeyTwice => "the same key twice",
        }
    }

    /// What the server does with the first request.
    fn does(self) -> Does {
        match self {
            Self::RejectedThenAccepted => Does::Reject,
            Self::ClosedAfterTheFirstEvent => Does::Cut,
            Self::ClosedWithoutTheTerminalEvent => Does::OmitDone,
            Self::TheSameKeyTwice => Does::Work,
        }
    }

    /// How often somebody asks for the job.
    fn submissions(self) -> usize {
        match self {
            Self::TheSameKeyTwice => 2,
            Self::RejectedThenAccepted
            | Self::ClosedAfterTheFirstEvent
            | Self::ClosedWithoutTheTerminalEvent => 1,
        }
    }
}

/// Prints a row of the table as it came out, before it is held against what it should be.
fn print(who: &str, case: Case, (posts, jobs): (usize, usize)) {
    eprintln!("{who:<32} | {:<40} | POSTs {posts} | jobs {jobs}", case.name());
}

/// Requests and jobs of a case, and what the client said last.
type Row = ((usize, usize), Result<(), Failed>);

/// Runs a client through all cases.
async fn run(client: Client, keys: Keys) -> Vec<Row> {
    let mut rows = Vec::new();
    for case in Case::ALL {
        let server = Server::new(keys, Does::Work).await;
        server.jobs.next(case.does());
        let mut said = Ok(());
        for _ in 0..case.submissions() {
            said = client.submit(&server, "job-1").await;
        }
        let counts = server.counts();
        print(&format!("{client:?}, keys {keys:?}"), case, counts);
        assert!(server.jobs.calls().iter().all(|id| id == "job-1"));
        rows.push((counts, said));
    }
    rows
}

fn counts(rows: &[Row]) -> Vec<(usize, usize)> {
    rows.iter().map(|(counts, _)| *counts).collect()
}

/// B-050 to B-053: the contract.
#[tokio::test]
async fn the_resumable_client_keeps_the_contract_in_all_cases() {
    let rows = run(Client::Resumable, Keys::Honoured).await;
    assert_eq!(counts(&rows), [(2, 1), (1, 1), (1, 1), (1, 1)]);
    assert!(rows.iter().all(|(_, said)| said.is_ok()), "{rows:?}");
}

/// Without a server that keeps keys, asking first saves no second job: both sides keep the contract,
/// or neither does. What the client does not know it says, and sends nothing more.
#[tokio::test]
async fn the_resumable_client_needs_a_server_that_keeps_keys() {
    let rows = run(Client::Resumable, Keys::Ignored).await;
    assert_eq!(counts(&rows), [(2, 1), (1, 1), (1, 1), (2, 2)]);
    let said: Vec<_> = rows.into_iter().map(|(_, said)| said).collect();
    let unknown = Err(Failed::Unknown);
    assert_eq!(said, [Ok(()), unknown.clone(), unknown, Ok(())]);
}

/// Rejected: it takes a missing `done` for a failed request and repeats it without a look at what
/// the server has done. Where the server does not collapse repeats, each doubt is a second job.
#[tokio::test]
async fn the_strict_client_acts_twice_wherever_the_end_of_the_stream_is_missing() {
    let rows = run(Client::Strict, Keys::Ignored).await;
    assert_eq!(counts(&rows), [(2, 1), (2, 2), (2, 2), (2, 2)]);
    assert!(rows.iter().all(|(_, said)| said.is_ok()), "no exception tells: {rows:?}");
}

/// Rejected: even where the server collapses its repeats it asks for the job again in every doubt,
/// and only the server's word stands between that and a second job.
#[tokio::test]
async fn the_strict_client_repeats_itself_to_a_server_that_keeps_keys() {
    let rows = run(Client::Strict, Keys::Honoured).await;
    assert_eq!(counts(&rows), [(2, 1), (2, 1), (2, 1), (2, 1)]);
}

/// B-002, B-008: one submission, two entries of `job-1`, and an error after both of them.
#[tokio::test]
async fn the_strict_client_makes_two_entries_of_a_server_without_a_terminal_event() {
    let server = Server::new(Keys::Ignored, Does::OmitDone).await;
    let said = Client::Strict.submit(&server, "job-1").await;
    print("Strict", Case::ClosedWithoutTheTerminalEvent, server.counts());
    assert_eq!(server.jobs.calls(), ["job-1", "job-1"], "counted in jobs, not in errors");
    assert_eq!(server.counts(), (2, 2));
    assert_eq!(said, Err(Failed::NoDone));
}

/// Rejected: it is quiet about the missing `done`, which makes the row of the clean close right; a
/// broken stream it repeats all the same.
#[tokio::test]
async fn the_client_without_a_sentinel_acts_twice_where_the_stream_breaks() {
    let rows = run(Client::NoSentinel, Keys::Ignored).await;
    assert_eq!(counts(&rows), [(2, 1), (2, 2), (1, 1), (2, 2)]);
    assert!(rows.iter().all(|(_, said)| said.is_ok()), "no exception tells: {rows:?}");
}

/// Rejected: of a job that the server lost it says that it was done. The strict client makes that
/// job, and the resumable one says that it does not know.
#[tokio::test]
async fn the_client_without_a_sentinel_loses_a_job_and_says_ok() {
    for (client, counts, said) in [
        (Client::NoSentinel, (1, 0), Ok(())),
        (Client::Strict, (2, 1), Ok(())),
        (Client::Resumable, (1, 0), Err(Failed::Unknown)),
    ] {
        let server = Server::new(Keys::Honoured, Does::Work).await;
        server.jobs.next(Does::Abandon);
        assert_eq!(client.submit(&server, "job-1").await, said, "{client:?}");
        eprintln!("{client:?}: the server lost the job: {:?}", server.counts());
        assert_eq!(server.counts(), counts, "{client:?}");
    }
}

/// A-078, rejected: the key is kept once the call has succeeded. A client that is lost between the
/// effect and its record finds no record, and acts again.
#[tokio::test]
async fn recording_the_key_after_success_acts_twice() {
    let server = Server::new(Keys::Ignored, Does::Work).await;
    let mut recorded = Vec::new();
    for lost in [true, false, false] {
        if recorded.contains(&"job-1") {
            continue;
        }
        Client::Strict.submit(&server, "job-1").await.expect("it is answered");
        if !lost {
            recorded.push("job-1");
        }
    }
    print("records the key after success", Case::TheSameKeyTwice, server.counts());
    assert_eq!(server.counts(), (2, 2));
}

/// Rejected: the provider's call id as the key. A turn that is asked for again comes with another id,
/// so that both sides keep their word and there are two jobs.
#[tokio::test]
async fn keying_on_the_providers_call_id_acts_twice() {
    let turn = |call_id: &str| {
        serde_json::json!({
            "conversation_id": "conv-1", "turn_index": 3, "call_id": call_id,
            "name": "start_job", "args": {"id": "job-1"},
        })
    };
    let turns = ["toolu_first", "toolu_again"].map(turn);
    let (mut by_call_id, mut by_our_key) = (Vec::new(), Vec::new());
    for turn in &turns {
        by_call_id.push(turn["call_id"].as_str().expect("a text").to_owned());
        by_our_key.push(crate::support::key_of(turn));
    }
    for (who, keys, expected) in
        [("the call id as the key", by_call_id, (2, 2)), ("the derived key", by_our_key, (1, 1))]
    {
        let server = Server::new(Keys::Honoured, Does::Work).await;
        for key in &keys {
            Client::Resumable.submit(&server, key).await.expect("it is answered");
        }
        print(who, Case::TheSameKeyTwice, server.counts());
        assert_eq!(server.counts(), expected, "{who}");
    }
}

/// B-032 to B-035: the server keeps the key before the work, says 409 while the job runs, and `done`
/// with `replay` afterwards. To say `ok` of a job that was only taken would be a lie.
#[tokio::test]
async fn the_server_says_ok_of_a_job_only_when_it_is_done() {
    let server = Server::new(Keys::Honoured, Does::Work).await;
    server.jobs.next(Does::Stall);
    let key = "4f0e7d3b9a8c1526d3e4f5a6b7c8d9e0";
    let first = async {
        let answer = clients::post(&server, Some(key), "job-1").await.expect("an answer");
        (answer.status, clients::done(&answer.body).expect("an event `done`"))
    };
    let meanwhile = async {
        crate::support::eventually("the job runs", async || server.jobs.counts().running == 1)
            .await;
        let state = clients::state(&server, key).await;
        let repeat = clients::post(&server, Some(key), "job-1").await.expect("an answer");
        server.jobs.release();
        (state, repeat)
    };
    let ((status, result), (state, repeat)) = tokio::join!(first, meanwhile);
    assert_eq!(state, Some(serde_json::json!({"state": "running"})));
    assert_eq!(repeat.status, 409);
    assert_eq!(clients::done(&repeat.body), None);
    assert_eq!((status, &result["ok"], &result["id"]), (200, &true.into(), &"job-1".into()));
    assert_eq!(result.get("replay"), None);

    let repeat = clients::post(&server, Some(key), "job-1").await.expect("an answer");
    let replayed = clients::done(&repeat.body).expect("an event `done`");
    assert_eq!((repeat.status, &replayed["replay"]), (200, &true.into()));
    assert_eq!(replayed["job"], result["job"]);
    let state = clients::state(&server, key).await.expect("the key is known");
    assert_eq!((&state["state"], &state["result"]), (&"done".into(), &result));
    assert_eq!(clients::state(&server, "another").await, None);

    // Without the header the body's `id` is the key.
    for replay in [None, Some(true.into())] {
        let answer = clients::post(&server, None, "job-2").await.expect("an answer");
        assert!(answer.body.contains("event: progress") != replay.is_some(), "{}", answer.body);
        assert_eq!(clients::done(&answer.body).expect("done").get("replay"), replay.as_ref());
    }
    assert_eq!(server.jobs.calls(), ["job-1", "job-2"]);
    assert_eq!(server.counts(), (5, 2));
}
