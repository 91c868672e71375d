//! Phase, effect class and what happened: retry safety is a property of the phase, not of the
//! exception. The one table of what each class permits after each verdict is [`next`].

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::call::reply::{CallError, Phase, Warning};

/// What a repeat of the tool's call can do in the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EffectClass {
    /// Repeated freely; has no ledger row.
    Read,
    /// The downstream collapses repeats by the forwarded key.
    KeyedWrite,
    /// Nothing but the ledger stands between a repeat and a second effect.
    UnkeyedWrite,
}

/// What is known of a call's outcome, as it is stored and replayed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// Whether the answer is an error.
    pub is_error: bool,
    /// The tool's answer; none where there was no answer.
    pub content: Option<Box<RawValue>>,
    /// What else the caller should know.
    #[serde(default)]
    pub warnings: Vec<Warning>,
    /// None only for a completed call that is no error.
    pub error: Option<CallError>,
}

/// Why a request has no answer that counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Where the request ended.
    pub phase: Phase,
    /// A lower-case fragment; free of arguments and secrets.
    pub message: String,
    /// How long the downstream asked to be left alone.
    pub retry_after: Option<Duration>,
}

/// What one request to a tool came to.
#[derive(Debug)]
#[must_use]
pub enum Verdict {
    /// Answered for good.
    Completed {
        /// The answer.
        outcome: Outcome,
        /// Whether it also answers a request of which an earlier one was ambiguous: a 2xx, or a
        /// status of the tool's `replayed_status`.
        settles_resend: bool,
    },
    /// Nothing left this side.
    NotSent(Failure),
    /// Refused before any work.
    Refused(Failure),
    /// The downstream is still busy with an earlier request under this key.
    InProgress(Failure),
    /// It may or may not have been received and acted upon.
    Ambiguous(Failure),
}

impl Verdict {
    /// Whether the request happened in the world, as far as this one request tells.
    #[must_use]
    pub fn happened(&self) -> Happened {
        match self {
            Self::NotSent(_) | Self::Refused(_) => Happened::No,
            Self::InProgress(_) | Self::Ambiguous(_) => Happened::Maybe,
            Self::Completed { .. } => Happened::Yes,
        }
    }

    /// Why there is no answer that counts; none for a completed request.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::NotSent(failure)
            | Self::Refused(failure)
            | Self::InProgress(failure)
            | Self::Ambiguous(failure) => Some(failure),
            Self::Completed { .. } => None,
        }
    }
}

/// Whether a request happened in the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Happened {
    /// It is known that it did not.
    No,
    /// It may have been received and acted upon.
    Maybe,
    /// It was answered for good.
    Yes,
}

/// What follows a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Next {
    /// The verdict's outcome settles the call.
    Complete,
    /// Another request under the same key is safe, budget permitting.
    Retry {
        /// How long the downstream asked to be left alone.
        after: Option<Duration>,
    },
    /// No further request, whatever is left of the budget.
    Stop,
}

/// The one table: what `class` permits after `verdict`.
///
/// `ambiguous_before` says whether a request under this key, in this attempt or an earlier one, was
/// ambiguous before this one: then only an answer that settles a resend settles the call, and any
/// other answer leaves it as ambiguous as it was. `key_remembered` says whether the downstream still
/// collapses repeats of the key until the end of a resend begun now; where it does not, a
/// `keyed_write` is treated as an `unkeyed_write`.
pub fn next(
    class: EffectClass,
    verdict: &Verdict,
    ambiguous_before: bool,
    key_remembered: bool,
) -> Next {
    let repeatable = match class {
        EffectClass::Read => true,
        EffectClass::KeyedWrite => key_remembered,
        EffectClass::UnkeyedWrite => false,
    };
    let settled = |settles_resend: bool| match class {
        EffectClass::Read => true,
        EffectClass::KeyedWrite | EffectClass::UnkeyedWrite => !ambiguous_before || settles_resend,
    };
    let retry_if = |safe: bool, after: Option<Duration>| {
        if safe { Next::Retry { after } } else { Next::Stop }
    };
    match verdict {
        Verdict::Completed { settles_resend, .. } if settled(*settles_resend) => Next::Complete,
        Verdict::Completed { .. } => retry_if(repeatable, None),
        // This request did nothing, but one before it may have: then another one is a second try.
        Verdict::NotSent(failure) | Verdict::Refused(failure) => {
            retry_if(repeatable || !ambiguous_before, failure.retry_after)
        }
        Verdict::InProgress(failure) | Verdict::Ambiguous(failure) => {
            retry_if(repeatable, failure.retry_after)
        }
    }
}
