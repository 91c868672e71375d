//! The outside world: the registry of tools, and how a tool is called.
//!
//! Nothing here knows of the broker or of the ledger. A call gets its arguments, its key and a gate
//! that decides whether its request may begin, and comes back as a verdict: what is known to have
//! happened, never a guess. Whether another request follows is decided in [`crate::outcome`].

mod answer;
mod gate;
mod http;
pub mod registry;
mod schema;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::call::key::{KeyFormat, ToolName};
use crate::call::reply::Violation;
use crate::outcome::{EffectClass, Verdict};

pub use gate::SendGate;
pub use http::Transport;

use http::HttpTool;
use schema::ArgsSchema;

/// Results above this many bytes are cut, unless the worker's settings say otherwise.
pub const RESULT_MAX_DEFAULT: usize = 1024 * 1024;

/// One request to a tool.
#[derive(Clone)]
pub struct ToolCall {
    /// The key as the downstream takes it, rendered in the tool's [`KeyFormat`].
    pub key: String,
    /// The arguments as they came, byte for byte the same at every attempt.
    pub args: Bytes,
    /// The job's trace, forwarded where it is a legal header value.
    pub traceparent: Option<String>,
}

/// Without the arguments, which have no place in a log.
impl fmt::Debug for ToolCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolCall")
            .field("key", &self.key)
            .field("args_bytes", &self.args.len())
            .field("traceparent", &self.traceparent)
            .finish()
    }
}

/// How long and how often a call is tried again under one claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryBudget {
    /// The first wait.
    pub initial: Duration,
    /// The longest wait.
    pub max_interval: Duration,
    /// How long one round may last.
    pub max_elapsed: Duration,
    /// Trips through a delay queue after the first round.
    pub rounds: u32,
}

/// A tool of the registry.
pub struct Tool {
    name: ToolName,
    description: Option<String>,
    effect: EffectClass,
    ledger: bool,
    schema: ArgsSchema,
    lease: Duration,
    max_concurrency: usize,
    retry: RetryBudget,
    key_format: KeyFormat,
    key_memory: Option<Duration>,
    http: HttpTool,
}

impl Tool {
    /// The name that a job calls it by.
    pub fn name(&self) -> &ToolName {
        &self.name
    }

    /// What it does, for people.
    pub fn description(&self) -> Option<&str> {
        self.description.as_deref()
    }

    /// What a repeat of its call can do.
    pub fn effect(&self) -> EffectClass {
        self.effect
    }

    /// Whether its calls are claimed in the ledger; a `read`'s never are.
    pub fn uses_ledger(&self) -> bool {
        match self.effect {
            EffectClass::Read => false,
            EffectClass::KeyedWrite | EffectClass::UnkeyedWrite => self.ledger,
        }
    }

    /// How long one request may take, connecting included.
    pub fn timeout(&self) -> Duration {
        self.http.timeout()
    }

    /// How long a claim stands without renewal.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// How many of its calls one worker may run at a time; at least 1.
    pub fn max_concurrency(&self) -> usize {
        self.max_concurrency
    }

    /// How long and how often its calls are tried again.
    pub fn retry(&self) -> &RetryBudget {
        &self.retry
    }

    /// How the key is written for it.
    pub fn key_format(&self) -> KeyFormat {
        self.key_format
    }

    /// How long the downstream remembers a key; none for ever.
    pub fn key_memory(&self) -> Option<Duration> {
        self.key_memory
    }

    /// The header that carries the key.
    pub fn key_header(&self) -> &str {
        self.http.key_header()
    }

    /// The statuses that are taken as a refusal before any work.
    pub fn not_run_status(&self) -> &[u16] {
        self.http.not_run_status()
    }

    /// How its requests travel; none where the registry was read without the URL's variables.
    pub fn transport(&self) -> Option<Transport> {
        self.http.transport()
    }

    /// A digest of what "the same place" means for a resend under the same key: executor, method,
    /// scheme, host, port, path, the key's place and its format. The query is no part of it: it may
    /// hold a token that changes.
    pub fn sent_as(&self) -> [u8; 32] {
        self.http.sent_as(self.key_format)
    }

    /// Checks arguments against the tool's schema.
    ///
    /// # Errors
    /// The places that break it, at most [`registry::VIOLATIONS_MAX`] of them. No message holds a
    /// value of the arguments.
    pub fn validate(&self, args: &[u8]) -> Result<(), Vec<Violation>> {
        self.schema.validate(args)
    }

    /// Sends one request and says what it came to.
    ///
    /// `gate` is this request's own: it is asked when the first byte is about to leave, and is shut
    /// when this returns or is dropped.
    ///
    /// # Cancel safety
    /// Dropping the future ends the request. Whether it had begun is what [`SendGate::shut`] then
    /// answers; dropping never leaves a request behind that could still begin.
    pub async fn call(&self, call: ToolCall, gate: Arc<SendGate>) -> Verdict {
        self.http.call(call, gate).await
    }
}

impl fmt::Debug for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tool")
            .field("name", &self.name)
            .field("effect", &self.effect)
            .field("ledger", &self.ledger)
            .field("lease", &self.lease)
            .field("max_concurrency", &self.max_concurrency)
            .field("retry", &self.retry)
            .field("key_format", &self.key_format)
            .field("key_memory", &self.key_memory)
            .field("http", &self.http)
            .finish_non_exhaustive()
    }
}
