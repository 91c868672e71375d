//! Asking for a call's state: what is sent, and what is made of each answer.

use super::*;
use crate::call::reply::Warning;
use crate::tools::{ProbePolicy, Probed};
use server::{Answer, End};

fn probing(server: &Server, result: Option<&str>) -> HttpTool {
    let url = format!("{}/{{key}}?full=1", server.url());
    let list = |state: &str| vec![state.to_owned()];
    let probe = ProbeSettings {
        url: Some(ProbeUrl::new(&url)),
        state: Pointer::parse("/call/state").unwrap(),
        completed: vec!["paid".to_owned(), "2".to_owned()],
        running: list("pending"),
        failed: list("declined"),
        result: result.map(|result| Pointer::parse(result).unwrap()),
        policy: ProbePolicy {
            settle_delay: Duration::ZERO,
            deadline: LONG,
            not_found_is_not_run: true,
        },
    };
    let mut settings = settings(&server.url(), EffectClass::KeyedWrite);
    settings.headers =
        vec![(HeaderName::from_static("authorization"), "Bearer secret".to_owned().into())];
    HttpTool::new(settings, Some(probe), Some(&TlsSetup::new())).unwrap()
}

fn json(status: u16, body: &str) -> String {
    format!("HTTP/1.1 {status} Said\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

async fn asked(answer: &str, end: End) -> Probed {
    let server = Server::with(answer, end).await;
    probing(&server, Some("/call/result")).ask(KEY).await
}

#[tokio::test]
async fn it_is_a_get_with_the_key_and_the_tools_own_headers() {
    let server = Server::with(json(404, "{}"), End::KeepAlive).await;
    assert!(matches!(probing(&server, None).ask(KEY).await, Probed::NotFound));
    let requests = server.requests();
    let [request] = &requests[..] else { panic!("{} requests", requests.len()) };
    let line = format!("GET /payments/{KEY}?full=1 HTTP/1.1");
    assert_eq!(request.head.lines().next(), Some(line.as_str()));
    assert_eq!(request.values("authorization"), ["Bearer secret"]);
    assert_eq!(request.values("idempotency-key"), [KEY]);
    assert_eq!(request.values("accept"), ["application/json"]);
    assert!(request.body.is_empty());
}

#[tokio::test]
async fn each_state_says_what_the_registry_says() {
    for (state, expected) in [
        (r#""paid""#, "completed"),
        ("2", "completed"),
        (r#""declined""#, "failed"),
        (r#""pending""#, "running"),
        (r#""PAID""#, "unclear"),
        ("null", "unclear"),
    ] {
        let body = format!(r#"{{"call": {{"state": {state}, "result": {{"id": 1.50}}}}}}"#);
        let answer = match asked(&json(200, &body), End::KeepAlive).await {
            Probed::Answered(outcome) => {
                assert_eq!(content(&outcome), Some(r#"{"id": 1.50}"#), "byte for byte");
                assert_eq!(outcome.error.is_some(), outcome.is_error);
                if outcome.is_error { "failed" } else { "completed" }
            }
            Probed::Running => "running",
            Probed::NotFound => "not found",
            Probed::Unclear(_) => "unclear",
        };
        assert_eq!(answer, expected, "{state}");
    }
}

#[tokio::test]
async fn what_is_no_plain_answer_says_nothing() {
    let paid = r#"{"call":{"state":"paid"}}"#;
    let cut = format!("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{paid}");
    for (answer, end) in [
        (json(500, paid), End::KeepAlive),
        (json(401, paid), End::KeepAlive),
        (json(302, paid), End::KeepAlive),
        (json(200, ""), End::KeepAlive),
        (json(200, "<html>"), End::KeepAlive),
        (json(200, r#"{"call":{}}"#), End::KeepAlive),
        (json(200, r#"[{"call":{"state":"paid"}}]"#), End::KeepAlive),
        (json(200, &format!("\"{}\"", "a".repeat(5_000_000))), End::KeepAlive),
        (json(200, r#"{"call":{"state":"pending","state":"paid"}}"#), End::KeepAlive),
        (cut, End::Close),
        (String::new(), End::Reset),
    ] {
        let probed = asked(&answer, end).await;
        assert!(matches!(probed, Probed::Unclear(_)), "{answer}: {probed:?}");
    }
    for status in [404, 410] {
        assert!(matches!(asked(&json(status, paid), End::KeepAlive).await, Probed::NotFound));
    }
}

#[tokio::test]
async fn a_result_that_is_not_there_is_said_to_be_unavailable() {
    let answer = json(200, r#"{"call":{"state":"paid"}}"#);
    let Probed::Answered(outcome) = asked(&answer, End::KeepAlive).await else { panic!() };
    assert_eq!((content(&outcome), outcome.is_error), (None, false));
    assert_eq!(outcome.warnings, [Warning::ResultUnavailable]);

    let server = Server::start(vec![Answer(answer.into_bytes(), End::KeepAlive)]).await;
    let whole = probing(&server, None).ask(KEY).await;
    let Probed::Answered(outcome) = whole else { panic!() };
    assert_eq!(content(&outcome), Some(r#"{"call":{"state":"paid"}}"#));
}

#[tokio::test]
async fn a_result_that_is_too_long_is_cut_like_any_other() {
    let long = "a".repeat(100_000);
    let body = format!(r#"{{"call":{{"state":"paid","result":"{long}"}}}}"#);
    let Probed::Answered(outcome) = asked(&json(200, &body), End::KeepAlive).await else {
        panic!()
    };
    assert_eq!(outcome.warnings, [Warning::ResultTruncated]);
}

#[tokio::test]
async fn a_probe_that_is_not_answered_ends_at_the_tools_time_out() {
    let server = Server::with("", End::Stall).await;
    let mut tool = probing(&server, None);
    tool.settings.timeout = Duration::from_millis(100);
    let Probed::Unclear(why) = tool.ask(KEY).await else { panic!() };
    assert_eq!(why, "no answer within 100ms");
}

#[test]
fn pointers_are_read_as_the_standard_says() {
    let whole: Box<serde_json::value::RawValue> =
        serde_json::from_str(r#"{"a/b": {"m~n": [10, {"": 7}]}, "": 1, "two": 1, "two": 2}"#)
            .unwrap();
    for (pointer, expected) in [
        ("/a~1b/m~0n/0", Some("10")),
        ("/a~1b/m~0n/1/", Some("7")),
        ("/", Some("1")),
        ("/a~1b/m~0n/2", None),
        ("/a~1b/m~0n/x", None),
        ("/a~1b/m~0n/00", None),
        ("/a~1b/m~0n/+1", None),
        ("/two", None),
        ("/nothing", None),
    ] {
        let pointer_read = Pointer::parse(pointer).unwrap();
        assert_eq!(pointer_read.look(&whole).map(|raw| raw.get()), expected, "{pointer}");
    }
    assert_eq!(Pointer::parse("").unwrap().look(&whole).map(|raw| raw.get()), Some(whole.get()));
    for wrong in ["state", "/~", "/~2", "/a~"] {
        assert_eq!(Pointer::parse(wrong), None, "{wrong}");
    }
}
