//! What a request is, byte for byte, and when it is known not to have left.

use std::sync::atomic::{AtomicBool, Ordering};

use super::server::{End, Server};
use super::*;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";

#[tokio::test]
async fn key_and_arguments_arrive_as_they_were_given() {
    let server = Server::with(OK, End::KeepAlive).await;
    let mut settings = settings(&server.url(), EffectClass::KeyedWrite);
    settings.headers = vec![(header::AUTHORIZATION, SecretString::from("Bearer s3cret"))];
    let tool = tool(settings);
    // White space, order and spelling that any reading and writing again would change.
    let args = "{ \"b\":1.0,\t\"a\":\"\\u00e4ä\", \"c\":12345678901234567890123 }\n";
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    for _ in 0..2 {
        let call = ToolCall {
            key: KEY.to_owned(),
            args: Bytes::from(args),
            traceparent: Some(trace.to_owned()),
        };
        assert_eq!(kind(&tool.call(call, open_gate()).await), Kind::Completed);
    }
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    for request in requests {
        assert!(request.head.starts_with("POST /payments HTTP/1.1\r\n"), "{}", request.head);
        assert_eq!(request.body, args.as_bytes());
        assert!(request.head.contains("\r\nIdempotency-Key: "), "{}", request.head);
        for (name, expected) in [
            ("idempotency-key", vec![KEY]),
            ("content-type", vec!["application/json"]),
            ("content-length", vec![args.len().to_string().as_str()]),
            ("transfer-encoding", vec![]),
            ("accept", vec!["application/json"]),
            ("accept-encoding", vec!["identity"]),
            ("authorization", vec!["Bearer s3cret"]),
            ("traceparent", vec![trace]),
            ("user-agent", vec![concat!("callonce/", env!("CARGO_PKG_VERSION"))]),
            ("expect", vec![]),
            ("referer", vec![]),
        ] {
            assert_eq!(request.values(name), expected, "{name}");
        }
    }
}

#[tokio::test]
async fn a_key_field_arrives_beside_the_arguments_and_in_no_header() {
    let server = Server::with(OK, End::KeepAlive).await;
    let mut settings = settings(&server.url(), EffectClass::KeyedWrite);
    settings.key = KeyIn::Field("request_id".to_owned());
    let tool = tool(settings);
    let args = Bytes::from_static(b" { \"b\":1.0,\t\"a\": {\"request_id\":1} }\n");
    let verdict = tool.call(ToolCall { args, ..call() }, open_gate()).await;
    assert_eq!(kind(&verdict), Kind::Completed);
    let requests = server.requests();
    let expected =
        format!(" {{\"request_id\":\"{KEY}\", \"b\":1.0,\t\"a\": {{\"request_id\":1}} }}\n");
    assert_eq!(String::from_utf8_lossy(&requests[0].body), expected);
    assert_eq!(requests[0].values("content-length"), [expected.len().to_string()]);
    assert!(!requests[0].head.contains(KEY), "{}", requests[0].head);

    let before = server.bytes();
    let args = Bytes::from_static(br#"{"n": 1, "request_\u0069d": 2}"#);
    let verdict = tool.call(ToolCall { args, ..call() }, open_gate()).await;
    assert_eq!((kind(&verdict), phase(&verdict)), (Kind::NotSent, Phase::Send));
    let message = &verdict.failure().unwrap().message;
    assert_eq!(message, "an argument has the name of the field that carries the key");
    assert_eq!(server.bytes(), before);
}

#[tokio::test]
async fn what_counts_as_an_answer_is_what_is_asked_for() {
    for (answer, declared, expected) in [
        (AnswerKind::Json, false, "application/json"),
        (AnswerKind::Text, false, "*/*"),
        (AnswerKind::Bytes, false, "*/*"),
        (AnswerKind::Json, true, "text/event-stream"),
        (AnswerKind::Text, true, "text/event-stream"),
    ] {
        let server = Server::with(OK, End::KeepAlive).await;
        let mut settings = settings(&server.url(), EffectClass::KeyedWrite);
        (settings.answer, settings.stream.declared) = (answer, declared);
        let verdict = send(&tool(settings)).await;
        assert_eq!(kind(&verdict) == Kind::Ambiguous, declared, "{verdict:?}");
        assert_eq!(server.requests()[0].values("accept"), [expected]);
    }
    let server = Server::with(OK, End::KeepAlive).await;
    let mut settings = settings(&server.url(), EffectClass::KeyedWrite);
    settings.stream.declared = true;
    settings.headers = vec![(header::ACCEPT, SecretString::from("text/event-stream, */*;q=0.1"))];
    assert_eq!(kind(&send(&tool(settings)).await), Kind::Ambiguous);
    assert_eq!(server.requests()[0].values("accept"), ["text/event-stream, */*;q=0.1"]);
}

#[tokio::test]
async fn large_arguments_arrive_whole() {
    let server = Server::with(OK, End::KeepAlive).await;
    let args = format!("{{\"text\":\"{}\"}}", "x".repeat(1024 * 1024));
    let call = ToolCall { args: Bytes::from(args.clone()), ..call() };
    assert_eq!(kind(&keyed(&server).call(call, open_gate()).await), Kind::Completed);
    assert_eq!(server.requests()[0].body, args.as_bytes());
}

#[tokio::test]
async fn a_trace_that_is_no_header_value_is_left_out() {
    let server = Server::with(OK, End::KeepAlive).await;
    let tool = keyed(&server);
    for bad in ["00-a\r\nX-Injected: 1", "", &"0".repeat(TRACEPARENT_BYTES_MAX + 1)] {
        let call = ToolCall { traceparent: Some(bad.to_owned()), ..call() };
        assert_eq!(kind(&tool.call(call, open_gate()).await), Kind::Completed);
    }
    for request in server.requests() {
        assert!(!request.head.to_ascii_lowercase().contains("x-injected"), "{}", request.head);
        assert!(request.values("traceparent").iter().all(|value| value.is_empty()));
    }
}

#[tokio::test]
async fn a_gate_that_was_shut_lets_no_byte_out() {
    let server = Server::with(OK, End::KeepAlive).await;
    let gate = open_gate();
    assert!(gate.shut());
    let tool = keyed(&server);
    let verdict = tool.call(call(), Arc::clone(&gate)).await;
    assert_eq!((kind(&verdict), phase(&verdict)), (Kind::NotSent, Phase::Send));
    server.ended(1).await;
    assert_eq!(server.bytes(), 0);
}

#[tokio::test]
async fn a_lease_that_ended_while_connecting_lets_no_byte_out() {
    let server = Server::with(OK, End::KeepAlive).await;
    let tool = keyed(&server);
    let asked = Arc::new(AtomicBool::new(false));
    let gate = SendGate::new({
        let asked = Arc::clone(&asked);
        move || {
            asked.store(true, Ordering::SeqCst);
            false
        }
    });
    let verdict = tool.call(call(), gate).await;
    assert!(asked.load(Ordering::SeqCst), "the lease is looked at when the first byte would leave");
    assert_eq!((kind(&verdict), phase(&verdict)), (Kind::NotSent, Phase::Send));
    server.ended(1).await;
    assert_eq!(server.bytes(), 0);
}

/// The same on a connection that is already there, where hyper has a request's head to flush.
#[tokio::test]
async fn a_gate_that_was_shut_lets_no_byte_out_on_a_used_connection() {
    let server = Server::with(OK, End::KeepAlive).await;
    let tool = keyed(&server);
    assert_eq!(kind(&send(&tool).await), Kind::Completed);
    let before = server.bytes();
    let gate = SendGate::new(|| false);
    assert_eq!(kind(&tool.call(call(), gate).await), Kind::NotSent);
    server.ended(1).await;
    assert_eq!(server.bytes(), before);
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_call_that_is_dropped_once_its_request_is_out_leaves_the_gate_open() {
    let server = Server::with("", End::Stall).await;
    let tool = keyed(&server);
    let gate = open_gate();
    tokio::select! {
        verdict = tool.call(call(), Arc::clone(&gate)) => panic!("answered: {verdict:?}"),
        () = server.arrived(1) => {}
    }
    assert!(!gate.shut(), "a request that has left is not known to be unsent");
}

#[tokio::test]
async fn a_call_that_is_dropped_while_connecting_can_never_begin() {
    let busy = super::connections::Busy::start().await;
    let tool = tool(settings(&busy.url(), EffectClass::KeyedWrite));
    let gate = open_gate();
    let mut calling = Box::pin(tool.call(call(), Arc::clone(&gate)));
    assert!(futures_util::poll!(&mut calling).is_pending());
    drop(calling);
    assert!(!gate.open());
    assert!(gate.shut());
}

#[tokio::test]
async fn empty_arguments_are_not_sent() {
    let server = Server::with(OK, End::KeepAlive).await;
    let call = ToolCall { args: Bytes::new(), ..call() };
    let verdict = keyed(&server).call(call, open_gate()).await;
    assert_eq!((kind(&verdict), phase(&verdict)), (Kind::NotSent, Phase::Send));
    assert_eq!(server.bytes(), 0);
}

#[tokio::test]
async fn a_tool_that_was_only_looked_at_sends_nothing() {
    let server = Server::with(OK, End::KeepAlive).await;
    let settings = settings(&server.url(), EffectClass::KeyedWrite);
    let tool = HttpTool::new(settings, None, None).unwrap();
    assert_eq!(kind(&send(&tool).await), Kind::NotSent);
    assert_eq!(server.bytes(), 0);
}

#[tokio::test]
async fn nothing_that_is_said_holds_a_secret_or_an_argument() {
    let server =
        Server::with("HTTP/1.1 500 No\r\nContent-Length: 9\r\n\r\nANSWERED!", End::Close).await;
    let url = format!("http://127.0.0.1:{}/SECRETPATH?token=SECRETQUERY", server.port());
    let mut settings = settings(&url, EffectClass::KeyedWrite);
    settings.headers = vec![(header::AUTHORIZATION, SecretString::from("Bearer SECRETHEADER"))];
    let tool = tool(settings);
    let written = Written::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer({
            let written = written.clone();
            move || written.clone()
        })
        .finish();
    let guard = tracing::subscriber::set_default(subscriber);
    let args = Bytes::from_static(br#"{"card":"SECRETARG"}"#);
    let verdict = tool.call(ToolCall { args: args.clone(), ..call() }, open_gate()).await;
    drop(guard);
    let logged = written.text();
    let answered =
        Server::with("HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n\"ANSWERED!\"", End::Close);
    let completed = send(&keyed(&answered.await)).await;
    assert_eq!(kind(&completed), Kind::Completed);
    let asked = format!("{:?}", ToolCall { args, ..call() });
    for said in [format!("{verdict:?} {completed:?}"), asked, format!("{tool:?}"), logged] {
        assert!(!said.contains("SECRET") && !said.contains("ANSWERED"), "{said}");
    }
    assert!(server.requests()[0].head.contains("SECRETHEADER"));
}

#[derive(Clone, Default)]
pub(super) struct Written(Arc<std::sync::Mutex<Vec<u8>>>);

impl Written {
    pub(super) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl std::io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A proxy could repeat a request by itself, and is not asked. In a process of its own, because the
/// environment is the whole process's.
#[tokio::test]
async fn a_proxy_of_the_environment_is_not_used() {
    let server = Server::with(OK, End::KeepAlive).await;
    if std::env::var("HTTP_PROXY").is_ok_and(|proxy| proxy == NO_PROXY_THERE) {
        assert_eq!(kind(&send(&keyed(&server)).await), Kind::Completed);
        return;
    }
    let name = concat!(module_path!(), "::a_proxy_of_the_environment_is_not_used");
    let (_, name) = name.split_once("::").unwrap();
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env("HTTP_PROXY", NO_PROXY_THERE)
        .env("http_proxy", NO_PROXY_THERE)
        .env_remove("NO_PROXY")
        .env_remove("no_proxy")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && said.contains("1 passed"), "{said}");
}

/// A port on which nothing can listen.
const NO_PROXY_THERE: &str = "http://127.0.0.1:0";

#[test]
fn the_place_of_a_key_is_everything_that_a_resend_must_share() {
    let place = |url: &str, header: &'static str, format| {
        let mut settings = settings(url, EffectClass::KeyedWrite);
        settings.key = match header {
            "field" => KeyIn::Field("idempotency-key".to_owned()),
            header => KeyIn::Header(HeaderName::from_static(header)),
        };
        HttpTool::new(settings, None, None).unwrap().sent_as(format)
    };
    let base = place("http://api.test/pay?token=1", "idempotency-key", KeyFormat::Hex32);
    assert_eq!(base, place("http://API.test:80/pay?token=2", "idempotency-key", KeyFormat::Hex32));
    for (what, other) in [
        ("scheme", place("https://api.test:80/pay", "idempotency-key", KeyFormat::Hex32)),
        ("host", place("http://api2.test/pay", "idempotency-key", KeyFormat::Hex32)),
        ("port", place("http://api.test:81/pay", "idempotency-key", KeyFormat::Hex32)),
        ("path", place("http://api.test/pay/", "idempotency-key", KeyFormat::Hex32)),
        ("header", place("http://api.test/pay", "x-key", KeyFormat::Hex32)),
        ("place", place("http://api.test/pay", "field", KeyFormat::Hex32)),
        ("format", place("http://api.test/pay", "idempotency-key", KeyFormat::Uuid)),
    ] {
        assert_ne!(base, other, "{what}");
    }
}
