//! The executor against real sockets: what arrives at a server, and what is made of what it does.

mod answers;
mod cases;
mod connections;
mod probe;
mod requests;
mod rows;
mod server;
mod streams;
mod tls;

use bytes::Bytes;

use super::*;
use crate::call::reply::{ErrorKind, Warning};
use crate::outcome::Outcome;
use server::Server;

const KEY: &str = "0123456789abcdef0123456789abcdef";

/// Longer than anything here takes; a test that needs a time-out sets its own.
const LONG: Duration = Duration::from_secs(20);

fn settings(url: &str, effect: EffectClass) -> HttpSettings {
    HttpSettings {
        url: Some(HiddenUrl(url.parse().unwrap())),
        headers: Vec::new(),
        key: KeyIn::Header(HeaderName::from_static("idempotency-key")),
        replay_header: None,
        statuses: Statuses { not_run: vec![503, 429, 425], ..Statuses::default() },
        answer: AnswerKind::Json,
        stream: StreamSettings::default(),
        effect,
        timeout: LONG,
        connect_timeout: LONG / 2,
        result_bytes_max: 1024,
    }
}

fn tool(settings: HttpSettings) -> HttpTool {
    HttpTool::new(settings, None, Some(&TlsSetup::new())).unwrap()
}

/// A keyed write to a server.
fn keyed(server: &Server) -> HttpTool {
    tool(settings(&server.url(), EffectClass::KeyedWrite))
}

fn call() -> ToolCall {
    ToolCall { key: KEY.to_owned(), args: Bytes::from_static(br#"{"n": 1}"#), traceparent: None }
}

fn open_gate() -> Arc<SendGate> {
    SendGate::new(|| true)
}

async fn send(tool: &HttpTool) -> Verdict {
    tool.call(call(), open_gate()).await
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Completed,
    ToolError,
    Presumed,
    NotSent,
    Refused,
    InProgress,
    Ambiguous,
}

fn kind(verdict: &Verdict) -> Kind {
    match verdict {
        Verdict::Completed { outcome: Outcome { is_error: false, .. }, .. } => Kind::Completed,
        Verdict::Completed { outcome: Outcome { is_error: true, .. }, .. } => Kind::ToolError,
        Verdict::Presumed(_) => Kind::Presumed,
        Verdict::NotSent(_) => Kind::NotSent,
        Verdict::Refused(_) => Kind::Refused,
        Verdict::InProgress(_) => Kind::InProgress,
        Verdict::Ambiguous(_) => Kind::Ambiguous,
    }
}

#[track_caller]
fn phase(verdict: &Verdict) -> Phase {
    verdict.failure().unwrap_or_else(|| panic!("{verdict:?} has no phase")).phase
}

#[track_caller]
fn outcome(verdict: Verdict) -> Outcome {
    match verdict {
        Verdict::Completed { outcome, .. } => outcome,
        Verdict::Presumed(presumed) => presumed.outcome,
        Verdict::NotSent(failure)
        | Verdict::Refused(failure)
        | Verdict::InProgress(failure)
        | Verdict::Ambiguous(failure) => panic!("not completed: {failure:?}"),
    }
}

fn content(outcome: &Outcome) -> Option<&str> {
    outcome.content.as_ref().map(|raw| raw.get())
}
