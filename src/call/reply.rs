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
