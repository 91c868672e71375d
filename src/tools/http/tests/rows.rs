//! Each row of the design's table of outcomes (section 6), by the branch that it is known by.

use super::connections::Busy;
use super::server::{End, Server};
use super::*;

const CLASSES: [EffectClass; 3] =
    [EffectClass::Read, EffectClass::KeyedWrite, EffectClass::UnkeyedWrite];

/// Longer than an answer of this machine, shorter than a patience with tests.
const SHORT: Duration = Duration::from_millis(300);

/// The settings that the rows below are about.
fn set_up(url: &str, effect: EffectClass) -> HttpSettings {
    let mut settings = settings(url, effect);
    settings.statuses = Statuses {
        not_run: vec![503, 429, 425],
        in_progress: vec![409],
        duplicate: vec![412],
        replayed: vec![410],
        key_reused: vec![422],
    };
    settings.connect_timeout = SHORT / 2;
    settings
}

type Row = (Kind, Option<Branch>, Option<Phase>);

const COMPLETED: Row = (Kind::Completed, None, None);
const TOOL_ERROR: Row = (Kind::ToolError, None, None);

fn ambiguous(branch: Branch, phase: Phase) -> Row {
    (Kind::Ambiguous, Some(branch), Some(phase))
}

#[track_caller]
fn assert_is(verdict: &Verdict, expected: Row, what: &str) {
    let phase = verdict.failure().map(|failure| failure.phase);
    assert_eq!((kind(verdict), verdict.branch(), phase), expected, "{what}: {verdict:?}");
}

#[tokio::test]
async fn what_is_known_to_be_unsent_is_not_sent() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let refusing = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let busy = Busy::start().await;
    for (url, phase) in [
        (refusing.as_str(), Phase::Connect),
        (&busy.url(), Phase::Connect),
        ("http://nonexistent.invalid/", Phase::Resolve),
    ] {
        for effect in CLASSES {
            let mut settings = set_up(url, effect);
            if phase == Phase::Resolve {
                settings.connect_timeout = LONG / 4;
            }
            let verdict = send(&tool(settings)).await;
            let expected = (Kind::NotSent, Some(Branch::NotSent), Some(phase));
            assert_is(&verdict, expected, &format!("{phase:?} {effect:?}"));
        }
    }
}

#[tokio::test]
async fn every_row_has_its_branch_for_every_class() {
    let status = |status: u16| format!("HTTP/1.1 {status} Said\r\nContent-Length: 2\r\n\r\n{{}}");
    let events = |body: &str| {
        format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let cut = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}".to_owned();
    let unchunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n".to_owned();
    let begun =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 99\r\n\r\ndata: 1\n\n"
            .to_owned();
    let refused = (Kind::Refused, Some(Branch::Refused), Some(Phase::Finish));
    let in_progress = (Kind::InProgress, Some(Branch::InProgress), Some(Phase::Finish));
    let duplicate = (Kind::Presumed, Some(Branch::Duplicate), Some(Phase::Finish));
    let redirected = ambiguous(Branch::Redirected, Phase::Finish);
    let unclear = ambiguous(Branch::UnclearStatus, Phase::Finish);
    let unexpected = ambiguous(Branch::Unexpected, Phase::Finish);
    let missing = (Kind::Presumed, Some(Branch::MissingTerminalEvent), Some(Phase::Stream));
    let lost = ambiguous(Branch::Lost, Phase::AwaitResponse);
    let rows = [
        // Refused before any work.
        (status(503), End::KeepAlive, refused),
        (status(429), End::KeepAlive, refused),
        (status(425), End::KeepAlive, refused),
        // The key is known, and the answer is not.
        (status(412), End::KeepAlive, duplicate),
        // Answered for good.
        (status(400), End::KeepAlive, TOOL_ERROR),
        (status(301), End::KeepAlive, TOOL_ERROR),
        (status(307), End::KeepAlive, TOOL_ERROR),
        (status(308), End::KeepAlive, TOOL_ERROR),
        (status(410), End::KeepAlive, TOOL_ERROR),
        (status(422), End::KeepAlive, (Kind::ToolError, Some(Branch::KeyReused), None)),
        // Sent elsewhere.
        (status(302), End::KeepAlive, redirected),
        (status(303), End::KeepAlive, redirected),
        // Busy with this key.
        (status(409), End::KeepAlive, in_progress),
        // No answer, or half of one.
        (status(500), End::KeepAlive, unclear),
        (status(504), End::KeepAlive, unclear),
        (status(408), End::KeepAlive, unclear),
        (String::new(), End::Close, lost),
        (String::new(), End::Reset, lost),
        (String::new(), End::Stall, ambiguous(Branch::TimedOut, Phase::AwaitResponse)),
        (cut.clone(), End::Close, ambiguous(Branch::Cut, Phase::Stream)),
        (unchunked, End::Close, ambiguous(Branch::Cut, Phase::Stream)),
        (cut, End::Stall, ambiguous(Branch::TimedOut, Phase::Stream)),
        // Event streams.
        (begun.clone(), End::Close, ambiguous(Branch::StreamBroken, Phase::Stream)),
        (begun, End::Stall, ambiguous(Branch::StreamIdle, Phase::Stream)),
        (events("data: 1\n\n"), End::KeepAlive, missing),
        (events("event: error\ndata: 1\n\n"), End::KeepAlive, TOOL_ERROR),
        (events("event: done\ndata: <\n\n"), End::KeepAlive, unexpected),
        (events("event: done\ndata: 1\n\n"), End::KeepAlive, COMPLETED),
        // Successes.
        (status(200).replace("{}", "<>"), End::KeepAlive, unexpected),
        (status(200), End::KeepAlive, COMPLETED),
        ("HTTP/1.1 204 No\r\n\r\n".to_owned(), End::KeepAlive, COMPLETED),
    ];
    for (answer, end, expected) in rows {
        for effect in CLASSES {
            let server = Server::with(&answer, end).await;
            let mut settings = set_up(&server.url(), effect);
            match expected.1 {
                Some(Branch::TimedOut) => settings.timeout = SHORT,
                Some(Branch::StreamIdle) => settings.stream.idle_timeout = SHORT,
                Some(_) | None => {}
            }
            let expected = match (expected.1, effect) {
                (Some(Branch::Redirected), EffectClass::Read) => TOOL_ERROR,
                _ => expected,
            };
            let verdict = send(&tool(settings)).await;
            assert_is(&verdict, expected, &format!("{answer:?} {end:?} to a {effect:?}"));
            assert_eq!(server.requests().len(), 1);
        }
    }
}
