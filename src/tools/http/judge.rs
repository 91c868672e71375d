//! What a response says of the world: the table of statuses, and the bodies that they need.

use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use reqwest::header::{self, HeaderMap};

use super::failure;
use crate::call::reply::{CallError, ErrorKind, Phase, Warning};
use crate::outcome::{EffectClass, Failure, Outcome, Verdict};
use crate::tools::answer::{self, Body, Content};

/// No downstream is left alone for longer than this by one answer of its: a date in another century
/// must not decide how long a call waits.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60 * 60);

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
}

impl Statuses {
    fn settles_resend(&self, status: u16) -> bool {
        (200..300).contains(&status) || self.replayed.contains(&status)
    }
}

/// What the body of a response is needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
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

/// Judges a response by its head; answers what to read the body for where the head does not decide.
///
/// A verdict by the head leaves the body unread: what these statuses mean does not depend on it.
pub(super) fn head(
    statuses: &Statuses,
    effect: EffectClass,
    status: u16,
    headers: &HeaderMap,
) -> Result<Reading, Verdict> {
    let told = |message: String| Failure {
        retry_after: retry_after(headers, Timestamp::now()),
        ..failure(Phase::Finish, message)
    };
    if statuses.not_run.contains(&status) {
        return Err(Verdict::Refused(told(format!(
            "the tool refused before any work, with status {status}"
        ))));
    }
    if statuses.in_progress.contains(&status) {
        return Err(Verdict::InProgress(told(format!(
            "the tool is still busy with an earlier request under this key: status {status}"
        ))));
    }
    if statuses.duplicate.contains(&status) {
        let content = Content { content: None, warning: Some(Warning::ResultUnavailable) };
        return Err(completed(content, None, statuses.settles_resend(status)));
    }
    match status {
        204 => Err(completed(Content { content: None, warning: None }, None, true)),
        200..=299 if encoded(headers) => Err(Verdict::Ambiguous(failure(
            Phase::Finish,
            format!("the tool answered with status {status} and a content encoding"),
        ))),
        200..=299 if event_stream(headers) => Err(Verdict::Ambiguous(failure(
            Phase::Finish,
            format!("the tool answered with status {status} and an event stream"),
        ))),
        200..=299 => Ok(Reading::Success),
        302 | 303 => match effect {
            EffectClass::Read => Ok(Reading::Error),
            EffectClass::KeyedWrite | EffectClass::UnkeyedWrite => {
                Err(Verdict::Ambiguous(told(unclear(status))))
            }
        },
        _ if answers_for_good(status) => {
            Ok(if encoded(headers) { Reading::UnreadableError } else { Reading::Error })
        }
        _ => Err(Verdict::Ambiguous(told(unclear(status)))),
    }
}

fn unclear(status: u16) -> String {
    format!("the tool answered with status {status}, which does not say what happened")
}

/// Judges a response that arrived whole.
pub(super) fn whole(statuses: &Statuses, status: u16, reading: Reading, body: Body) -> Verdict {
    let settles_resend = statuses.settles_resend(status);
    match reading {
        Reading::Success => match answer::success(body) {
            Ok(content) => completed(content, None, settles_resend),
            Err(found) => Verdict::Ambiguous(failure(
                Phase::Finish,
                format!("the tool answered with status {status} and {found}"),
            )),
        },
        Reading::Error => completed(answer::error(body), Some(error(status)), settles_resend),
        Reading::UnreadableError => {
            let content = Content { content: None, warning: None };
            completed(content, Some(error(status)), settles_resend)
        }
    }
}

fn error(status: u16) -> CallError {
    let message = format!("the tool answered with status {status}");
    CallError::new(ErrorKind::ToolError, Some(Phase::Finish), message)
}

fn completed(content: Content, error: Option<CallError>, settles_resend: bool) -> Verdict {
    let outcome = Outcome {
        is_error: error.is_some(),
        content: content.content,
        warnings: content.warning.into_iter().collect(),
        error,
    };
    Verdict::Completed { outcome, settles_resend }
}

/// Whether the body is not what it will be read as: no encoding was asked for.
fn encoded(headers: &HeaderMap) -> bool {
    let plain = |value: &[u8]| value.is_empty() || value.eq_ignore_ascii_case(b"identity");
    headers.get_all(header::CONTENT_ENCODING).iter().any(|value| !plain(value.as_bytes()))
}

/// An event stream may stay open for ever and is no JSON, so there is nothing to wait for.
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
