//! Phase, effect class and what happened: retry safety is a property of the phase, not of the
//! exception. The one table of what each class permits after each verdict is [`next`].

use std::fmt;
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
#[derive(Clone, Default, Serialize, Deserialize)]
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
    /// What the downstream said in the tool's `replay_header`, if it did: that it gave the answer of
    /// an earlier request under this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay_header: Option<Box<str>>,
}

/// Without the content, which has no place in a log.
impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outcome")
            .field("is_error", &self.is_error)
            .field("content_bytes", &self.content.as_ref().map(|content| content.get().len()))
            .field("warnings", &self.warnings)
            .field("error", &self.error)
            .finish()
    }
}

/// How a request ended that did not end the ordinary way: what its judgement rests on, never the text
/// of an error. Kept with the attempt.
///
/// The order is that of the questions that decide: did anything leave, did an answer begin, did it
/// break, did it end as an answer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Branch {
    /// Nothing left: no address, no connection, no TLS, no process.
    NotSent,
    /// The lease ended before anything left.
    LeaseEnded,
    /// The connection was lost after the request may have been written and before any answer.
    Lost,
    /// No answer in time, or an answer that did not end in time.
    TimedOut,
    /// Refused before any work.
    Refused,
    /// The downstream is busy with an earlier request under this key.
    InProgress,
    /// The downstream has this key already, but not its answer.
    Duplicate,
    /// The downstream has this key with other arguments.
    KeyReused,
    /// Sent elsewhere by a status that does not say what happened.
    Redirected,
    /// A status that does not say what happened.
    UnclearStatus,
    /// A body that ended before its length or its last chunk.
    Cut,
    /// An event stream that broke in the middle.
    StreamBroken,
    /// An event stream that fell silent.
    StreamIdle,
    /// An event stream that closed cleanly without its terminal event.
    MissingTerminalEvent,
    /// A success that is no answer of the expected kind.
    Unexpected,
    /// A child process that was ended by a signal.
    Killed,
    /// The answer to a resend, which is not the answer to the call.
    ResendAnswer,
}

impl Branch {
    /// Whether the downstream has said by it that it has the key, whatever became of the call.
    #[must_use]
    pub fn shows_the_key_is_known(self) -> bool {
        matches!(self, Self::InProgress | Self::Duplicate | Self::KeyReused)
    }
}

/// Why a request has no answer that counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// How it ended.
    pub branch: Branch,
    /// Where the request ended.
    pub phase: Phase,
    /// A lower-case fragment; free of arguments and secrets.
    pub message: String,
    /// How long the downstream asked to be left alone.
    pub retry_after: Option<Duration>,
}

/// An answer that is no plain one, and what is made of it without a probe.
#[derive(Debug)]
pub struct Presumed {
    /// What to say of it.
    pub outcome: Outcome,
    /// Why it is no plain answer.
    pub failure: Failure,
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
        /// What is out of the ordinary about it, if anything is: [`Branch::KeyReused`].
        branch: Option<Branch>,
    },
    /// Taken as completed, with a warning, unless a probe knows better. It settles a resend too.
    Presumed(Box<Presumed>),
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
            Self::Completed { .. } | Self::Presumed(_) => Happened::Yes,
        }
    }

    /// Why there is no plain answer; none for a completed request.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Presumed(presumed) => Some(&presumed.failure),
            Self::NotSent(failure)
            | Self::Refused(failure)
            | Self::InProgress(failure)
            | Self::Ambiguous(failure) => Some(failure),
            Self::Completed { .. } => None,
        }
    }

    /// How the request ended; none where it ended the ordinary way.
    #[must_use]
    pub fn branch(&self) -> Option<Branch> {
        match self {
            Self::Completed { branch, .. } => *branch,
            Self::Presumed(_)
            | Self::NotSent(_)
            | Self::Refused(_)
            | Self::InProgress(_)
            | Self::Ambiguous(_) => self.failure().map(|failure| failure.branch),
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
    /// The downstream is to be asked for the call's state by its key.
    Probe,
    /// Another request under the same key is safe, budget permitting.
    Retry {
        /// How long the downstream asked to be left alone.
        after: Option<Duration>,
    },
    /// No further request, whatever is left of the budget.
    Stop,
}

/// Whether a request under the same key collapses with those before it, or does no harm.
fn repeatable(class: EffectClass, key_remembered: bool) -> bool {
    match class {
        EffectClass::Read => true,
        EffectClass::KeyedWrite => key_remembered,
        EffectClass::UnkeyedWrite => false,
    }
}

/// Whether a request may begin at this moment, as far as the class decides.
///
/// [`next`] has judged at the end of the request before, and the claim when it was made. The waits
/// in between take time, in which a downstream may forget the key.
#[must_use]
pub fn may_begin(class: EffectClass, ambiguous_before: bool, key_remembered: bool) -> bool {
    !ambiguous_before || repeatable(class, key_remembered)
}

/// What is known beside a verdict.
#[derive(Debug, Clone, Copy)]
pub struct Standing {
    /// The stricter of the row's class and the registry's.
    pub class: EffectClass,
    /// Whether a request under this key, in this attempt or an earlier one, was ambiguous before this
    /// one: then only an answer that settles a resend settles the call, and any other answer leaves
    /// it as ambiguous as it was.
    pub ambiguous_before: bool,
    /// Whether the downstream still collapses repeats of the key until the end of a resend begun now;
    /// where it does not, a `keyed_write` is treated as an `unkeyed_write`.
    pub key_remembered: bool,
    /// Whether the downstream can still be asked for the call's state by its key.
    pub can_probe: bool,
}

/// The one table: what follows `verdict`.
pub fn next(verdict: &Verdict, standing: Standing) -> Next {
    let Standing { class, ambiguous_before, key_remembered, can_probe } = standing;
    let repeatable = repeatable(class, key_remembered);
    let (writes, settles_anything) = match class {
        EffectClass::Read => (false, true),
        EffectClass::KeyedWrite | EffectClass::UnkeyedWrite => (true, !ambiguous_before),
    };
    let retry_if = |safe: bool, after: Option<Duration>| {
        if safe { Next::Retry { after } } else { Next::Stop }
    };
    match verdict {
        Verdict::Completed { settles_resend, .. } if settles_anything || *settles_resend => {
            Next::Complete
        }
        // This request did nothing. Where one before it may have, another is a second try.
        Verdict::NotSent(failure) | Verdict::Refused(failure)
            if repeatable || !ambiguous_before =>
        {
            Next::Retry { after: failure.retry_after }
        }
        // Asking again under the same key is how to ask what became of it.
        Verdict::InProgress(failure) if repeatable => Next::Retry { after: failure.retry_after },
        _ if writes && can_probe => Next::Probe,
        Verdict::Presumed(_) => Next::Complete,
        Verdict::Completed { .. } => retry_if(repeatable, None),
        Verdict::NotSent(failure)
        | Verdict::Refused(failure)
        | Verdict::InProgress(failure)
        | Verdict::Ambiguous(failure) => retry_if(repeatable, failure.retry_after),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::reply::Phase;

    const CLASSES: [EffectClass; 3] =
        [EffectClass::Read, EffectClass::KeyedWrite, EffectClass::UnkeyedWrite];

    const ASKED: Option<Duration> = Some(Duration::from_secs(7));

    /// The verdicts by name.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Given {
        Settling,
        NotSettling,
        Presumed,
        NotSent,
        Refused,
        InProgress,
        Ambiguous,
    }

    const ALL: [Given; 7] = [
        Given::Settling,
        Given::NotSettling,
        Given::Presumed,
        Given::NotSent,
        Given::Refused,
        Given::InProgress,
        Given::Ambiguous,
    ];

    fn verdict(given: Given) -> Verdict {
        let failure = || Failure {
            branch: Branch::Lost,
            phase: Phase::Finish,
            message: String::new(),
            retry_after: ASKED,
        };
        let completed = |settles_resend| Verdict::Completed {
            outcome: Outcome::default(),
            settles_resend,
            branch: None,
        };
        match given {
            Given::Settling => completed(true),
            Given::NotSettling => completed(false),
            Given::Presumed => {
                let presumed = Presumed { outcome: Outcome::default(), failure: failure() };
                Verdict::Presumed(Box::new(presumed))
            }
            Given::NotSent => Verdict::NotSent(failure()),
            Given::Refused => Verdict::Refused(failure()),
            Given::InProgress => Verdict::InProgress(failure()),
            Given::Ambiguous => Verdict::Ambiguous(failure()),
        }
    }

    /// The table in the other direction, without a probe: written from what may have happened, not
    /// from the code.
    fn without_probe(class: EffectClass, given: Given, ambiguous: bool, remembered: bool) -> Next {
        const COMPLETE: Next = Next::Complete;
        const RETRY: Next = Next::Retry { after: ASKED };
        const RETRY_UNASKED: Next = Next::Retry { after: None };
        const STOP: Next = Next::Stop;
        match (class, given, ambiguous, remembered) {
            (_, Given::Presumed | Given::Settling, _, _) => COMPLETE,
            (EffectClass::Read, Given::NotSettling, _, _) => COMPLETE,
            (
                EffectClass::Read,
                Given::NotSent | Given::Refused | Given::InProgress | Given::Ambiguous,
                _,
                _,
            ) => RETRY,

            (EffectClass::KeyedWrite, Given::NotSettling, false, _) => COMPLETE,
            (EffectClass::KeyedWrite, Given::NotSettling, true, true) => RETRY_UNASKED,
            (EffectClass::KeyedWrite, Given::NotSettling, true, false) => STOP,
            (EffectClass::KeyedWrite, Given::NotSent | Given::Refused, false, _) => RETRY,
            (EffectClass::KeyedWrite, Given::NotSent | Given::Refused, true, true) => RETRY,
            (EffectClass::KeyedWrite, Given::NotSent | Given::Refused, true, false) => STOP,
            (EffectClass::KeyedWrite, Given::InProgress | Given::Ambiguous, _, true) => RETRY,
            (EffectClass::KeyedWrite, Given::InProgress | Given::Ambiguous, _, false) => STOP,

            (EffectClass::UnkeyedWrite, Given::NotSettling, false, _) => COMPLETE,
            (EffectClass::UnkeyedWrite, Given::NotSettling, true, _) => STOP,
            (EffectClass::UnkeyedWrite, Given::NotSent | Given::Refused, false, _) => RETRY,
            (EffectClass::UnkeyedWrite, Given::NotSent | Given::Refused, true, _) => STOP,
            (EffectClass::UnkeyedWrite, Given::InProgress | Given::Ambiguous, _, _) => STOP,
        }
    }

    /// With a probe a write is asked for by its key wherever an answer leaves a doubt; only what
    /// says nothing new, or is itself a way to ask, is sent again first.
    fn with_probe(class: EffectClass, given: Given, ambiguous: bool, remembered: bool) -> Next {
        let without = without_probe(class, given, ambiguous, remembered);
        if class == EffectClass::Read {
            return without;
        }
        match (given, without) {
            (Given::Presumed | Given::Ambiguous, _) | (_, Next::Stop) => Next::Probe,
            (Given::NotSettling, Next::Retry { .. }) => Next::Probe,
            (_, without) => without,
        }
    }

    #[test]
    fn every_class_and_verdict_has_the_move_that_the_table_says() {
        for class in CLASSES {
            for given in ALL {
                for ambiguous_before in [false, true] {
                    for key_remembered in [false, true] {
                        for (can_probe, expected) in [
                            (false, without_probe(class, given, ambiguous_before, key_remembered)),
                            (true, with_probe(class, given, ambiguous_before, key_remembered)),
                        ] {
                            let standing =
                                Standing { class, ambiguous_before, key_remembered, can_probe };
                            assert_eq!(
                                next(&verdict(given), standing),
                                expected,
                                "{given:?}, {standing:?}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn an_unkeyed_write_goes_on_only_where_it_is_known_that_nothing_happened() {
        for given in ALL {
            for ambiguous_before in [false, true] {
                let verdict = verdict(given);
                let standing = Standing {
                    class: EffectClass::UnkeyedWrite,
                    ambiguous_before,
                    key_remembered: true,
                    can_probe: false,
                };
                let goes_on = match next(&verdict, standing) {
                    Next::Retry { .. } => true,
                    Next::Complete | Next::Stop | Next::Probe => false,
                };
                let nothing_happened = verdict.happened() == Happened::No && !ambiguous_before;
                assert_eq!(goes_on, nothing_happened, "{given:?}, before: {ambiguous_before}");
            }
        }
    }

    #[test]
    fn what_a_request_says_of_the_world_follows_from_its_verdict() {
        for (given, happened) in [
            (Given::Settling, Happened::Yes),
            (Given::NotSettling, Happened::Yes),
            (Given::Presumed, Happened::Yes),
            (Given::NotSent, Happened::No),
            (Given::Refused, Happened::No),
            (Given::InProgress, Happened::Maybe),
            (Given::Ambiguous, Happened::Maybe),
        ] {
            assert_eq!(verdict(given).happened(), happened, "{given:?}");
            let plain = matches!(given, Given::Settling | Given::NotSettling);
            assert_eq!(verdict(given).failure().is_none(), plain, "{given:?}");
        }
    }

    #[test]
    fn outcomes_of_earlier_versions_can_be_read() {
        let old = r#"{"is_error":true,"content":null,"error":{"kind":"tool_error","phase":"finish",
            "message":"the tool answered with status 400"}}"#;
        let outcome: Outcome = serde_json::from_str(old).unwrap();
        assert!(outcome.is_error && outcome.warnings.is_empty());
        let again = serde_json::to_string(&outcome).unwrap();
        assert!(again.contains(r#""phase":"finish""#), "{again}");
    }

    /// An answer of `null` comes back as no content, which is the same in a reply.
    #[test]
    fn content_is_stored_and_read_again_byte_for_byte() {
        for content in [r#"{"b": 1,  "a": [1.0, 1e400, "\u0000"]}"#, "12345678901234567890"] {
            let raw = RawValue::from_string(content.to_owned()).unwrap();
            let outcome = Outcome { content: Some(raw), ..Outcome::default() };
            let stored = serde_json::to_vec(&outcome).unwrap();
            let read: Outcome = serde_json::from_slice(&stored).unwrap();
            assert_eq!(read.content.map(|raw| raw.get().to_owned()).as_deref(), Some(content));
        }
    }
}
