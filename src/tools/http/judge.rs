//! What a response says of the world: the table of statuses, and the bodies that they need.

use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use reqwest::header::{self, HeaderMap, HeaderValue};

use super::{HttpSettings, failure};
use crate::call::reply::{CallError, ErrorKind, Phase, Warning};
use crate::outcome::{Branch, EffectClass, Failure, Outcome, Presumed, Verdict};
use crate::tools::answer::{self, Body, Content};

/// No downstream is left alone for longer than this by one answer of its: a date in another century
/// must not decide how long a call waits.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60 * 60);

/// A replay header says `true`, or names the earlier request; what is longer is cut.
const REPLAY_BYTES_MAX: usize = 256;

/// The statuses of which the registry says what they mean.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::tools) struct Statuses {
    /// Refused before any work.
    pub(in crate::tools) not_run: Vec<u16>,
    /// Still busy with an earlier request under this key.
    pub(in crate::tools) in_progress: Vec<u16>,
    /// Has this key already, but not its answer.
    pub(in crate::tools) duplicate: Vec<u16>,
    /// Errors that the downstream keeps with the key, so that they answer a resend too.
    pub(in crate::tools) replayed: Vec<u16>,
    /// Has this key with other arguments.
    pub(in crate::tools) key_reused: Vec<u16>,
}

impl Statuses {
    fn settles_resend(&self, status: u16) -> bool {
        (200..300).contains(&status) || self.replayed.contains(&status)
    }
}

/// How the body of a response is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// To its end, and then for this.
    Whole(Purpose),
    /// Event by event.
    Stream,
}

/// What a whole body is needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The answer.
    Success,
    /// What the error has to say.
    Error,
    /// Only whether it arrives: the status says that it is an error, and in what encoding its text
    /// is was not agreed.
    UnreadableError,
}

/// Whether a status, whoever configured nothing about it, says that a call was answered for good
/// with an error.
pub(in crate::tools) fn answers_for_good(status: u16) -> bool {
    matches!(status, 301 | 307 | 308 | 400..=407 | 409..=499)
}

/// Judges a response by its head; answers how to read the body where the head does not decide.
///
/// A verdict by the head leaves the body unread: what these statuses mean does not depend on it.
pub(super) fn head(
    settings: &HttpSettings,
    status: u16,
    headers: &HeaderMap,
) -> Result<Reading, Verdict> {
    let statuses = &settings.statuses;
    let told = |branch: Branch, message: String| Failure {
        retry_after: retry_after(headers, Timestamp::now()),
        ..failure(branch, Phase::Finish, message)
    };
    if statuses.not_run.contains(&status) {
        let message = format!("the tool refused before any work, with status {status}");
        return Err(Verdict::Refused(told(Branch::Refused, message)));
    }
    if statuses.in_progress.contains(&status) {
        let message = format!(
            "the tool is still busy with an earlier request under this key: status {status}"
        );
        return Err(Verdict::InProgress(told(Branch::InProgress, message)));
    }
    if statuses.duplicate.contains(&status) {
        let message = format!("the tool has this key already, and not its answer: status {status}");
        return Err(Verdict::Presumed(Box::new(Presumed {
            outcome: Outcome { warnings: vec![Warning::ResultUnavailable], ..Outcome::default() },
            failure: told(Branch::Duplicate, message),
        })));
    }
    match status {
        204 => Err(completed(Content { content: None, warning: None }, None, true)),
        200..=299 if encoded(headers) => Err(Verdict::Ambiguous(failure(
            Branch::Unexpected,
            Phase::Finish,
            format!("the tool answered with status {status} and a content encoding"),
        ))),
        200..=299 if event_stream(headers) => Ok(Reading::Stream),
        200..=299 if settings.stream.declared => Err(Verdict::Ambiguous(failure(
            Branch::Unexpected,
            Phase::Finish,
            format!("the tool answered with status {status} and no event stream"),
        ))),
        200..=299 => Ok(Reading::Whole(Purpose::Success)),
        302 | 303 => match settings.effect {
            EffectClass::Read => Ok(Reading::Whole(Purpose::Error)),
            EffectClass::KeyedWrite | EffectClass::UnkeyedWrite => {
                Err(Verdict::Ambiguous(told(Branch::Redirected, unclear(status))))
            }
        },
        _ if answers_for_good(status) => {
            let encoded = encoded(headers);
            Ok(Reading::Whole(if encoded { Purpose::UnreadableError } else { Purpose::Error }))
        }
        _ => Err(Verdict::Ambiguous(told(Branch::UnclearStatus, unclear(status)))),
    }
}

fn unclear(status: u16) -> String {
    format!("the tool answered with status {status}, which does not say what happened")
}

/// Judges a response that arrived whole.
pub(super) fn whole(settings: &HttpSettings, status: u16, purpose: Purpose, body: Body) -> Verdict {
    let content = match purpose {
        Purpose::Success => {
            return match answer::success(body, settings.answer) {
                Ok(content) => completed(content, None, settings.statuses.settles_resend(status)),
                Err(found) => Verdict::Ambiguous(failure(
                    Branch::Unexpected,
                    Phase::Finish,
                    format!("the tool answered with status {status} and a body that is {found}"),
                )),
            };
        }
        Purpose::Error => answer::error(body),
        Purpose::UnreadableError => Content { content: None, warning: None },
    };
    if settings.statuses.key_reused.contains(&status) {
        return key_reused(status, content);
    }
    let message = format!("the tool answered with status {status}");
    completed(content, Some(tool_error(message)), settings.statuses.settles_resend(status))
}

/// Another call has this key at the downstream, or this call had other arguments before: no
/// redelivery mends that, so somebody should look.
fn key_reused(status: u16, content: Content) -> Verdict {
    tracing::error!(status, "the downstream has this call's key with other arguments");
    let message = format!("the tool has this key with other arguments: status {status}");
    Verdict::Completed {
        outcome: outcome(content, Some(tool_error(message))),
        settles_resend: false,
        branch: Some(Branch::KeyReused),
    }
}

pub(super) fn tool_error(message: String) -> CallError {
    CallError::new(ErrorKind::ToolError, Some(Phase::Finish), message)
}

pub(super) fn completed(
    content: Content,
    error: Option<CallError>,
    settles_resend: bool,
) -> Verdict {
    Verdict::Completed { outcome: outcome(content, error), settles_resend, branch: None }
}

fn outcome(content: Content, error: Option<CallError>) -> Outcome {
    Outcome {
        is_error: error.is_some(),
        content: content.content,
        warnings: content.warning.into_iter().collect(),
        error,
        replay_header: None,
    }
}

/// Keeps what the downstream said of a replay with the answer that it said it of.
pub(super) fn with_replay(verdict: Verdict, replay: Option<Box<str>>) -> Verdict {
    match verdict {
        Verdict::Completed { mut outcome, settles_resend, branch } => {
            outcome.replay_header = replay;
            Verdict::Completed { outcome, settles_resend, branch }
        }
        Verdict::Presumed(mut presumed) => {
            presumed.outcome.replay_header = replay;
            Verdict::Presumed(presumed)
        }
        Verdict::NotSent(_)
        | Verdict::Refused(_)
        | Verdict::InProgress(_)
        | Verdict::Ambiguous(_) => verdict,
    }
}

/// A header's value as it can be kept and shown: its beginning, with a mark for what is no text.
pub(super) fn shown(value: &HeaderValue) -> Box<str> {
    let mut text: String = String::from_utf8_lossy(value.as_bytes())
        .chars()
        .map(|char| if char.is_control() { char::REPLACEMENT_CHARACTER } else { char })
        .collect();
    text.truncate(text.floor_char_boundary(REPLAY_BYTES_MAX));
    text.into()
}

/// Whether the body is not what it will be read as: no encoding was asked for.
fn encoded(headers: &HeaderMap) -> bool {
    let plain = |value: &[u8]| value.is_empty() || value.eq_ignore_ascii_case(b"identity");
    headers.get_all(header::CONTENT_ENCODING).iter().any(|value| !plain(value.as_bytes()))
}

/// An event stream may stay open for ever, so it cannot be read as a body.
fn event_stream(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    let media_type = value.split(|byte| *byte == b';').next().unwrap_or_default();
    media_type.trim_ascii().eq_ignore_ascii_case(b"text/event-stream")
}

/// How long the downstream asks to be left alone (RFC 9110, section 10.2.3): seconds, or a date.
///
/// None wherever no wait can be read from it (junk, zero, a date in the past), so that backoff
/// decides: a wait of nothing would hammer a server that has just asked for rest.
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim_ascii();
    let wait = if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // Digits alone fail to fit only where they are more than any cap.
        value.parse().map_or(RETRY_AFTER_MAX, Duration::from_secs)
    } else {
        let date = DateTimeParser::new().parse_timestamp(value).ok()?;
        Duration::try_from(date.duration_since(now)).ok()?
    };
    (!wait.is_zero()).then(|| wait.min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::RETRY_AFTER, value.parse().unwrap());
        headers
    }

    #[test]
    fn retry_after_is_read_as_seconds_or_as_a_date() {
        let now: Timestamp = "2026-05-01T12:00:00Z".parse().unwrap();
        for (value, expected) in [
            ("2", Some(2)),
            (" 30 ", Some(30)),
            ("Fri, 01 May 2026 12:00:07 GMT", Some(7)),
            ("3600", Some(3600)),
            ("3601", Some(3600)),
            ("99999999999999999999999999", Some(3600)),
            ("Fri, 31 Dec 2049 23:59:59 GMT", Some(3600)),
            ("0", None),
            ("", None),
            ("soon", None),
            ("-5", None),
            ("+5", None),
            ("1.5", None),
            ("Fri, 01 May 2026 12:00:00 GMT", None),
            ("Fri, 01 May 2026 11:59:59 GMT", None),
        ] {
            let wait = retry_after(&headers(value), now);
            assert_eq!(wait, expected.map(Duration::from_secs), "{value:?}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }
}
