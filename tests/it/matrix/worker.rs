//! The same cases through the worker.

use serde_json::json;

use super::{Case, Does, Keys, Server, print};
use crate::support::{Reply, Tool, World, eventually, job};

fn start_job(server: &Server) -> Tool {
    Tool::new("start_job", "keyed_write", server.url("/jobs")).http("in_progress_status", "[409]")
}

/// The same, asked for by its key wherever an answer leaves a doubt.
fn start_probed_job(server: &Server) -> Tool {
    probed(start_job(server), server, "")
}

fn probed(tool: Tool, server: &Server, more: &str) -> Tool {
    let url = server.url("/jobs/{key}");
    let probe = format!(
        "{{ url = \"{url}\", state_field = \"/state\", completed = [\"done\"], \
         running = [\"running\"], result_field = \"/result\"{more} }}"
    );
    tool.http("probe", &probe)
}

/// Runs a case through a worker of its own; the requests, the jobs, and the last reply.
async fn run(case: Case, server: &Server, who: &str, tool: Tool) -> ((usize, usize), Reply) {
    let world = World::new().await;
    server.jobs.next(case.does());
    let mut worker = world.worker(&[tool]).start().await;
    let producer = world.producer().await;
    let call = job("start_job", json!({"id": "job-1"}));
    for _ in 1..case.submissions() {
        producer.call(&call).await;
    }
    let reply = producer.call(&call).await;
    worker.drain().await;
    let counts = server.counts();
    print(who, case, counts);
    (counts, reply)
}

async fn server() -> Server {
    Server::new(Keys::Honoured, Does::Work).await
}

/// B-050.
#[tokio::test]
async fn rejected_before_headers_then_accepted() {
    let server = server().await;
    let case = Case::RejectedThenAccepted;
    let (counts, reply) = run(case, &server, "worker", start_job(&server)).await;
    assert_eq!(counts, (2, 1));
    assert_eq!((reply.status(), &reply.json["content"]["ok"]), ("completed", &json!(true)));
    assert_eq!(server.jobs.calls(), ["job-1"]);
}

/// B-052, B-009: the answer is kept as far as it came, and the server is reported.
#[tokio::test]
async fn clean_close_without_the_terminal_event() {
    for (keys, otherwise) in [(Keys::Honoured, Does::Work), (Keys::Ignored, Does::OmitDone)] {
        let server = Server::new(keys, otherwise).await;
        let case = Case::ClosedWithoutTheTerminalEvent;
        let (counts, reply) = run(case, &server, "worker", start_job(&server)).await;
        assert_eq!(counts, (1, 1), "{keys:?}");
        assert_eq!(reply.status(), "completed");
        assert_eq!(reply.json["warnings"], json!(["missing_terminal_event"]));
        assert_eq!(reply.json["content"], json!({"pct": 50}));
        assert_eq!(server.jobs.calls(), ["job-1"]);
    }
}

/// B-053, with the ledger: the second delivery does not leave the worker.
#[tokio::test]
async fn the_same_key_twice() {
    let server = server().await;
    let case = Case::TheSameKeyTwice;
    let (counts, reply) = run(case, &server, "worker", start_job(&server)).await;
    assert_eq!(counts, (1, 1));
    assert!(reply.replayed());
    assert_eq!(reply.json["content"]["ok"], json!(true));
}

/// B-053: without the ledger it is the server that collapses it.
#[tokio::test]
async fn the_same_key_twice_without_the_ledger() {
    let server = server().await;
    let tool = start_job(&server).with("ledger", "false");
    let case = Case::TheSameKeyTwice;
    let (counts, reply) = run(case, &server, "worker, ledger = false", tool).await;
    assert_eq!(counts, (2, 1));
    assert!(!reply.replayed());
    assert_eq!(reply.json["content"]["replay"], json!(true));
}

/// Without a probe the broken stream of a keyed write is asked for again under the same key.
#[tokio::test]
async fn closed_after_the_first_event_without_a_probe() {
    let server = server().await;
    let case = Case::ClosedAfterTheFirstEvent;
    let (counts, reply) = run(case, &server, "worker, no probe", start_job(&server)).await;
    assert_eq!(counts, (2, 1));
    assert_eq!((reply.status(), &reply.json["content"]["replay"]), ("completed", &json!(true)));
}

/// B-031: what nothing deduplicates is not asked for again; its reply says so.
#[tokio::test]
async fn closed_after_the_first_event_of_a_server_that_ignores_keys() {
    let server = Server::new(Keys::Ignored, Does::Work).await;
    let tool = Tool::new("start_job", "unkeyed_write", server.url("/jobs"));
    let case = Case::ClosedAfterTheFirstEvent;
    let (counts, reply) = run(case, &server, "worker, unkeyed_write", tool).await;
    assert_eq!(counts, (1, 1));
    assert_eq!((reply.status(), reply.kind()), ("unknown", "ambiguous"));
    assert!(reply.text.contains("do not resubmit"), "{}", reply.text);
}

/// B-051, B-019: the state is asked for, and the job is not.
#[tokio::test]
async fn closed_after_the_first_event() {
    let server = server().await;
    let case = Case::ClosedAfterTheFirstEvent;
    let (counts, reply) = run(case, &server, "worker", start_probed_job(&server)).await;
    assert_eq!(counts, (1, 1));
    assert_eq!(reply.status(), "completed");
    assert_eq!(reply.json["content"], json!({"ok": true, "id": "job-1", "job": 1}));
}

/// With a probe the answer that the stream left out is asked for.
#[tokio::test]
async fn clean_close_without_the_terminal_event_and_a_probe() {
    let server = server().await;
    let case = Case::ClosedWithoutTheTerminalEvent;
    let (counts, reply) = run(case, &server, "worker", start_probed_job(&server)).await;
    assert_eq!(counts, (1, 1));
    assert_eq!(reply.status(), "completed");
    assert_eq!(reply.json["content"], json!({"ok": true, "id": "job-1", "job": 1}));
}

/// B-021: the time is over while the server works. Its state is polled until the job is done.
#[tokio::test]
async fn a_time_out_while_the_server_works_is_polled_by_key() {
    let world = World::new().await;
    let server = server().await;
    server.jobs.next(Does::Stall);
    let tool =
        start_probed_job(&server).with("timeout", "\"500ms\"").with("connect_timeout", "\"400ms\"");
    let mut worker = world.worker(&[tool]).start().await;
    let producer = world.producer().await;
    let id = producer.submit(&job("start_job", json!({"id": "job-1"}))).await;
    worker.wait_until_logged("asked the tool for the call's state").await;
    assert_eq!(server.jobs.counts().running, 1);
    server.jobs.release();
    let reply = producer.reply_for(&id).await;

    assert_eq!((reply.status(), &reply.json["content"]["job"]), ("completed", &json!(1)));
    worker.drain().await;
    eventually("the job is done", async || server.jobs.counts().running == 0).await;
    assert_eq!(server.counts(), (1, 1));
}

/// A server that loses a job and closes cleanly: where its word that it does not know the key is
/// taken, the job is made after all. Without that word the reply has the warning, or is `unknown`
/// where the registry asks for it; no second request is sent on a guess.
#[tokio::test]
async fn a_job_that_the_server_lost() {
    let word = ", not_found = \"not_run\", settle_delay = \"50ms\"";
    for (effect, missing, more, counts, status, warnings) in [
        ("keyed_write", "completed", word, (2, 1), "completed", json!([])),
        ("unkeyed_write", "completed", word, (2, 1), "completed", json!([])),
        ("unkeyed_write", "completed", "", (1, 0), "completed", json!(["missing_terminal_event"])),
        ("unkeyed_write", "unknown", "", (1, 0), "unknown", json!([])),
    ] {
        let world = World::new().await;
        let server = server().await;
        server.jobs.next(Does::Abandon);
        let tool = Tool::new("start_job", effect, server.url("/jobs"))
            .http("stream", &format!("{{ missing_terminal = {missing:?} }}"));
        let mut worker = world.worker(&[probed(tool, &server, more)]).start().await;
        let producer = world.producer().await;
        let reply = producer.call(&job("start_job", json!({"id": "job-1"}))).await;
        worker.drain().await;
        let who = format!("worker, {effect}, {missing}{more}");
        eprintln!("{who}: the server lost the job: {:?}", server.counts());
        assert_eq!((server.counts(), reply.status()), (counts, status), "{who}");
        assert_eq!(reply.json["warnings"], warnings, "{who}");
    }
}

/// B-054, B-056: all three columns, as they come out and as they must be.
#[tokio::test]
async fn the_whole_table() {
    let mut rows = Vec::new();
    for case in Case::ALL {
        let server = server().await;
        let (counts, reply) = run(case, &server, "worker", start_probed_job(&server)).await;
        assert_eq!(reply.status(), "completed", "{case:?}");
        rows.push((case, counts.0, counts.1));
    }
    assert_eq!(
        rows,
        [
            (Case::RejectedThenAccepted, 2, 1),
            (Case::ClosedAfterTheFirstEvent, 1, 1),
            (Case::ClosedWithoutTheTerminalEvent, 1, 1),
            (Case::TheSameKeyTwice, 1, 1),
        ]
    );
}
