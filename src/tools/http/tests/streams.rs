//! Event streams: raw ones of real servers, cut anywhere, too long, too slow, and without an end.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde::Deserialize;

use super::server::{Answer, End, Pauses, Server};
use super::*;

const HEAD: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

const LAST_CHUNK: &str = "0\r\n\r\n";

/// A time-out that has to pass for a test to end.
const SHORT: Duration = Duration::from_millis(300);

const OK: &str = r#"{"ok": true, "id": "p-1"}"#;

const OVERLOADED: &str =
    r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;

/// The case that is made and not kept.
const LONG_LINE: &str = "one data line of 64 MiB without a newline";

/// A case's file, the verdict on it for every class, and its content.
///
/// Where the index leaves a choice: a terminal event whose data is not JSON is ambiguous, as a body
/// that is not JSON is; bytes that are no UTF-8 become replacement characters.
const EXPECTED: [(&str, Kind, Option<Branch>, Option<&str>); 25] = [
    ("plain-lf.sse", Kind::Completed, None, Some(OK)),
    ("crlf.sse", Kind::Completed, None, Some(OK)),
    ("mixed-line-ends.sse", Kind::Completed, None, Some(OK)),
    ("bom-first.sse", Kind::Completed, None, Some(OK)),
    ("crlf-cut-between-cr-and-lf.sse", Kind::Completed, None, Some(OK)),
    ("one-byte-at-a-time.sse", Kind::Completed, None, Some(OK)),
    ("data-on-several-lines.sse", Kind::Completed, None, Some("{\"ok\": true,\n \"id\": \"p-1\"}")),
    ("no-space-after-colon.sse", Kind::Completed, None, Some(OK)),
    ("comments-ids-retry-unknown-fields.sse", Kind::Completed, None, Some(OK)),
    ("clean-close-after-progress.sse", Kind::Presumed, MISSING, Some(r#"{"pct": 50}"#)),
    ("no-events-at-all.sse", Kind::Presumed, MISSING, None),
    (
        "progress-says-100-then-close.sse",
        Kind::Presumed,
        MISSING,
        Some(r#"{"pct": 100, "status": "finished"}"#),
    ),
    ("reset-after-first-event.sse", Kind::Ambiguous, Some(Branch::StreamBroken), None),
    (
        "error-event-after-200.sse",
        Kind::ToolError,
        None,
        Some(r#"{"code": "card_declined", "retryable": false}"#),
    ),
    ("bare-json-error-line.sse", Kind::Presumed, MISSING, Some(r#"{"pct": 10}"#)),
    ("error-then-done.sse", Kind::ToolError, None, Some(r#"{"code": "boom"}"#)),
    ("done-twice-different.sse", Kind::Completed, None, Some(OK)),
    ("provider-like-overloaded-mid-stream.sse", Kind::ToolError, None, Some(OVERLOADED)),
    (
        "provider-like-no-stop.sse",
        Kind::Presumed,
        MISSING,
        Some(r#"{"type":"content_block_stop","index":0}"#),
    ),
    ("terminal-data-not-json.sse", Kind::Ambiguous, Some(Branch::Unexpected), None),
    (
        "lookalike-in-data.sse",
        Kind::Presumed,
        MISSING,
        Some(r#""event: done\ndata: {\\\"ok\\\": true}""#),
    ),
    (
        "default-event-with-type-in-data.sse",
        Kind::Presumed,
        MISSING,
        Some(r#"{"type": "done", "ok": true}"#),
    ),
    ("silence-after-progress.sse", Kind::Ambiguous, Some(Branch::StreamIdle), None),
    (LONG_LINE, Kind::Presumed, MISSING, None),
    (
        "bad-utf8-byte-in-data.sse",
        Kind::Completed,
        None,
        Some("{\"ok\": true, \"out\": \"\u{fffd}\u{fffd}\"}"),
    ),
];

const MISSING: Option<Branch> = Some(Branch::MissingTerminalEvent);

/// A line of the index.
#[derive(Deserialize)]
struct Case {
    #[serde(alias = "gen")]
    file: String,
    content_type: String,
    end: String,
    expected: Right,
    #[serde(default)]
    send_in_pieces_at: Vec<usize>,
    #[serde(default)]
    pause_ms: u64,
}

#[derive(Deserialize)]
struct Right {
    state: Option<String>,
    #[serde(default)]
    is_error: bool,
    result: Option<serde_json::Value>,
    warning: Option<Warning>,
    state_if_missing_terminal_is_unknown: Option<String>,
}

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/sse"))
}

fn index() -> Vec<Case> {
    let text = fs::read_to_string(folder().join("index.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn expected(file: &str) -> (Kind, Option<Branch>, Option<&'static str>) {
    let row = EXPECTED.iter().find(|(other, ..)| *other == file).unwrap();
    (row.1, row.2, row.3)
}

/// A piece of a body, which arrives as a piece of its own.
fn chunk(bytes: &[u8]) -> Vec<u8> {
    if bytes.is_empty() {
        return Vec::new();
    }
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// A stream that ends with its last chunk.
fn clean(body: impl AsRef<[u8]>) -> Vec<u8> {
    [HEAD.as_bytes(), &chunk(body.as_ref()), LAST_CHUNK.as_bytes()].concat()
}

fn answer(case: &Case) -> Answer {
    if case.file == LONG_LINE {
        // 1024 chunks of 64 KiB.
        let block = chunk(&vec![b'x'; 64 * 1024]).leak();
        let head = [HEAD.as_bytes(), &chunk(b"data: ")].concat();
        return Answer(head, End::Many(block, 1024, LAST_CHUNK.as_bytes()));
    }
    let body = fs::read(folder().join(&case.file)).unwrap();
    let begun = [HEAD.as_bytes(), &chunk(&body)].concat();
    match case.end.as_str() {
        "clean" => Answer(clean(body), End::KeepAlive),
        "reset" => Answer(begun, End::Reset),
        "stay open, silent" => Answer(begun, End::Stall),
        other => panic!("unknown end {other}"),
    }
}

fn set_up(server: &Server, effect: EffectClass) -> HttpSettings {
    let mut settings = settings(&server.url(), effect);
    settings.stream.declared = true;
    settings
}

/// What one answer comes to for a keyed write that declares streams.
async fn ask(answer: Answer, set: impl Fn(&mut HttpSettings)) -> Verdict {
    let server = Server::start(vec![answer]).await;
    let mut settings = set_up(&server, EffectClass::KeyedWrite);
    set(&mut settings);
    let verdict = send(&tool(settings)).await;
    assert_eq!(server.requests().len(), 1);
    verdict
}

/// The same of a stream that ends cleanly.
async fn stream(body: impl AsRef<[u8]>) -> Verdict {
    ask(Answer(clean(body), End::KeepAlive), |_| {}).await
}

#[track_caller]
fn assert_is(verdict: Verdict, expected: (Kind, Option<Branch>, Option<&str>), what: &str) {
    let (kind_expected, branch, expected) = expected;
    assert_eq!((kind(&verdict), verdict.branch()), (kind_expected, branch), "{what}: {verdict:?}");
    match kind_expected {
        Kind::Completed => {
            let Verdict::Completed { settles_resend, .. } = &verdict else { unreachable!() };
            assert!(settles_resend, "{what}");
        }
        Kind::ToolError => {
            let Verdict::Completed { outcome, settles_resend, .. } = &verdict else {
                unreachable!()
            };
            assert!(!settles_resend, "{what}");
            let error = outcome.error.as_ref().unwrap();
            assert_eq!((error.kind, error.phase), (ErrorKind::ToolError, Some(Phase::Finish)));
        }
        Kind::Presumed => assert_eq!(phase(&verdict), Phase::Stream, "{what}"),
        Kind::Ambiguous => return,
        Kind::NotSent | Kind::Refused | Kind::InProgress => unreachable!(),
    }
    let outcome = outcome(verdict);
    assert_eq!(content(&outcome), expected, "{what}");
    assert_eq!(outcome.is_error, kind_expected == Kind::ToolError, "{what}");
    let warned = outcome.warnings.contains(&Warning::MissingTerminalEvent);
    assert_eq!(warned, kind_expected == Kind::Presumed, "{what}");
}

#[test]
fn every_case_of_the_index_is_in_the_table() {
    let listed: BTreeSet<String> = index().into_iter().map(|case| case.file).collect();
    let table: BTreeSet<String> = EXPECTED.iter().map(|(file, ..)| (*file).to_owned()).collect();
    let files = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut files: BTreeSet<String> = files
        .map(|name| name.into_string().unwrap())
        .filter(|name| name.ends_with(".sse"))
        .collect();
    files.insert(LONG_LINE.to_owned());
    assert_eq!(listed, table);
    assert_eq!(files, table);
}

#[test]
fn the_table_says_what_the_index_says() {
    for Case { file, content_type, expected: right, .. } in index() {
        assert_eq!(content_type, "text/event-stream");
        let (kind, branch, content) = expected(&file);
        let missing = kind == Kind::Presumed;
        assert_eq!(branch == MISSING, missing, "{file}");
        assert_eq!(right.warning.is_some(), missing, "{file}");
        assert!(right.warning.is_none_or(|warning| warning == Warning::MissingTerminalEvent));
        assert_eq!(right.is_error, kind == Kind::ToolError, "{file}");
        if let Some(state) = right.state {
            assert_eq!(state == "completed", kind != Kind::Ambiguous, "{file}");
        }
        if let Some(result) = right.result {
            let content: serde_json::Value = serde_json::from_str(content.unwrap()).unwrap();
            assert_eq!(content, result, "{file}");
        }
        let unknown = right.state_if_missing_terminal_is_unknown;
        assert_eq!(unknown.as_deref(), missing.then_some("unknown"), "{file}");
    }
}

#[tokio::test]
async fn every_case_comes_to_what_the_table_says_with_one_request() {
    for case in index() {
        for effect in [EffectClass::Read, EffectClass::KeyedWrite, EffectClass::UnkeyedWrite] {
            let server = Server::start(vec![answer(&case)]).await;
            let mut settings = set_up(&server, effect);
            if case.end == "stay open, silent" {
                settings.stream.idle_timeout = SHORT;
            }
            let verdict = send(&tool(settings)).await;
            assert_is(verdict, expected(&case.file), &format!("{} to a {effect:?}", case.file));
            assert_eq!(server.requests().len(), 1, "{}", case.file);
        }
    }
}

#[tokio::test]
async fn a_missing_terminal_event_is_ambiguous_where_the_tool_says_so() {
    for case in index().into_iter().filter(|case| case.file != LONG_LINE) {
        let (kind_expected, branch, content) = expected(&case.file);
        let kind_expected =
            if kind_expected == Kind::Presumed { Kind::Ambiguous } else { kind_expected };
        let verdict = ask(answer(&case), |settings| {
            settings.stream.missing_terminal = MissingTerminal::Unknown;
            if case.end == "stay open, silent" {
                settings.stream.idle_timeout = SHORT;
            }
        });
        assert_is(verdict.await, (kind_expected, branch, content), &case.file);
    }
}

/// A chunk of the transfer is what one read gives, so two of them are a cut between two reads.
#[tokio::test]
async fn every_cut_between_two_reads_changes_nothing() {
    for case in index().into_iter().filter(|case| case.end == "clean" && case.file != LONG_LINE) {
        let body = fs::read(folder().join(&case.file)).unwrap();
        let answers = (0..body.len())
            .map(|at| {
                let (before, after) = body.split_at(at);
                let parts = [HEAD.as_bytes(), &chunk(before), &chunk(after), LAST_CHUNK.as_bytes()];
                Answer(parts.concat(), End::KeepAlive)
            })
            .collect();
        let server = Server::start(answers).await;
        let tool = tool(set_up(&server, EffectClass::KeyedWrite));
        for at in 0..body.len() {
            let what = format!("{} cut at {at}", case.file);
            assert_is(send(&tool).await, expected(&case.file), &what);
        }
    }
}

#[tokio::test]
async fn every_byte_in_a_read_of_its_own_changes_nothing() {
    for case in index().into_iter().filter(|case| case.end == "clean" && case.file != LONG_LINE) {
        let body = fs::read(folder().join(&case.file)).unwrap();
        let chunks: Vec<u8> = body.chunks(1).flat_map(chunk).collect();
        let answer = [HEAD.as_bytes(), &chunks, LAST_CHUNK.as_bytes()].concat();
        let verdict = ask(Answer(answer, End::KeepAlive), |_| {}).await;
        assert_is(verdict, expected(&case.file), &case.file);
    }
}

#[tokio::test]
async fn pieces_sent_with_pauses_change_nothing() {
    let pieces: Vec<_> =
        index().into_iter().filter(|case| !case.send_in_pieces_at.is_empty()).collect();
    assert_eq!(pieces.len(), 2);
    for case in pieces {
        let body = fs::read(folder().join(&case.file)).unwrap();
        // With a length, so that the pieces are of the body and of nothing else.
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let at = case.send_in_pieces_at.iter().map(|at| head.len() + at).collect();
        let pauses = Pauses { at, each: Duration::from_millis(case.pause_ms) };
        let bytes = [head.as_bytes(), &body].concat();
        let server = Server::pausing(vec![Answer(bytes, End::KeepAlive)], pauses).await;
        let verdict = send(&tool(set_up(&server, EffectClass::KeyedWrite))).await;
        assert_is(verdict, expected(&case.file), &case.file);
    }
}

#[tokio::test]
async fn a_stream_that_breaks_anywhere_before_its_end_is_ambiguous() {
    let body = fs::read(folder().join("plain-lf.sse")).unwrap();
    // The blank line is the last byte.
    for at in 0..body.len() {
        let begun = [HEAD.as_bytes(), &chunk(&body[..at])].concat();
        let end = if at % 2 == 0 { End::Close } else { End::Reset };
        let verdict = ask(Answer(begun, end), |_| {}).await;
        assert_is(verdict, (Kind::Ambiguous, Some(Branch::StreamBroken), None), &at.to_string());
    }
}

#[tokio::test]
async fn a_tool_that_declares_nothing_is_answered_by_a_stream_all_the_same() {
    for content_type in ["text/event-stream", "Text/Event-Stream; charset=utf-8"] {
        let head = HEAD.replace("text/event-stream", content_type);
        let body = [head.as_bytes(), &chunk(b"event: done\ndata: [1]\n\n")].concat();
        let verdict = ask(Answer(body, End::Stall), |settings| {
            settings.stream.declared = false;
        });
        assert_is(verdict.await, (Kind::Completed, None, Some("[1]")), content_type);
    }
}

#[tokio::test]
async fn a_tool_that_declares_streams_takes_no_other_success() {
    let json = fs::read(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/cases/http/200-json-instead-of-sse.http"
    ));
    for (answer, expected) in [
        (json.unwrap(), (Kind::Ambiguous, Some(Branch::Unexpected), None)),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}".to_vec(),
            (Kind::Ambiguous, Some(Branch::Unexpected), None),
        ),
        (b"HTTP/1.1 204 No\r\n\r\n".to_vec(), (Kind::Completed, None, None)),
        (
            b"HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\n{}".to_vec(),
            (Kind::ToolError, None, Some("{}")),
        ),
    ] {
        let what = String::from_utf8_lossy(&answer).into_owned();
        assert_is(ask(Answer(answer, End::Close), |_| {}).await, expected, &what);
    }
}

#[tokio::test]
async fn an_error_status_with_a_stream_is_judged_by_its_status() {
    let answer = String::from_utf8(clean("event: done\ndata: 1\n\n")).unwrap();
    for (status, kind_expected, branch) in [
        (400, Kind::ToolError, None),
        (503, Kind::Refused, Some(Branch::Refused)),
        (500, Kind::Ambiguous, Some(Branch::UnclearStatus)),
    ] {
        let answer = answer.replace("200", &status.to_string()).into_bytes();
        let verdict = ask(Answer(answer, End::KeepAlive), |_| {}).await;
        assert_eq!((kind(&verdict), verdict.branch()), (kind_expected, branch), "{status}");
    }
}

#[tokio::test]
async fn the_close_is_not_waited_for() {
    for ending in ["\n\n", "\r\n\r\n", "\r\r"] {
        for (event, kind_expected) in [("done", Kind::Completed), ("error", Kind::ToolError)] {
            let body = format!("event: {event}\ndata: 7{ending}");
            let answer = [HEAD.as_bytes(), &chunk(body.as_bytes())].concat();
            let verdict = ask(Answer(answer, End::Stall), |_| {}).await;
            assert_is(verdict, (kind_expected, None, Some("7")), &format!("{body:?}"));
        }
    }
}

#[tokio::test]
async fn the_events_have_the_names_that_the_tool_gives_them() {
    let body =
        "event: done\ndata: 1\n\nevent: error\ndata: 2\n\ndata: 3\n\nevent: oops\ndata: 4\n\n";
    let named = |terminal: &'static str| {
        ask(Answer(clean(body), End::KeepAlive), move |settings| {
            settings.stream.terminal_event = terminal.to_owned();
            settings.stream.error_event = "oops".to_owned();
        })
    };
    // An event without a name is a `message`.
    assert_is(named("message").await, (Kind::Completed, None, Some("3")), "message");
    assert_is(named("fin").await, (Kind::ToolError, None, Some("4")), "fin");
}

#[tokio::test]
async fn terminal_data_is_read_as_the_tools_answers_are() {
    let told = |kind: AnswerKind| {
        let body = "event: done\ndata: all\ndata: good!\n\n";
        ask(Answer(clean(body), End::KeepAlive), move |settings| settings.answer = kind)
    };
    let text = told(AnswerKind::Text).await;
    assert_is(text, (Kind::Completed, None, Some(r#""all\ngood!""#)), "text");
    let bytes = told(AnswerKind::Bytes).await;
    assert_is(bytes, (Kind::Completed, None, Some("\"YWxsCmdvb2Qh\"")), "bytes");
    let json = told(AnswerKind::Json).await;
    assert_eq!(phase(&json), Phase::Finish);
    assert_is(json, (Kind::Ambiguous, Some(Branch::Unexpected), None), "json");
    let empty = stream("event: done\ndata:\n\n").await;
    assert_is(empty, (Kind::Ambiguous, Some(Branch::Unexpected), None), "empty");
    let error = outcome(stream("event: error\ndata: no such card\n\n").await);
    assert_eq!(content(&error), Some("\"no such card\""));
    assert_eq!(error.warnings, [Warning::ContentAsText]);
}

/// The standard has no event without data.
#[tokio::test]
async fn a_terminal_event_without_data_is_none() {
    let verdict = stream("data: 1\n\nevent: done\n\n").await;
    assert_is(verdict, (Kind::Presumed, MISSING, Some("1")), "without data");
}

#[tokio::test]
async fn an_event_without_its_blank_line_counts_if_its_data_is_whole_by_itself() {
    for (end, expected) in [
        ("event: done\ndata: {\"a\": 1}", (Kind::Completed, None, Some("{\"a\": 1}"))),
        ("event: done\ndata: {\"a\": 1}\n", (Kind::Completed, None, Some("{\"a\": 1}"))),
        ("event: done\r\ndata: {\"a\": 1}\r\n", (Kind::Completed, None, Some("{\"a\": 1}"))),
        ("event: done\rdata: {\"a\": 1}\r", (Kind::Completed, None, Some("{\"a\": 1}"))),
        ("event: done\ndata: {\"a\": 1}\nid", (Kind::Completed, None, Some("{\"a\": 1}"))),
        ("event: done\ndata: {\"a\":", (Kind::Presumed, MISSING, Some("0"))),
        ("event: done\nda", (Kind::Presumed, MISSING, Some("0"))),
        ("event: don", (Kind::Presumed, MISSING, Some("0"))),
        ("event: step\ndata: 1", (Kind::Presumed, MISSING, Some("0"))),
        ("event: error\ndata: {\"e\":1}", (Kind::ToolError, None, Some("{\"e\":1}"))),
        ("event: error\ndata: oops", (Kind::ToolError, None, Some("\"oops\""))),
    ] {
        let body = format!("event: step\ndata: 0\n\n{end}");
        assert_is(stream(&body).await, expected, end);
        // Nothing counts of what was cut off.
        let cut = [HEAD.as_bytes(), &chunk(body.as_bytes())].concat();
        let broken = (Kind::Ambiguous, Some(Branch::StreamBroken), None);
        assert_is(ask(Answer(cut, End::Close), |_| {}).await, broken, end);
    }
}

#[tokio::test]
async fn a_stream_that_the_connection_delimits_has_no_clean_end() {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n";
    let broken = (Kind::Ambiguous, Some(Branch::StreamBroken), None);
    for coding in ["", "Transfer-Encoding: identity\r\n", "Transfer-Encoding: chunked, gzip\r\n"] {
        for (body, expected) in [
            ("", broken),
            ("data: 1\n\n", broken),
            ("event: done\ndata: 1", broken),
            ("event: done\ndata: 1\n\n", (Kind::Completed, None, Some("1"))),
            ("event: error\ndata: 1\n\n", (Kind::ToolError, None, Some("1"))),
        ] {
            let answer = format!("{head}{coding}\r\n{body}").into_bytes();
            let what = format!("{coding:?} {body:?}");
            assert_is(ask(Answer(answer, End::Close), |_| {}).await, expected, &what);
        }
    }
    for length in ["Content-Length: 9\r\n", "Transfer-Encoding: gzip, Chunked\r\n"] {
        let body =
            if length.contains('9') { "data: 1\n\n" } else { "9\r\ndata: 1\n\n\r\n0\r\n\r\n" };
        let answer = format!("{head}{length}\r\n{body}").into_bytes();
        let verdict = ask(Answer(answer, End::Close), |_| {}).await;
        assert_is(verdict, (Kind::Presumed, MISSING, Some("1")), length);
    }
}

#[tokio::test]
async fn a_long_terminal_event_is_completed_with_its_first_part() {
    let value = "é".repeat(5_000_000);
    for (name_first, event) in [(true, "done"), (false, "done"), (true, "error")] {
        // One line of some 10 MB, in pieces, and the name on either side of it.
        let name = format!("event: {event}\n");
        let data = format!("data: \"{value}\"\n");
        let body = if name_first { name + &data } else { data + &name } + "\n";
        let chunks: Vec<u8> = body.as_bytes().chunks(100_000).flat_map(chunk).collect();
        let answer = [HEAD.as_bytes(), &chunks].concat();
        let outcome = outcome(ask(Answer(answer, End::Stall), |_| {}).await);
        assert_eq!(outcome.warnings, [Warning::ResultTruncated], "{event}");
        assert_eq!(outcome.is_error, event == "error");
        let text: String = serde_json::from_str(content(&outcome).unwrap()).unwrap();
        assert_eq!(text, format!("\"{}", "é".repeat(511)), "{event}");
    }
    let lines = "data: 12345,\n".repeat(1_000);
    let outcome = outcome(stream(format!("event: done\ndata: [\n{lines}data: 1]\n\n")).await);
    assert_eq!(outcome.warnings, [Warning::ResultTruncated]);
    assert!(content(&outcome).unwrap().starts_with(r#""[\n12345,\n12345,"#));
}

/// One that is short enough is whole, to the byte.
#[tokio::test]
async fn a_terminal_event_of_the_longest_size_is_whole() {
    let json = format!("\"{}\"", "x".repeat(1022));
    let outcome = outcome(stream(format!("event: done\ndata: {json}\n\n")).await);
    assert_eq!(content(&outcome), Some(json.as_str()));
    assert!(outcome.warnings.is_empty());
}

#[tokio::test]
async fn an_event_of_too_many_lines_is_left_out_and_could_have_been_an_error() {
    let long = format!("event: error\n{}\n", "data: 0123456789\n".repeat(200_000));
    let verdict = stream(&long).await;
    assert_is(verdict, (Kind::Ambiguous, Some(Branch::Unexpected), None), "alone");
    let verdict = stream(long + "event: done\ndata: 1\n\n").await;
    assert_is(verdict, (Kind::Completed, None, Some("1")), "before the terminal event");
}

/// Whether this is a process of the test's own, where nothing else uses memory; else the test is run
/// in one.
fn alone(test: &str) -> bool {
    const ALONE: &str = "CALLONCE_TEST_ALONE";
    if std::env::var(ALONE).is_ok_and(|name| name == test) {
        return true;
    }
    let (_, module) = module_path!().split_once("::").unwrap();
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("{module}::{test}")])
        .env(ALONE, test)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && said.contains("1 passed"), "{said}");
    false
}

/// How much memory this process has ever used.
fn memory_peak() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

#[tokio::test]
async fn a_line_without_an_end_is_read_to_the_end_in_bounded_memory() {
    if !alone("a_line_without_an_end_is_read_to_the_end_in_bounded_memory") {
        return;
    }
    let case = index().into_iter().find(|case| case.file == LONG_LINE).unwrap();
    let answer = answer(&case);
    let before = memory_peak();
    let verdict = ask(answer, |_| {}).await;
    let grown = memory_peak() - before;
    assert_is(verdict, expected(LONG_LINE), LONG_LINE);
    assert!(grown < 32 * 1024 * 1024, "{grown} bytes for a line of 64 MiB");
}

#[tokio::test]
async fn many_events_are_counted_in_bounded_memory() {
    if !alone("many_events_are_counted_in_bounded_memory") {
        return;
    }
    let block = chunk(&b"event: step\ndata: {\"pct\": 50}\n\n".repeat(1_000)).leak();
    let done = [&chunk(b"event: done\ndata: [2]\n\n"), LAST_CHUNK.as_bytes()].concat().leak();
    let before = memory_peak();
    let verdict = ask(Answer(HEAD.into(), End::Many(block, 200, done)), |_| {}).await;
    assert_is(verdict, (Kind::Completed, None, Some("[2]")), "200,000 events");
    let verdict =
        ask(Answer(HEAD.into(), End::Many(block, 200, LAST_CHUNK.as_bytes())), |_| {}).await;
    let message = &verdict.failure().unwrap().message;
    assert_eq!(message, "the event stream closed after 200000 events without its terminal event");
    assert_is(verdict, (Kind::Presumed, MISSING, Some(r#"{"pct": 50}"#)), "without an end");
    let grown = memory_peak() - before;
    assert!(grown < 32 * 1024 * 1024, "{grown} bytes for events that are only counted");
}

#[tokio::test]
async fn the_four_time_outs_are_told_apart() {
    let begun = || [HEAD.as_bytes(), &chunk(b"data: 1\n\n")].concat();

    let busy = super::connections::Busy::start().await;
    let mut settings = settings(&busy.url(), EffectClass::KeyedWrite);
    settings.connect_timeout = SHORT;
    let connecting = send(&tool(settings)).await;

    let first_byte = ask(Answer(Vec::new(), End::Stall), |settings| settings.timeout = SHORT);
    let idle = ask(Answer(begun(), End::Stall), |settings| settings.stream.idle_timeout = SHORT);
    let total = ask(Answer(begun(), End::Stall), |settings| settings.timeout = SHORT);
    for (verdict, kind_expected, branch, phase_expected, message) in [
        (connecting, Kind::NotSent, Branch::NotSent, Phase::Connect, "not connected within 300ms"),
        (
            first_byte.await,
            Kind::Ambiguous,
            Branch::TimedOut,
            Phase::AwaitResponse,
            "no answer within 300ms",
        ),
        (
            idle.await,
            Kind::Ambiguous,
            Branch::StreamIdle,
            Phase::Stream,
            "the event stream fell silent for 300ms, after 1 event",
        ),
        (
            total.await,
            Kind::Ambiguous,
            Branch::TimedOut,
            Phase::Stream,
            "the event stream did not end within 300ms, after 1 event",
        ),
    ] {
        assert_eq!(kind(&verdict), kind_expected, "{verdict:?}");
        let failure = verdict.failure().unwrap();
        assert_eq!((failure.branch, failure.phase), (branch, phase_expected), "{message}");
        assert_eq!(failure.message, message);
    }
}

#[tokio::test]
async fn a_stream_that_drips_is_not_silent_and_ends_at_the_total() {
    for drip in [&b"3\r\n:\n\n\r\n"[..], b"1\r\n:\r\n", b"9\r\ndata: 1\n\n\r\n"] {
        let verdict = ask(Answer(HEAD.into(), End::Drip(drip)), |settings| {
            settings.stream.idle_timeout = Duration::from_secs(1);
            settings.timeout = Duration::from_secs(2);
        })
        .await;
        assert_is(verdict, (Kind::Ambiguous, Some(Branch::TimedOut), None), "a drip");
    }
}

#[tokio::test]
async fn a_flood_ends_at_the_total() {
    let block = chunk(&b":\n".repeat(32 * 1024)).leak();
    let verdict = ask(Answer(HEAD.into(), End::Many(block, usize::MAX, b"")), |settings| {
        settings.timeout = SHORT;
    })
    .await;
    assert_is(verdict, (Kind::Ambiguous, Some(Branch::TimedOut), None), "a flood");
}

#[tokio::test]
async fn a_contradiction_is_logged_without_its_data() {
    let written = super::requests::Written::default();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer({
            let written = written.clone();
            move || written.clone()
        })
        .finish();
    let guard = tracing::subscriber::set_default(subscriber);
    let body = "event: error\ndata: \"SECRET1\"\n\nevent: done\ndata: \"SECRET2\"\n\n";
    let verdict = stream(body).await;
    drop(guard);
    assert_is(verdict, (Kind::ToolError, None, Some("\"SECRET1\"")), "the first counts");
    let logged = written.text();
    assert_eq!(logged.matches("WARN").count(), 1, "{logged}");
    assert!(logged.contains("first_is_error=true later_is_error=false"), "{logged}");
    assert!(!logged.contains("SECRET"), "{logged}");
}
