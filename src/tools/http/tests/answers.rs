//! What statuses, bodies and their sizes come to.

use super::server::{End, Server};
use super::*;

/// An answer with a length.
fn response(status: u16, headers: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut bytes =
        format!("HTTP/1.1 {status} Said\r\nContent-Length: {}\r\n{headers}\r\n", body.len())
            .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// What one answer comes to for a write with every list of statuses.
async fn judged(effect: EffectClass, answer: Vec<u8>, end: End) -> Verdict {
    judged_with(effect, answer, end, |_| {}).await
}

async fn judged_with(
    effect: EffectClass,
    answer: Vec<u8>,
    end: End,
    set: impl Fn(&mut HttpSettings),
) -> Verdict {
    let server = Server::with(answer, end).await;
    let mut settings = settings(&server.url(), effect);
    settings.statuses = Statuses {
        not_run: vec![503, 429, 425],
        in_progress: vec![423],
        duplicate: vec![412, 208],
        replayed: vec![422],
        key_reused: vec![421],
    };
    set(&mut settings);
    let verdict = send(&tool(settings)).await;
    assert_eq!(server.requests().len(), 1);
    verdict
}

async fn success(body: impl AsRef<[u8]>) -> Verdict {
    judged(EffectClass::KeyedWrite, response(200, "", body), End::KeepAlive).await
}

#[tokio::test]
async fn every_status_has_the_verdict_of_the_table() {
    for status in (101..=599).chain([600, 799, 999]) {
        let expected = match status {
            503 | 429 | 425 => Kind::Refused,
            423 => Kind::InProgress,
            208 | 412 => Kind::Presumed,
            200..=299 => Kind::Completed,
            301 | 307 | 308 => Kind::ToolError,
            408 => Kind::Ambiguous,
            400..=499 => Kind::ToolError,
            _ => Kind::Ambiguous,
        };
        // 102 to 199 announce another answer, which does not come.
        let end = if status < 200 { End::Close } else { End::KeepAlive };
        for effect in [EffectClass::Read, EffectClass::KeyedWrite, EffectClass::UnkeyedWrite] {
            let expected = match (status, effect) {
                (302 | 303, EffectClass::Read) => Kind::ToolError,
                _ => expected,
            };
            let body = if status < 200 || status == 204 || status == 304 { "" } else { "{}" };
            let verdict = judged(effect, response(status, "", body), end).await;
            assert_eq!(kind(&verdict), expected, "{status} to a {effect:?}: {verdict:?}");
        }
    }
}

#[tokio::test]
async fn a_resend_is_settled_by_a_success_or_a_status_that_is_kept_with_the_key() {
    for (status, expected) in
        [(200, true), (201, true), (204, true), (422, true), (400, false), (404, false)]
    {
        let body = if status == 204 { "" } else { "{}" };
        let answer = response(status, "", body);
        let verdict = judged(EffectClass::KeyedWrite, answer, End::KeepAlive).await;
        let Verdict::Completed { settles_resend, .. } = verdict else { panic!("{status}") };
        assert_eq!(settles_resend, expected, "{status}");
    }
}

#[tokio::test]
async fn a_duplicate_is_completed_without_its_answer() {
    let answer = response(412, "", r#"{"error":"seen"}"#);
    let outcome = outcome(judged(EffectClass::KeyedWrite, answer, End::KeepAlive).await);
    assert!(!outcome.is_error && outcome.content.is_none() && outcome.error.is_none());
    assert_eq!(outcome.warnings, [Warning::ResultUnavailable]);
}

#[tokio::test]
async fn an_answer_that_is_still_to_come_says_when_to_ask() {
    let answer = response(423, "Retry-After: 3\r\n", "{}");
    let verdict = judged(EffectClass::KeyedWrite, answer, End::KeepAlive).await;
    assert_eq!(verdict.failure().unwrap().retry_after, Some(Duration::from_secs(3)));
}

/// A refusal counts by its head: what is left of its body decides nothing.
#[tokio::test]
async fn a_refusal_whose_body_never_ends_is_a_refusal() {
    let head = "HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n";
    let verdict = judged(EffectClass::UnkeyedWrite, head.into(), End::Stall).await;
    assert_eq!(kind(&verdict), Kind::Refused);
}

#[tokio::test]
async fn json_is_an_answer_whatever_its_type_says() {
    for (body, expected) in [
        ("{\"a\" : [1 ,2.50]}", "{\"a\" : [1 ,2.50]}"),
        (" \r\n\t[1]\n", "[1]"),
        ("null", "null"),
        ("0.10", "0.10"),
        ("\"text\"", "\"text\""),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
    ] {
        let answer = response(200, "Content-Type: text/plain\r\n", body);
        let outcome = outcome(judged(EffectClass::KeyedWrite, answer, End::KeepAlive).await);
        assert_eq!(content(&outcome), Some(expected));
        assert!(outcome.warnings.is_empty(), "{body}");
    }
}

#[tokio::test]
async fn what_is_no_json_text_is_ambiguous() {
    for body in [
        &b""[..],
        b" \n",
        b"<html>",
        b"{\"a\":1} x",
        b"{} {}",
        b"{\"a\":1",
        b"{'a':1}",
        b"NaN",
        b"[1,]",
        b"\"\xff\"",
        b"\"\xed\xa0\x80\"",
        b"\xef\xbb\xbf{}",
        b"\"\x01\"",
    ] {
        let verdict = success(body).await;
        assert_eq!(
            (kind(&verdict), phase(&verdict)),
            (Kind::Ambiguous, Phase::Finish),
            "{}",
            String::from_utf8_lossy(body)
        );
    }
}

#[tokio::test]
async fn json_that_cannot_stand_in_a_reply_is_given_as_text() {
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let digits = "9".repeat(800);
    let digits = format!("[{digits}e99]");
    for body in [r#""\ud800""#, r#"{"a":"\udc00\ud800"}"#, "1e400", &deep, &digits] {
        let outcome = outcome(success(body).await);
        assert_eq!(outcome.warnings, [Warning::ContentAsText], "{body}");
        let text: String = serde_json::from_str(content(&outcome).unwrap()).unwrap();
        assert_eq!(text, body);
    }
}

#[tokio::test]
async fn compressed_successes_are_ambiguous() {
    for headers in [
        "Content-Encoding: gzip\r\n",
        "Content-Encoding: identity\r\nContent-Encoding: br\r\n",
        "Content-Encoding: GZIP, identity\r\n",
        "Content-Encoding: gzip\r\nContent-Type: text/event-stream\r\n",
    ] {
        let verdict =
            judged(EffectClass::KeyedWrite, response(200, headers, "{}"), End::KeepAlive).await;
        let found = (kind(&verdict), phase(&verdict));
        assert_eq!(found, (Kind::Ambiguous, Phase::Finish), "{headers}");
    }
    let identity = response(200, "Content-Encoding: Identity\r\n", "{}");
    let verdict = judged(EffectClass::KeyedWrite, identity, End::KeepAlive).await;
    assert_eq!(kind(&verdict), Kind::Completed);
}

#[tokio::test]
async fn text_is_given_as_a_string() {
    let text = |body: &'static [u8]| {
        judged_with(EffectClass::KeyedWrite, response(200, "", body), End::KeepAlive, |settings| {
            settings.answer = AnswerKind::Text;
        })
    };
    for (body, expected) in [
        (&b"hi \"you\"\n"[..], "hi \"you\"\n"),
        (b"", ""),
        (b"{\"a\":1}", "{\"a\":1}"),
        (b"\0", "\0"),
    ] {
        let outcome = outcome(text(body).await);
        let given: String = serde_json::from_str(content(&outcome).unwrap()).unwrap();
        assert_eq!(given, expected);
        assert!(outcome.warnings.is_empty() && !outcome.is_error);
    }
    let verdict = text(b"caf\xe9").await;
    assert_eq!(verdict.branch(), Some(Branch::Unexpected), "{verdict:?}");
    let long = outcome(text(&[b'x'; 1025]).await);
    assert_eq!(long.warnings, [Warning::ResultTruncated]);
    assert_eq!(content(&long).unwrap().len(), 1024 + 2);
}

#[tokio::test]
async fn bytes_are_given_as_base64() {
    let bytes = |body: &'static [u8]| {
        judged_with(EffectClass::KeyedWrite, response(200, "", body), End::KeepAlive, |settings| {
            settings.answer = AnswerKind::Bytes;
        })
    };
    for (body, expected) in [(&b"\xff\0>?"[..], "\"/wA+Pw==\""), (b"", "\"\""), (b"{}", "\"e30=\"")]
    {
        let outcome = outcome(bytes(body).await);
        assert_eq!(content(&outcome), Some(expected));
        assert!(outcome.warnings.is_empty() && !outcome.is_error);
    }
    // Also where the cut goes through what would be a character.
    let long = outcome(bytes(&[b'\xc3'; 1025]).await);
    assert_eq!(long.warnings, [Warning::ResultTruncated]);
    assert_eq!(content(&long).unwrap().len(), 1024_usize.div_ceil(3) * 4 + 2);
}

#[tokio::test]
async fn what_the_downstream_says_of_a_replay_is_kept_with_its_answer() {
    let ask = |status: u16, header: &'static str| {
        let answer = response(status, header, if status == 204 { "" } else { "{}" });
        judged_with(EffectClass::KeyedWrite, answer, End::KeepAlive, |settings| {
            settings.replay_header = Some(HeaderName::from_static("idempotent-replayed"));
        })
    };
    for status in [200, 204, 404, 412, 421] {
        let outcome = outcome(ask(status, "Idempotent-Replayed: true\r\n").await);
        assert_eq!(outcome.replay_header.as_deref(), Some("true"), "{status}");
    }
    let silent = outcome(ask(200, "Replayed: true\r\n").await);
    assert_eq!(silent.replay_header, None);
    let odd = outcome(ask(200, "Idempotent-Replayed: a\tb\u{e9}\r\n").await);
    assert_eq!(odd.replay_header.as_deref(), Some("a\u{fffd}b\u{e9}"));
    let long: &'static str =
        String::leak(format!("Idempotent-Replayed: {}\r\n", "\u{e9}".repeat(5_000)));
    let long = outcome(ask(200, long).await).replay_header.unwrap();
    assert_eq!(&*long, "\u{e9}".repeat(128));
    let unasked = judged(
        EffectClass::KeyedWrite,
        response(200, "Idempotent-Replayed: true\r\n", "{}"),
        End::KeepAlive,
    );
    assert_eq!(outcome(unasked.await).replay_header, None);
}

#[tokio::test]
async fn a_key_that_is_known_with_other_arguments_is_an_error_that_settles_nothing_before() {
    let answer = response(421, "", r#"{"error":"other body"}"#);
    let written = super::requests::Written::default();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer({
            let written = written.clone();
            move || written.clone()
        })
        .finish();
    let guard = tracing::subscriber::set_default(subscriber);
    let verdict = judged(EffectClass::KeyedWrite, answer, End::KeepAlive).await;
    drop(guard);
    let logged = written.text();
    assert_eq!(logged.matches("ERROR").count(), 1, "{logged}");
    assert!(logged.contains("status=421") && !logged.contains("other body"), "{logged}");
    assert_eq!(verdict.branch(), Some(Branch::KeyReused));
    let Verdict::Completed { outcome, settles_resend, .. } = verdict else { panic!() };
    assert!(outcome.is_error && !settles_resend);
    assert_eq!(content(&outcome), Some(r#"{"error":"other body"}"#));
    let error = outcome.error.unwrap();
    assert_eq!((error.kind, error.phase), (ErrorKind::ToolError, Some(Phase::Finish)));
    assert_eq!(error.message, "the tool has this key with other arguments: status 421");
}

#[tokio::test]
async fn an_error_says_what_can_be_said_of_its_body() {
    let warned = |warning: &[Warning]| warning.to_vec();
    for (headers, body, expected, warnings) in [
        ("", &b"{\"e\": 1}"[..], Some("{\"e\": 1}"), warned(&[])),
        ("", b"", None, warned(&[])),
        ("", b"no such invoice", Some("\"no such invoice\""), warned(&[Warning::ContentAsText])),
        ("", b"caf\xe9", Some("\"caf\u{fffd}\""), warned(&[Warning::ContentAsText])),
        ("Content-Encoding: gzip\r\n", b"\x1f\x8b\x08", None, warned(&[])),
    ] {
        let answer = response(404, headers, body);
        let outcome = outcome(judged(EffectClass::UnkeyedWrite, answer, End::KeepAlive).await);
        assert_eq!(content(&outcome), expected);
        assert_eq!(outcome.warnings, warnings);
        assert!(outcome.is_error);
        assert_eq!(outcome.error.unwrap().kind, ErrorKind::ToolError);
    }
}

#[tokio::test]
async fn a_cut_error_is_ambiguous() {
    let cut = b"HTTP/1.1 404 No\r\nContent-Length: 50\r\n\r\n{}".to_vec();
    let verdict = judged(EffectClass::UnkeyedWrite, cut, End::Close).await;
    assert_eq!((kind(&verdict), phase(&verdict)), (Kind::Ambiguous, Phase::Stream));
}

#[tokio::test]
async fn a_large_result_is_completed_with_its_first_part() {
    // Of two bytes each, so that the limit of 1024 falls into one.
    let body = format!("\"{}\"", "é".repeat(5_000));
    let done = outcome(success(&body).await);
    assert_eq!(done.warnings, [Warning::ResultTruncated]);
    let text: String = serde_json::from_str(content(&done).unwrap()).unwrap();
    assert_eq!(text, body[..1023]);
    let answer = response(400, "", &body);
    let error = outcome(judged(EffectClass::KeyedWrite, answer, End::KeepAlive).await);
    assert_eq!(error.warnings, [Warning::ResultTruncated]);
    assert!(error.is_error);
    let exact = format!("\"{}\"", "x".repeat(1022));
    assert!(outcome(success(&exact).await).warnings.is_empty());
}

#[tokio::test]
async fn a_large_result_is_judged_to_its_end() {
    let cut = format!("HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n\"{}", "x".repeat(5_000));
    let verdict = judged(EffectClass::KeyedWrite, cut.into(), End::Close).await;
    assert_eq!((kind(&verdict), phase(&verdict)), (Kind::Ambiguous, Phase::Stream));
    for body in [format!("<html>{}", "x".repeat(5_000)), format!("{{}}{}", "x".repeat(5_000))] {
        let verdict = success(body).await;
        assert_eq!((kind(&verdict), phase(&verdict)), (Kind::Ambiguous, Phase::Finish));
    }
}

#[tokio::test]
async fn a_body_that_the_connection_delimits_is_whole_only_after_an_orderly_end() {
    let bytes = "HTTP/1.1 200 OK\r\n\r\n{\"a\":1}";
    let verdict = judged(EffectClass::KeyedWrite, bytes.into(), End::Close).await;
    assert_eq!(kind(&verdict), Kind::Completed);
    let verdict = judged(EffectClass::KeyedWrite, bytes.into(), End::Reset).await;
    assert_eq!(kind(&verdict), Kind::Ambiguous);
    let half = "HTTP/1.1 200 OK\r\n\r\n{\"a\":";
    let verdict = judged(EffectClass::KeyedWrite, half.into(), End::Close).await;
    assert_eq!((kind(&verdict), phase(&verdict)), (Kind::Ambiguous, Phase::Finish));
}

#[tokio::test]
async fn a_hostile_head_is_ambiguous_and_bounded() {
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n{{}}", "X-A: b\r\n".repeat(10_000));
    let long = format!("HTTP/1.1 200 OK\r\nX-A: {}\r\n\r\n{{}}", "b".repeat(4 * 1024 * 1024));
    for head in
        [many, long, "SSH-2.0-OpenSSH_9.0\r\n".to_owned(), "HTTP/1.1 2000 OK\r\n\r\n".to_owned()]
    {
        let verdict = judged(EffectClass::KeyedWrite, head.into(), End::Close).await;
        let found = (kind(&verdict), phase(&verdict));
        assert_eq!(found, (Kind::Ambiguous, Phase::AwaitResponse));
    }
}
