//! The outside world: the registry of tools, and how a tool is called.
//!
//! Nothing here knows of the broker or of the ledger. A call gets its arguments, its key and a gate
//! that decides whether its request may begin, and comes back as a verdict: what is known to have
//! happened, never a guess. Whether another request follows is decided in [`crate::outcome`].

mod answer;
mod command;
mod gate;
mod http;
mod idle;
mod probe;
pub mod registry;
mod schema;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use crate::call::key::{KeyFormat, ToolName};
use crate::call::reply::{Phase, Violation};
use crate::outcome::{Branch, EffectClass, Failure, Verdict};

pub(crate) use command::supervise;
pub use gate::SendGate;
pub use http::Transport;
pub(crate) use http::{Exchange, Trial, TrialError};
pub use probe::{ProbePolicy, Probed, SETTLE_DELAY_DEFAULT};

use command::CommandTool;
use http::HttpTool;
use idle::IdleTool;
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

/// One way of calling out.
#[derive(Debug)]
enum Executor {
    Http(Box<HttpTool>),
    Command(CommandTool),
    Idle(IdleTool),
}

/// Where a request carries the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyPlace<'a> {
    /// In a header.
    Header(&'a str),
    /// In the body, as a member beside the arguments.
    Field(&'a str),
    /// In a variable of the environment.
    Variable(&'a str),
    /// Nowhere: there is no request.
    Nowhere,
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
    approval: bool,
    executor: Executor,
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

    /// How long one request may take, connecting included; a command's, with what ending it takes.
    pub fn timeout(&self) -> Duration {
        match &self.executor {
            Executor::Http(http) => http.timeout(),
            Executor::Command(command) => command.timeout(),
            Executor::Idle(idle) => idle.timeout(),
        }
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

    /// Whether a person must say of each call that it may run.
    pub fn needs_approval(&self) -> bool {
        self.approval
    }

    /// Where its requests carry the key.
    pub fn key_place(&self) -> KeyPlace<'_> {
        match &self.executor {
            Executor::Http(http) => http.key_place(),
            Executor::Command(_) => KeyPlace::Variable(command::KEY_VARIABLE),
            Executor::Idle(_) => KeyPlace::Nowhere,
        }
    }

    /// The statuses that are taken as a refusal before any work.
    pub fn not_run_status(&self) -> &[u16] {
        match &self.executor {
            Executor::Http(http) => http.not_run_status(),
            Executor::Command(_) | Executor::Idle(_) => &[],
        }
    }

    /// The exit codes by which it says that it has done nothing.
    pub fn not_run_exit(&self) -> &[u8] {
        match &self.executor {
            Executor::Http(_) | Executor::Idle(_) => &[],
            Executor::Command(command) => command.not_run_exit(),
        }
    }

    /// How its requests travel over the network; none where they do not, or the registry was read
    /// without the URL's variables.
    pub fn transport(&self) -> Option<Transport> {
        match &self.executor {
            Executor::Http(http) => http.transport(),
            Executor::Command(_) | Executor::Idle(_) => None,
        }
    }

    /// When its probe's answers count; none for a tool without a probe.
    pub fn probe(&self) -> Option<&ProbePolicy> {
        match &self.executor {
            Executor::Http(http) => http.probe(),
            Executor::Command(_) | Executor::Idle(_) => None,
        }
    }

    /// The longest that one look for an answer by probe may take; zero without a probe.
    pub fn longest_probe(&self) -> Duration {
        let Some(probe) = self.probe() else { return Duration::ZERO };
        // A `not_found` that will count is waited for, and a last question may take its time.
        probe.deadline.max(self.timeout() + probe.settle_delay) + self.timeout()
    }

    /// Asks the downstream once for the state of the call with this key, rendered in the tool's
    /// [`KeyFormat`].
    ///
    /// # Cancel safety
    /// Dropping the future ends the request; asking changes nothing.
    pub async fn ask(&self, key: &str) -> Probed {
        match &self.executor {
            Executor::Http(http) => http.ask(key).await,
            Executor::Command(_) | Executor::Idle(_) => {
                Probed::Unclear("the tool has no probe".to_owned())
            }
        }
    }

    /// A digest of what "the same place" means for a resend under the same key: executor, method,
    /// scheme, host, port, path, the key's place and its format. The query is no part of it: it may
    /// hold a token that changes. Of a command: executor, program, arguments, the key's place and its
    /// format. Of an idle tool: executor and the key's format.
    pub fn sent_as(&self) -> [u8; 32] {
        match &self.executor {
            Executor::Http(http) => http.sent_as(self.key_format),
            Executor::Command(command) => command.sent_as(self.key_format),
            Executor::Idle(idle) => idle.sent_as(self.key_format),
        }
    }

    /// Checks arguments against the tool's schema.
    ///
    /// # Errors
    /// The places that break it, at most [`registry::VIOLATIONS_MAX`] of them. No message holds a
    /// value of the arguments.
    pub fn validate(&self, args: &[u8]) -> Result<(), Vec<Violation>> {
        self.schema.validate(args)?;
        match self.key_place() {
            KeyPlace::Field(field) if http::is_taken(args, field) => {
                let pointer = format!("/{}", field.replace('~', "~0").replace('/', "~1"));
                let message = "no argument may have this name: it carries the call's key";
                Err(vec![Violation { pointer, message: message.to_owned() }])
            }
            KeyPlace::Field(_)
            | KeyPlace::Header(_)
            | KeyPlace::Variable(_)
            | KeyPlace::Nowhere => Ok(()),
        }
    }

    /// This tool at another address, to try what is there with repeats.
    ///
    /// # Errors
    /// The address is none, or is the registry's own; or the tool is not called over HTTP.
    pub(crate) fn trial(&self, url: &str) -> Result<Trial, TrialError> {
        let url = registry::checked_url(url)
            .map_err(|wrong| TrialError(format!("the address {wrong}")))?;
        match &self.executor {
            Executor::Http(http) => Trial::new(http, url),
            Executor::Command(_) => Err(TrialError("a command has no address to try".to_owned())),
            Executor::Idle(_) => Err(TrialError("an idle tool has nothing to try".to_owned())),
        }
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
        match &self.executor {
            Executor::Http(http) => http.call(call, gate).await,
            Executor::Command(command) => command.call(call, gate).await,
            Executor::Idle(idle) => idle.call(gate).await,
        }
    }
}

/// What [`Tool::sent_as`] says of a place with these parts.
fn place<'a>(parts: impl IntoIterator<Item = &'a str>) -> [u8; 32] {
    let mut digest = Sha256::new();
    for part in parts {
        // No part can hold a NUL, so that no two places are written the same way.
        digest.update(part.as_bytes());
        digest.update([0]);
    }
    digest.finalize().into()
}

fn failure(branch: Branch, phase: Phase, message: impl Into<String>) -> Failure {
    Failure { branch, phase, message: message.into(), retry_after: None }
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
            .field("approval", &self.approval)
            .field("executor", &self.executor)
            .finish_non_exhaustive()
    }
}
