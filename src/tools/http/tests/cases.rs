//! Raw answers of real servers, each with what it has to come to.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde::Deserialize;

use super::server::{Answer, End, Server};
use super::*;

/// A case's file, and the verdict on it for a write and for a read.
///
/// Against the index: a length that is too short cuts the JSON, so nothing was understood; a body
/// that only the connection's end delimits is whole if it is JSON; compression was not asked for, so
/// it is no answer; a 303 to a write is no success and no end; JSON of whatever meaning is an answer.
const EXPECTED: [(&str, Kind, Kind); 25] = [
    ("ok-json.http", Kind::Completed, Kind::Completed),
    ("content-length-too-long.http", Kind::Ambiguous, Kind::Ambiguous),
    ("content-length-too-short.http", Kind::Ambiguous, Kind::Ambiguous),
    ("chunked-ok.http", Kind::Completed, Kind::Completed),
    ("chunked-no-last-chunk.http", Kind::Ambiguous, Kind::Ambiguous),
    ("chunked-cut-in-chunk.http", Kind::Ambiguous, Kind::Ambiguous),
    ("gzip-ok.http", Kind::Ambiguous, Kind::Ambiguous),
    ("gzip-cut.http", Kind::Ambiguous, Kind::Ambiguous),
    ("no-length-close-delimited.http", Kind::Completed, Kind::Completed),
    ("429-seconds.http", Kind::Refused, Kind::Refused),
    ("429-http-date.http", Kind::Refused, Kind::Refused),
    ("429-garbage.http", Kind::Refused, Kind::Refused),
    ("503-negative.http", Kind::Refused, Kind::Refused),
    ("503-before-work.http", Kind::Refused, Kind::Refused),
    ("504-gateway.http", Kind::Ambiguous, Kind::Ambiguous),
    ("500-with-effect.http", Kind::Ambiguous, Kind::Ambiguous),
    ("400-final.http", Kind::ToolError, Kind::ToolError),
    ("409-business.http", Kind::ToolError, Kind::ToolError),
    ("302-other-host.http", Kind::Ambiguous, Kind::ToolError),
    ("303-see-other.http", Kind::Ambiguous, Kind::ToolError),
    ("200-html-login-page.http", Kind::Ambiguous, Kind::Ambiguous),
    ("200-json-instead-of-sse.http", Kind::Completed, Kind::Completed),
    ("204-no-content.http", Kind::Completed, Kind::Completed),
    ("100-continue-then-200.http", Kind::Completed, Kind::Completed),
    ("result-with-nul.http", Kind::Completed, Kind::Completed),
];

#[derive(Deserialize)]
struct Case {
    file: String,
    end: String,
}

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/http"))
}

fn index() -> Vec<Case> {
    let text = fs::read_to_string(folder().join("index.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn answer(case: &Case) -> Answer {
    let end = match case.end.as_str() {
        "close" => End::Close,
        "keep open" => End::KeepAlive,
        other => panic!("unknown end {other}"),
    };
    Answer(fs::read(folder().join(&case.file)).unwrap(), end)
}

async fn play(file: &str, effect: EffectClass) -> (Verdict, Server) {
    let case = index().into_iter().find(|case| case.file == file).unwrap();
    let server = Server::start(vec![answer(&case)]).await;
    let verdict = send(&tool(settings(&server.url(), effect))).await;
    (verdict, server)
}

#[test]
fn every_case_of_the_index_is_in_the_table() {
    let listed: BTreeSet<String> = index().into_iter().map(|case| case.file).collect();
    let table: BTreeSet<String> = EXPECTED.iter().map(|(file, ..)| (*file).to_owned()).collect();
    let files = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name());
    let files: BTreeSet<String> = files
        .map(|name| name.into_string().unwrap())
        .filter(|name| name.ends_with(".http"))
        .collect();
    assert_eq!(listed, table);
    assert_eq!(files, table);
}

#[tokio::test]
async fn every_case_comes_to_what_the_table_says_with_one_request() {
    for (file, write, read) in EXPECTED {
        for (effect, expected) in [
            (EffectClass::Read, read),
            (EffectClass::KeyedWrite, write),
            (EffectClass::UnkeyedWrite, write),
        ] {
            let (verdict, server) = play(file, effect).await;
            assert_eq!(kind(&verdict), expected, "{file} to a {effect:?}: {verdict:?}");
            let requests = server.requests();
            assert_eq!(requests.len(), 1, "{file} to a {effect:?}");
            assert!(requests[0].head.starts_with("POST "), "{file}");
        }
    }
}

#[tokio::test]
async fn cut_transfers_end_in_the_stream_and_other_answers_at_their_end() {
    for (file, expected) in [
        ("content-length-too-long.http", Phase::Stream),
        ("chunked-no-last-chunk.http", Phase::Stream),
        ("chunked-cut-in-chunk.http", Phase::Stream),
        ("content-length-too-short.http", Phase::Finish),
        ("gzip-ok.http", Phase::Finish),
        ("200-html-login-page.http", Phase::Finish),
        ("504-gateway.http", Phase::Finish),
        ("303-see-other.http", Phase::Finish),
    ] {
        let (verdict, _) = play(file, EffectClass::KeyedWrite).await;
        assert_eq!(phase(&verdict), expected, "{file}");
    }
}

#[tokio::test]
async fn results_are_kept_byte_for_byte() {
    for (file, expected) in [
        ("ok-json.http", r#"{"ok": true, "payment_id": "p-1"}"#),
        ("chunked-ok.http", r#"{"ok": true, "payment_id": "p-1"}"#),
        ("no-length-close-delimited.http", r#"{"ok": true, "payment_id": "p-1"}"#),
        ("100-continue-then-200.http", r#"{"ok": true, "payment_id": "p-1"}"#),
        ("result-with-nul.http", r#"{"out": "a\u0000b", "ok": true}"#),
    ] {
        let (verdict, _) = play(file, EffectClass::KeyedWrite).await;
        let Verdict::Completed { outcome, settles_resend, .. } = verdict else { panic!("{file}") };
        assert_eq!(content(&outcome), Some(expected), "{file}");
        assert!(outcome.warnings.is_empty() && outcome.error.is_none() && settles_resend, "{file}");
    }
    let (verdict, _) = play("204-no-content.http", EffectClass::KeyedWrite).await;
    let outcome = outcome(verdict);
    assert!(outcome.content.is_none() && outcome.warnings.is_empty() && !outcome.is_error);
}

#[tokio::test]
async fn errors_keep_what_the_tool_said_and_name_the_status() {
    for (file, status, expected) in [
        ("400-final.http", "400", r#"{"error":"amount must be positive"}"#),
        ("409-business.http", "409", r#"{"error":"seat already taken"}"#),
    ] {
        let (verdict, _) = play(file, EffectClass::KeyedWrite).await;
        let Verdict::Completed { outcome, settles_resend, .. } = verdict else { panic!("{file}") };
        assert_eq!(content(&outcome), Some(expected), "{file}");
        let error = outcome.error.unwrap();
        assert_eq!((error.kind, error.phase), (ErrorKind::ToolError, Some(Phase::Finish)));
        assert!(error.message.contains(status), "{}", error.message);
        assert!(!settles_resend, "{file} says nothing of an earlier request");
    }
}

#[tokio::test]
async fn retry_after_is_understood_capped_or_left_to_backoff() {
    for (file, expected) in [
        ("429-seconds.http", Some(Duration::from_secs(2))),
        ("429-http-date.http", Some(Duration::from_secs(60 * 60))),
        ("429-garbage.http", None),
        ("503-negative.http", None),
        ("503-before-work.http", None),
    ] {
        let (verdict, _) = play(file, EffectClass::UnkeyedWrite).await;
        assert_eq!(verdict.failure().unwrap().retry_after, expected, "{file}");
    }
}

/// The bytes after a length that was too short must not be the answer to the next call.
#[tokio::test]
async fn left_over_bytes_are_not_read_as_the_next_answer() {
    let first =
        index().into_iter().find(|case| case.file == "content-length-too-short.http").unwrap();
    let second = index().into_iter().find(|case| case.file == "ok-json.http").unwrap();
    let server = Server::start(vec![answer(&first), answer(&second)]).await;
    let tool = keyed(&server);
    assert_eq!(kind(&send(&tool).await), Kind::Ambiguous);
    let outcome = outcome(send(&tool).await);
    assert_eq!(content(&outcome), Some(r#"{"ok": true, "payment_id": "p-1"}"#));
    assert_eq!(server.requests().len(), 2);
}
