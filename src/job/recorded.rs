//! What the ledger holds of a call, or why it holds nothing: all that may be replied.

use serde_json::value::RawValue;

use crate::call::reply::{CallError, ErrorKind, Phase, Status, Violation, Warning};
use crate::ledger::CallRow;
use crate::ledger::state::State;
use crate::outcome::Outcome;

/// What an unknown call's caller must know, whatever made it unknown.
const UNKNOWN: &str =
    "the state of this call is unknown; look it up by its key; do not resubmit it as another call";

/// The proof that there is nothing left to record before the reply.
#[derive(Debug, Clone)]
pub(super) struct Recorded {
    status: Status,
    outcome: Outcome,
    attempt: i32,
    replayed: bool,
    may_resend: bool,
}

impl Recorded {
    /// What a row says. `ran` is whether this delivery ran an attempt of its own.
    ///
    /// `None`: the row is in flight and says nothing yet.
    pub(super) fn row(row: CallRow, ran: bool) -> Option<Self> {
        let status = match row.record.state {
            State::InFlight => return None,
            State::Completed => Status::Completed,
            State::NotRun | State::Held => Status::NotRun,
            State::Unknown => Status::Unknown,
        };
        let outcome = match (row.outcome, row.record.state) {
            (Some(outcome), _) => outcome,
            (None, State::Completed) => pruned(),
            (None, State::Held) => {
                failed(ErrorKind::Held, None, "a person must say whether this call may run")
            }
            (None, State::NotRun) => failed(ErrorKind::NotSent, None, "it has not run yet"),
            (None, State::Unknown | State::InFlight) => unknown(ErrorKind::Ambiguous, None, ""),
        };
        Some(Self {
            status,
            outcome,
            attempt: row.record.attempt,
            replayed: !ran,
            may_resend: !row.record.too_many,
        })
    }

    /// What was just settled.
    pub(super) fn settled(status: Status, outcome: Outcome, attempt: i32) -> Self {
        Self { status, outcome, attempt, replayed: false, may_resend: true }
    }

    /// What another delivery was answered, for one that ran nothing itself.
    pub(super) fn replayed_elsewhere(&self) -> Self {
        Self { replayed: true, ..self.clone() }
    }

    /// A refusal: nothing ran, and no row is needed to say so.
    pub(super) fn refusal(error: CallError) -> Self {
        let outcome = Outcome { is_error: true, error: Some(error), ..Outcome::default() };
        Self { status: Status::NotRun, outcome, attempt: 0, replayed: true, may_resend: false }
    }

    /// A delivery that cannot be looked at, since looking may be what ends workers.
    pub(super) fn undecoded(message: &str) -> Self {
        let outcome = unknown(ErrorKind::TooManyAttempts, None, message);
        Self { status: Status::Unknown, outcome, attempt: 0, replayed: true, may_resend: false }
    }

    pub(super) fn status(&self) -> Status {
        self.status
    }

    pub(super) fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    pub(super) fn content(&self) -> Option<&RawValue> {
        self.outcome.content.as_deref()
    }

    pub(super) fn attempt(&self) -> i32 {
        self.attempt
    }

    pub(super) fn replayed(&self) -> bool {
        self.replayed
    }

    /// Whether an unknown call may be sent again under its key, if its class allows it.
    pub(super) fn may_resend(&self) -> bool {
        self.may_resend
    }

    /// Whether nothing runs until a person has said that it may.
    pub(super) fn waits_for_a_person(&self) -> bool {
        self.outcome
            .error
            .as_ref()
            .is_some_and(|error| matches!(error.kind, ErrorKind::Held | ErrorKind::Denied))
    }

    /// Why it is no answer, for the dead queue and the log.
    pub(super) fn reason(&self) -> (String, &str) {
        let error = self.outcome.error.as_ref();
        (
            error.map_or_else(String::new, |error| error.kind.to_string()),
            error.map_or("", |error| &error.message),
        )
    }
}

/// An outcome that is no answer.
pub(super) fn failed(kind: ErrorKind, phase: Option<Phase>, message: &str) -> Outcome {
    Outcome {
        is_error: true,
        error: Some(CallError::new(kind, phase, message)),
        ..Outcome::default()
    }
}

/// An outcome that nobody knows; the message says what to do, and why first where that is known.
pub(super) fn unknown(kind: ErrorKind, phase: Option<Phase>, why: &str) -> Outcome {
    let message = if why.is_empty() { UNKNOWN.to_owned() } else { format!("{why}: {UNKNOWN}") };
    failed(kind, phase, &message)
}

fn pruned() -> Outcome {
    Outcome { warnings: vec![Warning::OutcomePruned], ..Outcome::default() }
}

/// A refusal of arguments, with the places to mend.
pub(super) fn bad_arguments(violations: Vec<Violation>) -> CallError {
    let message = "the arguments break the tool's schema; mend them and make another call";
    CallError { violations, ..CallError::new(ErrorKind::BadArguments, None, message) }
}
