//! Three clients of a stream, of which one is right.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Server;

const ATTEMPTS: usize = 2;
const TIMEOUT: Duration = Duration::from_secs(5);
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// How a client treats a doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Client {
    /// Looks for the line `event: done`, and asks for the job again where it is missing.
    Strict,
    /// Takes the end of the stream for success, whatever the last event was.
    NoSentinel,
    /// Asks for the job's state by its key before anything else, and wherever it is in doubt.
    Resumable,
}

/// What a client raises.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failed {
    Status(u16),
    Broken,
    NoDone,
    /// The state is unknown: look the job up by its key, do not ask for it again.
    Unknown,
}

/// An answer that arrived whole.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: String,
}

impl Client {
    /// Asks for a job of this key.
    pub(super) async fn submit(self, server: &Server, key: &str) -> Result<(), Failed> {
        match self {
            Self::Strict => retried(server, key, true).await,
            Self::NoSentinel => retried(server, key, false).await,
            Self::Resumable => resumed(server, key).await,
        }
    }
}

/// Repeats the request after whatever went wrong: no question is asked about what it did.
async fn retried(server: &Server, key: &str, sentinel: bool) -> Result<(), Failed> {
    let mut failed = Failed::Broken;
    for _ in 0..ATTEMPTS {
        failed = match timeout(TIMEOUT, post(server, Some(key), "job-1")).await {
            Ok(Some(Answer { status: 200, body })) => {
                if !sentinel || body.lines().any(|line| line == "event: done") {
                    return Ok(());
                }
                Failed::NoDone
            }
            Ok(Some(Answer { status, .. })) => Failed::Status(status),
            Ok(None) | Err(_) => Failed::Broken,
        };
    }
    Err(failed)
}

/// Repeats the request only where it is known that none has acted.
async fn resumed(server: &Server, key: &str) -> Result<(), Failed> {
    let mut failed = Failed::Unknown;
    for _ in 0..ATTEMPTS {
        if known_as_done(server, key).await {
            return Ok(());
        }
        failed = match timeout(TIMEOUT, post(server, Some(key), "job-1")).await {
            Ok(Some(Answer { status: 200, body })) if done(&body).is_some() => return Ok(()),
            Ok(Some(Answer { status: 503, .. })) => Failed::Status(503),
            Ok(Some(Answer { status: 200 | 409, .. }) | None) | Err(_) => {
                let done = known_as_done(server, key).await;
                return if done { Ok(()) } else { Err(Failed::Unknown) };
            }
            Ok(Some(Answer { status, .. })) => return Err(Failed::Status(status)),
        };
    }
    Err(failed)
}

/// Whether the job of this key is done, once it does not run any more.
async fn known_as_done(server: &Server, key: &str) -> bool {
    loop {
        match state(server, key).await {
            Some(state) if state["state"] == "running" => tokio::time::sleep(BETWEEN_LOOKS).await,
            Some(state) => return state["state"] == "done",
            None => return false,
        }
    }
}

/// Asks for a job; none where the answer broke off.
pub(super) async fn post(server: &Server, key: Option<&str>, id: &str) -> Option<Answer> {
    let body = json!({ "id": id }).to_string();
    let key = key.map(|key| format!("idempotency-key: {key}\r\n")).unwrap_or_default();
    let length = body.len();
    exchange(server, &format!("POST /jobs HTTP/1.1\r\n{key}content-length: {length}\r\n\r\n{body}"))
        .await
}

/// Asks what became of a job; none where its key is not known.
pub(super) async fn state(server: &Server, key: &str) -> Option<Value> {
    let answer = exchange(server, &format!("GET /jobs/{key} HTTP/1.1\r\n\r\n")).await?;
    (answer.status == 200).then(|| serde_json::from_str(&answer.body).expect("JSON"))
}

/// The data of the event `done`; none where it is missing.
pub(super) fn done(body: &str) -> Option<Value> {
    let data = body.split_once("event: done\ndata: ")?.1;
    serde_json::from_str(data.lines().next()?).ok()
}

async fn exchange(server: &Server, request: &str) -> Option<Answer> {
    let mut stream = TcpStream::connect(server.address).await.expect("it listens");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.ok()?;
    let answer = String::from_utf8(answer).expect("UTF-8");
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let body = if head.contains("transfer-encoding: chunked") {
        unchunked(body)?
    } else {
        body.to_owned()
    };
    Some(Answer { status, body })
}

/// A chunked body; none where it ends before its last chunk.
fn unchunked(mut body: &str) -> Option<String> {
    let mut whole = String::new();
    loop {
        let (size, rest) = body.split_once("\r\n")?;
        let size = usize::from_str_radix(size, 16).ok()?;
        if size == 0 {
            return Some(whole);
        }
        whole.push_str(rest.get(..size)?);
        body = rest.get(size..)?.strip_prefix("\r\n")?;
    }
}
