//! Connections: those that never come to be, those that are used again, and those that are lost.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::server::{Answer, End, Server};
use super::*;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";

/// A listener that accepts nothing, and whose queue of connections is full.
pub(super) struct Busy {
    address: SocketAddr,
    _listener: TcpListener,
    _queued: Vec<TcpStream>,
}

impl Busy {
    pub(super) async fn start() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let mut queued = Vec::new();
        let short = Duration::from_millis(300);
        while let Ok(stream) = tokio::time::timeout(short, TcpStream::connect(address)).await {
            queued.push(stream.unwrap());
            assert!(queued.len() < 64, "the queue is never full");
        }
        Self { address, _listener: listener, _queued: queued }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/payments", self.address)
    }
}

#[tokio::test]
async fn a_refused_connection_is_not_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let verdict = send(&tool(settings(&url, EffectClass::UnkeyedWrite))).await;
    assert_eq!((kind(&verdict), phase(&verdict)), (Kind::NotSent, Phase::Connect));
    let message = &verdict.failure().unwrap().message;
    assert_eq!(message, "could not connect: connection refused");
}

#[tokio::test]
async fn a_connection_that_takes_too_long_is_not_sent() {
    let busy = Busy::start().await;
    let mut settings = settings(&busy.url(), EffectClass::UnkeyedWrite);
    settings.connect_timeout = Duration::from_millis(100);
    let begun = Instant::now();
    let verdict = send(&tool(settings)).await;
    assert_eq!((kind(&verdict), phase(&verdict)), (Kind::NotSent, Phase::Connect));
    assert_eq!(verdict.failure().unwrap().message, "not connected within 100ms");
    assert!(begun.elapsed() < LONG / 4, "the connect time-out ends it, not the total");
}

#[tokio::test]
async fn the_total_time_out_while_connecting_is_not_sent() {
    let busy = Busy::start().await;
    let mut settings = settings(&busy.url(), EffectClass::UnkeyedWrite);
    settings.timeout = Duration::from_millis(100);
    let gate = open_gate();
    let verdict = tool(settings).call(call(), Arc::clone(&gate)).await;
    assert_eq!((kind(&verdict), phase(&verdict)), (Kind::NotSent, Phase::Connect));
    assert!(!gate.open(), "what was given up never begins");
}

#[tokio::test]
async fn a_host_without_an_address_is_not_sent() {
    let mut settings = settings("http://nonexistent.invalid/", EffectClass::UnkeyedWrite);
    settings.connect_timeout = Duration::from_secs(5);
    let verdict = send(&tool(settings)).await;
    assert_eq!((kind(&verdict), phase(&verdict)), (Kind::NotSent, Phase::Resolve));
    let message = &verdict.failure().unwrap().message;
    assert!(!message.contains("nonexistent"), "{message}");
}

#[tokio::test]
async fn a_read_and_a_keyed_write_use_their_connection_again() {
    for effect in [EffectClass::Read, EffectClass::KeyedWrite] {
        let server = Server::with(OK, End::KeepAlive).await;
        let tool = tool(settings(&server.url(), effect));
        for _ in 0..3 {
            assert_eq!(kind(&send(&tool).await), Kind::Completed);
        }
        let connections: Vec<_> = server.requests().iter().map(|seen| seen.connection).collect();
        assert_eq!(connections, [1, 1, 1], "{effect:?}");
    }
}

#[tokio::test]
async fn an_unkeyed_write_takes_a_new_connection_each_time() {
    let server = Server::with(OK, End::KeepAlive).await;
    let tool = tool(settings(&server.url(), EffectClass::UnkeyedWrite));
    for _ in 0..3 {
        assert_eq!(kind(&send(&tool).await), Kind::Completed);
    }
    let connections: Vec<_> = server.requests().iter().map(|seen| seen.connection).collect();
    assert_eq!(connections, [1, 2, 3]);
}

#[tokio::test]
async fn a_connection_that_was_closed_while_idle_is_replaced() {
    // A server that ends its connection once the answer is out without having said so.
    let server = Server::with(OK, End::Close).await;
    let tool = keyed(&server);
    for nth in 1..=5 {
        assert_eq!(kind(&send(&tool).await), Kind::Completed, "request {nth}");
        server.ended(nth).await;
    }
    assert_eq!(server.requests().len(), 5);
}

#[tokio::test]
async fn bytes_that_nobody_asked_for_answer_no_request() {
    // Left over after the first answer, and an answer of its own by the look of it.
    let twice = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n\"a\"\
                 HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n\"b\"";
    let third = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n\"c\"";
    let server = Server::start(vec![
        Answer(twice.into(), End::KeepAlive),
        Answer(third.into(), End::KeepAlive),
    ])
    .await;
    let tool = keyed(&server);
    assert_eq!(content(&outcome(send(&tool).await)), Some("\"a\""));
    assert_eq!(content(&outcome(send(&tool).await)), Some("\"c\""));
    let connections: Vec<_> = server.requests().iter().map(|seen| seen.connection).collect();
    assert_eq!(connections, [1, 2]);
}

#[tokio::test]
async fn a_connection_lost_after_the_request_is_ambiguous_and_not_tried_again() {
    for effect in [EffectClass::Read, EffectClass::KeyedWrite, EffectClass::UnkeyedWrite] {
        for end in [End::Close, End::Reset] {
            let server = Server::with("", end).await;
            let gate = open_gate();
            let tool = tool(settings(&server.url(), effect));
            let verdict = tool.call(call(), Arc::clone(&gate)).await;
            let expected = (Kind::Ambiguous, Phase::AwaitResponse);
            assert_eq!((kind(&verdict), phase(&verdict)), expected, "{effect:?} {end:?}");
            assert!(gate.opened());
            assert_eq!(server.requests().len(), 1, "{effect:?} {end:?}");
        }
    }
}

#[tokio::test]
async fn a_used_connection_lost_after_the_request_is_ambiguous_and_not_tried_again() {
    let server =
        Server::start(vec![Answer(OK.into(), End::KeepAlive), Answer(Vec::new(), End::Close)])
            .await;
    let tool = keyed(&server);
    assert_eq!(kind(&send(&tool).await), Kind::Completed);
    let verdict = send(&tool).await;
    assert_eq!((kind(&verdict), phase(&verdict)), (Kind::Ambiguous, Phase::AwaitResponse));
    let connections: Vec<_> = server.requests().iter().map(|seen| seen.connection).collect();
    assert_eq!(connections, [1, 1]);
}

#[tokio::test]
async fn an_answer_that_does_not_come_ends_at_the_time_out() {
    let server = Server::with("", End::Stall).await;
    let mut settings = settings(&server.url(), EffectClass::KeyedWrite);
    settings.timeout = Duration::from_millis(300);
    let verdict = send(&tool(settings)).await;
    assert_eq!((kind(&verdict), phase(&verdict)), (Kind::Ambiguous, Phase::AwaitResponse));
    assert_eq!(verdict.failure().unwrap().message, "no answer within 300ms");
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn an_answer_that_drips_ends_at_the_time_out() {
    for head in [
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 422 No\r\nTransfer-Encoding: chunked\r\n\r\n",
    ] {
        let server = Server::with(head, End::Drip(b"1\r\n1\r\n")).await;
        let mut settings = settings(&server.url(), EffectClass::KeyedWrite);
        settings.timeout = Duration::from_millis(300);
        let verdict = send(&tool(settings)).await;
        assert_eq!((kind(&verdict), phase(&verdict)), (Kind::Ambiguous, Phase::Stream));
    }
    let server = Server::with("HTTP/1.1 200 OK\r\n", End::Drip(b"X-A: b\r\n")).await;
    let mut settings = settings(&server.url(), EffectClass::KeyedWrite);
    settings.timeout = Duration::from_millis(300);
    let verdict = send(&tool(settings)).await;
    assert_eq!((kind(&verdict), phase(&verdict)), (Kind::Ambiguous, Phase::AwaitResponse));
}
