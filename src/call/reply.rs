//! The answer's message: what a reply may say, and how it is written.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::key::IdempotencyKey;

/// How far a call is known to have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It happened, or was answered for good.
    Completed,
    /// Nothing has happened under this key so far; of a `read`: no answer was had.
    NotRun,
    /// It may or may not have happened.
    Unknown,
}

/// Why a call has no answer of its tool, or why its answer is an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The message is no job.
    BadJob,
    /// No tool of that name is registered.
    UnknownTool,
    /// The arguments break the tool's schema.
    BadArguments,
    /// No request left the worker.
    NotSent,
    /// The tool refused before any work.
    Refused,
    /// A person must say whether it may run.
    Held,
    /// A person said that it may not run.
    Denied,
    /// `expires_at` had passed before the call was begun.
    Expired,
    /// The tool answered with an error.
    ToolError,
    /// The request may have been received and was not answered for good.
    Ambiguous,
    /// The worker that ran it was lost.
    WorkerLost,
    /// Too many workers were lost with it.
    TooManyAttempts,
}

/// The part of a request in which it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Looking up the host's address.
    Resolve,
    /// Connecting, TLS included.
    Connect,
    /// Writing the request.
    Send,
    /// Waiting for the first byte of the response.
    AwaitResponse,
    /// Reading the response.
    Stream,
    /// Judging a response that arrived whole.
    Finish,
}

/// One place in which the arguments break the tool's schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// JSON Pointer into the arguments.
    pub pointer: String,
    /// What was expected there; never holds a value of the arguments.
    pub message: String,
}

/// What a reply says of a call that was not completed without error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallError {
    /// A stable code.
    pub kind: ErrorKind,
    /// Where the request ended, when there was one.
    pub phase: Option<Phase>,
    /// A sentence for a person or a model; free of arguments and secrets.
    pub message: String,
    /// For [`ErrorKind::BadArguments`] alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub violations: Vec<Violation>,
}

impl CallError {
    /// An error without violations.
    pub fn new(kind: ErrorKind, phase: Option<Phase>, message: impl Into<String>) -> Self {
        Self { kind, phase, message: message.into(), violations: Vec::new() }
    }
}

/// Something that a completed call's caller should know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Warning {
    /// The answer cannot stand in a JSON reply as it is, and is given as text.
    ContentAsText,
    /// The answer was larger than `result_max`; its first part is given as text.
    ResultTruncated,
    /// The downstream has this key but not its answer.
    ResultUnavailable,
    /// The body of the outcome was removed when it was old enough.
    OutcomePruned,
    /// An event stream closed cleanly without its terminal event.
    MissingTerminalEvent,
}

/// A reply, as it is published to the caller's `reply_to`.
#[derive(Debug, Serialize)]
pub struct Reply<'a> {
    /// Null where it could not be derived.
    pub key: Option<IdempotencyKey>,
    /// Of this delivery, also when the outcome is another attempt's.
    pub call_id: Option<&'a str>,
    /// The tool's name.
    pub name: Option<&'a str>,
    /// How far the call is known to have come.
    pub status: Status,
    /// True for every status but `completed`, and for an answer that is an error.
    pub is_error: bool,
    /// Whether this delivery ran nothing.
    pub replayed: bool,
    /// The attempt that the outcome is of; 0 where there was none.
    pub attempt: i32,
    /// The tool's answer, byte for byte.
    pub content: Option<&'a RawValue>,
    /// What else the caller should know.
    pub warnings: &'a [Warning],
    /// Null only for a completed call that is no error.
    pub error: Option<&'a CallError>,
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [(ErrorKind, &str); 12] = [
        (ErrorKind::BadJob, "bad_job"),
        (ErrorKind::UnknownTool, "unknown_tool"),
        (ErrorKind::BadArguments, "bad_arguments"),
        (ErrorKind::NotSent, "not_sent"),
        (ErrorKind::Refused, "refused"),
        (ErrorKind::Held, "held"),
        (ErrorKind::Denied, "denied"),
        (ErrorKind::Expired, "expired"),
        (ErrorKind::ToolError, "tool_error"),
        (ErrorKind::Ambiguous, "ambiguous"),
        (ErrorKind::WorkerLost, "worker_lost"),
        (ErrorKind::TooManyAttempts, "too_many_attempts"),
    ];

    fn json<T: Serialize>(value: &T) -> String {
        serde_json::to_string(value).unwrap()
    }

    #[test]
    fn a_completed_call_is_answered_with_the_answer_as_it_came() {
        let content: Box<RawValue> =
            serde_json::from_str("{ \"b\" : 1.0, \"a\": 12345678901234567890123 }").unwrap();
        let reply = Reply {
            key: Some(IdempotencyKey::from_bytes([0xab; 16])),
            call_id: Some("toolu_01A"),
            name: Some("send_payment"),
            status: Status::Completed,
            is_error: false,
            replayed: false,
            attempt: 1,
            content: Some(&content),
            warnings: &[],
            error: None,
        };
        assert_eq!(
            json(&reply),
            "{\"key\":\"abababababababababababababababab\",\"call_id\":\"toolu_01A\",\
             \"name\":\"send_payment\",\"status\":\"completed\",\"is_error\":false,\
             \"replayed\":false,\"attempt\":1,\
             \"content\":{ \"b\" : 1.0, \"a\": 12345678901234567890123 },\
             \"warnings\":[],\"error\":null}"
        );
    }

    #[test]
    fn what_could_not_be_read_is_null() {
        let error = CallError::new(ErrorKind::BadJob, None, "the message is no job");
        let reply = Reply {
            key: None,
            call_id: None,
            name: None,
            status: Status::NotRun,
            is_error: true,
            replayed: true,
            attempt: 0,
            content: None,
            warnings: &[],
            error: Some(&error),
        };
        assert_eq!(
            json(&reply),
            "{\"key\":null,\"call_id\":null,\"name\":null,\"status\":\"not_run\",\
             \"is_error\":true,\"replayed\":true,\"attempt\":0,\"content\":null,\
             \"warnings\":[],\"error\":{\"kind\":\"bad_job\",\"phase\":null,\
             \"message\":\"the message is no job\"}}"
        );
    }

    #[test]
    fn an_error_is_written_and_read_back_with_its_violations() {
        let pointer = "/amount".to_owned();
        let violations = vec![Violation { pointer, message: "must be text".to_owned() }];
        let mut error = CallError::new(ErrorKind::BadArguments, Some(Phase::AwaitResponse), "m");
        error.violations = violations;
        let text = json(&error);
        assert_eq!(
            text,
            "{\"kind\":\"bad_arguments\",\"phase\":\"await_response\",\"message\":\"m\",\
             \"violations\":[{\"pointer\":\"/amount\",\"message\":\"must be text\"}]}"
        );
        assert_eq!(serde_json::from_str::<CallError>(&text).unwrap(), error);
        // As an older version recorded it.
        let old = r#"{"kind":"refused","phase":null,"message":"m"}"#;
        assert_eq!(
            serde_json::from_str::<CallError>(old).unwrap(),
            CallError::new(ErrorKind::Refused, None, "m")
        );
    }

    #[test]
    fn codes_are_stable() {
        for (kind, code) in KINDS {
            assert_eq!(json(&kind), format!("\"{code}\""));
            assert_eq!(kind.to_string(), code);
            assert_eq!(serde_json::from_str::<ErrorKind>(&json(&kind)).unwrap(), kind);
        }
        let statuses = [Status::Completed, Status::NotRun, Status::Unknown];
        assert_eq!(json(&statuses), r#"["completed","not_run","unknown"]"#);
        let phases = [
            Phase::Resolve,
            Phase::Connect,
            Phase::Send,
            Phase::AwaitResponse,
            Phase::Stream,
            Phase::Finish,
        ];
        let codes = r#"["resolve","connect","send","await_response","stream","finish"]"#;
        assert_eq!(json(&phases), codes);
        assert_eq!(serde_json::from_str::<Vec<Phase>>(codes).unwrap(), phases);
        let warnings = [
            Warning::ContentAsText,
            Warning::ResultTruncated,
            Warning::ResultUnavailable,
            Warning::OutcomePruned,
            Warning::MissingTerminalEvent,
        ];
        let codes = "[\"content_as_text\",\"result_truncated\",\"result_unavailable\",\
                     \"outcome_pruned\",\"missing_terminal_event\"]";
        assert_eq!(json(&warnings), codes);
    }
}
