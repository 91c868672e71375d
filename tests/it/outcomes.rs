//! The table of outcomes: what happened, and what follows for each class of tools. A row is a test.

use serde_json::{Value, json};

use crate::support::{Does, Downstream, Ends, Tool, World, job, key_of};

/// What a class's caller is told, and how many requests were made.
#[derive(Debug, Clone, Copy)]
enum Then {
    /// The first answer is the call's.
    Answered,
    /// Another request was made, and its answer is the call's.
    Again,
    /// It may have acted: nothing was sent again.
    Unknown,
}

use Then::{Again, Answered, Unknown};

/// One row of the table.
struct Row {
    does: Does,
    /// What answers another request, where it is not what the downstream answers otherwise.
    again: Option<Does>,
    /// Fields of the tool's `http` table, in TOML.
    http: Vec<(&'static str, &'static str)>,
    /// For a `read`, a `keyed_write` and an `unkeyed_write`.
    then: [Then; 3],
    /// How the first request ended, as it is kept; none where it ended the ordinary way.
    branch: Option<&'static str>,
    /// What the reply's error and warnings are, where the call is answered by the first request.
    kind: &'static str,
    warnings: Value,
}

impl Row {
    fn new(does: Does, then: [Then; 3]) -> Self {
        let (again, http, branch, kind) = (None, Vec::new(), None, "");
        Self { does, again, http, then, branch, kind, warnings: json!([]) }
    }

    fn and_then(self, again: Does) -> Self {
        Self { again: Some(again), ..self }
    }

    fn kept_as(self, branch: &'static str) -> Self {
        Self { branch: Some(branch), ..self }
    }

    fn with(mut self, field: &'static str, value: &'static str) -> Self {
        self.http.push((field, value));
        self
    }

    fn error(self) -> Self {
        Self { kind: "tool_error", ..self }
    }

    fn warning(self, warning: &str) -> Self {
        Self { warnings: json!([warning]), ..self }
    }

    /// Plays the row for each class, each with a downstream of its own.
    async fn holds(self) {
        let world = World::new().await;
        let producer = world.producer().await;
        let classes: [fn(&str, &Downstream) -> Tool; 3] = [Tool::read, Tool::keyed, Tool::unkeyed];
        let names = ["look", "pay", "create"];
        let mut downstreams = Vec::new();
        let mut tools = Vec::new();
        for (name, class) in names.into_iter().zip(classes) {
            // A repeat shows as a second effect, but for the class that relies on its downstream.
            let downstream = if name == "pay" {
                Downstream::collapsing().await
            } else {
                Downstream::forgetful().await
            };
            downstream.script([Some(self.does.clone()), self.again.clone()].into_iter().flatten());
            let tool = class(name, &downstream).timeout("2s").with("connect_timeout", "\"1s\"");
            let fields = self.http.iter();
            tools.push(fields.fold(tool, |tool, (name, value)| tool.http(name, value)));
            downstreams.push(downstream);
        }
        let mut worker = world.worker(&tools).start().await;
        for ((name, downstream), then) in names.into_iter().zip(&downstreams).zip(self.then) {
            let call = job(name, json!({"n": 1}));
            let reply = producer.call(&call).await;
            let told = (reply.status(), reply.kind());
            let expected = match then {
                Answered => ("completed", self.kind),
                Again => ("completed", ""),
                Unknown => ("unknown", "ambiguous"),
            };
            assert_eq!(told, expected, "{name}: {}", reply.text);
            if let Answered = then {
                assert_eq!(reply.json["warnings"], self.warnings, "{name}: {}", reply.text);
            }
            let posts = if let Again = then { 2 } else { 1 };
            assert_eq!(downstream.posts(), posts, "{name}: {}", reply.text);
            if name != "look" {
                assert_eq!(
                    first_branch(&world, &key_of(&call)).await,
                    json!(self.branch),
                    "{name}"
                );
            }
        }
        worker.drain().await;
    }
}

/// How the attempt's first request ended, as the history has it.
async fn first_branch(world: &World, key: &str) -> Value {
    let shown = world.run(&["ledger", "show", "--json", key], "").await;
    let shown: Value = serde_json::from_str(&shown.out).expect("the call is in the ledger");
    let requests = shown["history"]
        .as_array()
        .expect("a history")
        .iter()
        .find(|entry| entry["event"] == "requests");
    requests.map_or(Value::Null, |entry| entry["detail"][0]["branch"].clone())
}

const ALL_ANSWERED: [Then; 3] = [Answered; 3];
const ALL_AGAIN: [Then; 3] = [Again; 3];
const AMBIGUOUS: [Then; 3] = [Again, Again, Unknown];

fn status(status: u16) -> Does {
    Does::Answer(status, "{\"no\":1}".to_owned())
}

/// A response head and chunks, the last chunk only if the transfer is to end in order.
fn chunked(kind: &str, chunks: &[&str], whole: bool) -> String {
    let head =
        format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n");
    let chunks = chunks.iter().map(|chunk| format!("{:x}\r\n{chunk}\r\n", chunk.len()));
    head + &chunks.collect::<String>() + if whole { "0\r\n\r\n" } else { "" }
}

const DONE: &str = "event: done\ndata: {\"id\":1}\n\n";
const PROGRESS: &str = "event: progress\ndata: {\"pct\": 50}\n\n";

fn stream(events: &[&str], whole: bool, ends: Ends) -> Does {
    Does::ActAndSend(chunked("text/event-stream", events, whole), ends)
}

#[tokio::test]
async fn refused_before_any_work() {
    for code in [503, 429, 425] {
        Row::new(status(code), ALL_AGAIN).kept_as("refused").holds().await;
    }
}

#[tokio::test]
async fn known_already_but_not_its_answer() {
    Row::new(status(409), ALL_ANSWERED)
        .with("duplicate_status", "[409]")
        .kept_as("duplicate")
        .warning("result_unavailable")
        .holds()
        .await;
}

#[tokio::test]
async fn answered_for_good_with_an_error() {
    for code in [400, 404, 409, 422, 301, 307, 308] {
        Row::new(status(code), ALL_ANSWERED).error().holds().await;
    }
}

#[tokio::test]
async fn sent_elsewhere() {
    for code in [302, 303] {
        Row::new(status(code), [Answered, Again, Unknown])
            .error()
            .kept_as("redirected")
            .holds()
            .await;
    }
}

#[tokio::test]
async fn still_in_progress() {
    Row::new(status(409), AMBIGUOUS)
        .with("in_progress_status", "[409]")
        .kept_as("in_progress")
        .holds()
        .await;
}

#[tokio::test]
async fn a_status_that_does_not_say_what_happened() {
    for code in [500, 502, 504, 408] {
        Row::new(status(code), AMBIGUOUS).kept_as("unclear_status").holds().await;
    }
}

#[tokio::test]
async fn a_connection_that_is_lost_before_any_answer() {
    Row::new(Does::ActAndClose, AMBIGUOUS).kept_as("lost").holds().await;
    let reset = Does::ActAndSend(String::new(), Ends::Reset);
    Row::new(reset, AMBIGUOUS).kept_as("lost").holds().await;
}

#[tokio::test]
async fn no_answer_in_time() {
    Row::new(Does::ActAndSend(String::new(), Ends::Never), AMBIGUOUS)
        .kept_as("timed_out")
        .holds()
        .await;
}

#[tokio::test]
async fn a_body_that_is_cut_against_its_length_or_its_last_chunk() {
    Row::new(Does::ActAndCut, AMBIGUOUS).kept_as("cut").holds().await;
    let no_last_chunk = chunked("application/json", &["{\"id\":1}"], false);
    Row::new(Does::ActAndSend(no_last_chunk, Ends::Closed), AMBIGUOUS).kept_as("cut").holds().await;
}

#[tokio::test]
async fn an_event_stream_that_breaks_in_the_middle() {
    for ends in [Ends::Closed, Ends::Reset] {
        let broken = stream(&[PROGRESS], false, ends);
        Row::new(broken, AMBIGUOUS).kept_as("stream_broken").holds().await;
    }
}

#[tokio::test]
async fn an_event_stream_that_falls_silent() {
    Row::new(stream(&[PROGRESS], false, Ends::Never), AMBIGUOUS)
        .with("stream", "{ idle_timeout = \"200ms\" }")
        .and_then(stream(&[DONE], true, Ends::Closed))
        .kept_as("stream_idle")
        .holds()
        .await;
}

#[tokio::test]
async fn an_event_stream_that_closes_without_its_terminal_event() {
    Row::new(stream(&[PROGRESS], true, Ends::Closed), ALL_ANSWERED)
        .kept_as("missing_terminal_event")
        .warning("missing_terminal_event")
        .holds()
        .await;
    Row::new(stream(&[PROGRESS], true, Ends::Closed), AMBIGUOUS)
        .with("stream", "{ missing_terminal = \"unknown\" }")
        .and_then(stream(&[DONE], true, Ends::Closed))
        .kept_as("missing_terminal_event")
        .holds()
        .await;
}

#[tokio::test]
async fn an_error_event() {
    let error = "event: error\ndata: {\"why\": \"no\"}\n\n";
    Row::new(stream(&[PROGRESS, error], true, Ends::Closed), ALL_ANSWERED).error().holds().await;
    // The first one decides.
    Row::new(stream(&[error, DONE], true, Ends::Closed), ALL_ANSWERED).error().holds().await;
}

#[tokio::test]
async fn a_success_that_is_no_answer_of_the_kind_that_is_expected() {
    for body in ["<html>sign in</html>", "", "{} {}"] {
        let answer = Does::ActAndAnswer(200, body.to_owned());
        Row::new(answer, AMBIGUOUS).kept_as("unexpected").holds().await;
    }
}

#[tokio::test]
async fn a_whole_answer() {
    Row::new(Does::ActAndAnswer(200, "{\"id\":1}".to_owned()), ALL_ANSWERED).holds().await;
    let none = "HTTP/1.1 204 No Content\r\n\r\n".to_owned();
    Row::new(Does::ActAndSend(none, Ends::Closed), ALL_ANSWERED).holds().await;
    // Nobody waits for the close.
    Row::new(stream(&[PROGRESS, DONE], false, Ends::Never), ALL_ANSWERED).holds().await;
}

/// Nothing left: the call is not run, whatever its class, and is tried again in its rounds.
#[tokio::test]
async fn not_sent() {
    let world = World::new().await;
    let producer = world.producer().await;
    let mut downstream = Downstream::refusing(false).await;
    let tools = [
        Tool::read("look", &downstream).retry("50ms", 0),
        Tool::keyed("pay", &downstream).retry("50ms", 0),
        Tool::unkeyed("create", &downstream).retry("50ms", 0),
    ];
    let mut worker = world.worker(&tools).start().await;
    let calls = ["look", "pay", "create"].map(|name| job(name, json!({})));
    for call in &calls {
        let reply = producer.call(call).await;
        assert_eq!((reply.status(), reply.kind()), ("not_run", "not_sent"), "{}", reply.text);
        assert_eq!(reply.json["error"]["phase"], "connect");
    }
    downstream.listen();
    for call in &calls {
        assert_eq!(producer.call(call).await.status(), "completed");
    }
    assert_eq!(downstream.counts(), (3, 3));
    worker.drain().await;
}
