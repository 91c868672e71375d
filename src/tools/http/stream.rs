//! Event streams: read event by event until one of them decides, or the stream ends without it.
//!
//! The first terminal or error event decides, and the close of the stream is not waited for. Progress
//! is counted and never collected: of a stream of any length at most one event is kept, and of that
//! no more than a bound.
//!
//! What an event is, is what the HTML standard says (section 9.2, "Server-sent events"): in UTF-8,
//! with a mark for each byte that is none, and never without a line of data, so that a terminal event
//! that has none has not been seen.

use std::num::NonZeroUsize;
use std::time::Duration;

use reqwest::Response;
use reqwest::header::{self, HeaderMap};
use sse_core::{MessageEvent, PayloadTooLargeError, SseDecoder, SseEvent};
use tokio::time::{Instant, timeout_at};

use super::{HttpSettings, failure, judge};
use crate::call::reply::{Phase, Warning};
use crate::duration;
use crate::outcome::{Branch, Outcome, Presumed, Verdict};
use crate::tools::answer::{self, AnswerKind, Body};

/// Room on a line beside a result: for a field's name, or for an event's name, which the registry
/// keeps shorter than this.
const FIELD_BYTES_MAX: usize = 1024;

/// An event of many lines may have this many times the bytes of a result before it is skipped whole,
/// its name with it.
///
/// An ordinary result is one line of data, of which only the beginning is kept, so this bounds
/// nothing but what is written line by line; it is a bound because such an event is held until its
/// end.
const EVENT_RESULTS_MAX: usize = 4;

/// A small `result_max` must not make ordinary events too long to be seen.
const EVENT_BYTES_MIN: usize = 1024 * 1024;

const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// What a stream is taken for that closes cleanly without its terminal event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::tools) enum MissingTerminal {
    /// Completed, with a warning.
    Completed,
    /// Ambiguous.
    Unknown,
}

/// What the registry says of a tool's event streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::tools) struct StreamSettings {
    /// Whether no other success is expected of the tool.
    pub(in crate::tools) declared: bool,
    pub(in crate::tools) terminal_event: String,
    pub(in crate::tools) error_event: String,
    pub(in crate::tools) idle_timeout: Duration,
    pub(in crate::tools) missing_terminal: MissingTerminal,
}

impl Default for StreamSettings {
    fn default() -> Self {
        Self {
            declared: false,
            terminal_event: "done".to_owned(),
            error_event: "error".to_owned(),
            idle_timeout: IDLE_TIMEOUT,
            missing_terminal: MissingTerminal::Completed,
        }
    }
}

/// Reads the body of a success as an event stream, and judges it.
pub(super) async fn read(
    mut response: Response,
    settings: &HttpSettings,
    deadline: Instant,
) -> Verdict {
    let delimited = response.content_length().is_some() || chunked(response.headers());
    let mut events = Events::new(settings);
    let broken = loop {
        let idle = Instant::now() + settings.stream.idle_timeout;
        // Asked for as well as waited for: bytes that are always there would never let a wait end.
        if Instant::now() >= deadline {
            break timed_out(settings);
        }
        match timeout_at(deadline.min(idle), response.chunk()).await {
            Ok(Ok(Some(chunk))) => events.read(&chunk),
            Ok(Ok(None)) if delimited => return events.closed(),
            Ok(Ok(None)) => {
                let message = "nothing but the end of the connection ended the event stream";
                break (Branch::StreamBroken, message.to_owned());
            }
            Ok(Err(_)) => break (Branch::StreamBroken, "the event stream was cut off".to_owned()),
            Err(_) if deadline <= idle => break timed_out(settings),
            Err(_) => {
                let within = duration::show(settings.stream.idle_timeout);
                break (Branch::StreamIdle, format!("the event stream fell silent for {within}"));
            }
        }
        if let Some(decided) = events.decided.take() {
            return decided.judge(settings.answer);
        }
    };
    let (branch, message) = broken;
    let message = format!("{message}, after {}", counted(events.count));
    Verdict::Ambiguous(failure(branch, Phase::Stream, message))
}

fn timed_out(settings: &HttpSettings) -> (Branch, String) {
    let within = duration::show(settings.timeout);
    (Branch::TimedOut, format!("the event stream did not end within {within}"))
}

fn counted(events: u64) -> String {
    format!("{events} {}", if events == 1 { "event" } else { "events" })
}

/// Whether a body without a length has a last chunk; hyper reads the header in this way too.
fn chunked(headers: &HeaderMap) -> bool {
    let last = headers.get_all(header::TRANSFER_ENCODING).iter().next_back();
    let last = last.and_then(|value| value.as_bytes().rsplit(|byte| *byte == b',').next());
    last.is_some_and(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"chunked"))
}

/// The event that decides.
struct Decided {
    is_error: bool,
    data: Body,
}

impl Decided {
    /// A terminal event whose data is no answer of the tool's kind is as unclear as a body that is
    /// none: ambiguous. An error event is an error whatever its data is, and, like every error, says
    /// nothing of an earlier request under the same key.
    fn judge(self, kind: AnswerKind) -> Verdict {
        if self.is_error {
            let error = judge::tool_error("the tool's event stream ended with an error".to_owned());
            return judge::completed(answer::error(self.data), Some(error), false);
        }
        match answer::success(self.data, kind) {
            Ok(content) => judge::completed(content, None, true),
            Err(found) => Verdict::Ambiguous(failure(
                Branch::Unexpected,
                Phase::Finish,
                format!("the tool's event stream ended with data that is {found}"),
            )),
        }
    }
}

/// What has been read of a stream, and what has to be kept of it.
struct Events<'a> {
    settings: &'a HttpSettings,
    decoder: SseDecoder,
    /// What is left of a line's room.
    room: usize,
    count: u64,
    /// The data of the last whole event, while none has decided.
    last: Option<Body>,
    /// Whether an event was too long to be seen.
    skipped: bool,
    decided: Option<Decided>,
}

impl<'a> Events<'a> {
    fn new(settings: &'a HttpSettings) -> Self {
        let event_bytes_max =
            settings.result_bytes_max.saturating_mul(EVENT_RESULTS_MAX).max(EVENT_BYTES_MIN);
        let limit = NonZeroUsize::new(event_bytes_max).unwrap_or(NonZeroUsize::MIN);
        Self {
            settings,
            decoder: SseDecoder::with_limit(limit),
            room: line_bytes_max(settings),
            count: 0,
            last: None,
            skipped: false,
            decided: None,
        }
    }

    /// Reads all of it, whatever decides on the way: a contradiction that is here already is told.
    fn read(&mut self, chunk: &[u8]) {
        // A line that is too long goes on without its rest, so that its event keeps its name and the
        // decoder a bounded part of its data.
        for line in chunk.split_inclusive(|byte| is_line_end(*byte)) {
            let (text, end) = match line.split_last() {
                Some((last, text)) if is_line_end(*last) => (text, &[*last][..]),
                Some(_) | None => (line, &[][..]),
            };
            let kept = text.get(..self.room).unwrap_or(text);
            self.room -= kept.len();
            self.decode(kept, Self::event);
            if !end.is_empty() {
                self.room = line_bytes_max(self.settings);
                self.decode(end, Self::event);
            }
        }
    }

    fn decode(&mut self, mut bytes: &[u8], event: impl Fn(&mut Self, MessageEvent)) {
        while let Some(next) = self.decoder.next(&mut bytes) {
            match next {
                Ok(SseEvent::Message(message)) => event(self, message),
                // Asking for a new connection after a while is for clients that make one.
                Ok(SseEvent::Retry(_)) => {}
                Err(PayloadTooLargeError) => {
                    self.count += 1;
                    self.skipped = true;
                }
            }
        }
    }

    /// An event that arrived whole.
    fn event(&mut self, event: MessageEvent) {
        self.count += 1;
        let decides = self.is_error(&event) || self.is_terminal(&event);
        match (&self.decided, decides) {
            (None, true) => self.decide(&event),
            (None, false) => self.last = Some(self.body(&event.data)),
            (Some(first), true) => tracing::warn!(
                first_is_error = first.is_error,
                later_is_error = self.is_error(&event),
                "an event stream went on to end in another way; its first ending counts"
            ),
            (Some(_), false) => {}
        }
    }

    /// An event without its closing blank line, of a transfer that ended properly: it counts if its
    /// data is whole by itself. An error has no form that could show that, and is never left out.
    fn unfinished_event(&mut self, event: MessageEvent) {
        let body = self.body(&event.data);
        let whole = !body.is_cut() && answer::success(body, self.settings.answer).is_ok();
        if self.is_error(&event) || (self.is_terminal(&event) && whole) {
            self.decide(&event);
        }
    }

    fn is_error(&self, event: &MessageEvent) -> bool {
        event.event == self.settings.stream.error_event
    }

    fn is_terminal(&self, event: &MessageEvent) -> bool {
        event.event == self.settings.stream.terminal_event
    }

    fn decide(&mut self, event: &MessageEvent) {
        self.last = None;
        let is_error = self.is_error(event);
        self.decided = Some(Decided { is_error, data: self.body(&event.data) });
    }

    fn body(&self, data: &str) -> Body {
        let mut body = Body::new(self.settings.result_bytes_max);
        body.push(data.as_bytes());
        body
    }

    /// The stream closed cleanly and nothing has decided so far.
    fn closed(mut self) -> Verdict {
        self.decode(b"\n\n", Self::unfinished_event);
        if let Some(decided) = self.decided {
            return decided.judge(self.settings.answer);
        }
        if self.skipped {
            // It may have been an error, which must not be taken for a success.
            let message = "the event stream had an event that is too long to be read, and no other \
                           that ended it";
            return Verdict::Ambiguous(failure(Branch::Unexpected, Phase::Stream, message));
        }
        let message = format!(
            "the event stream closed after {} without its terminal event",
            counted(self.count)
        );
        let failure = failure(Branch::MissingTerminalEvent, Phase::Stream, message);
        match self.settings.stream.missing_terminal {
            MissingTerminal::Unknown => Verdict::Ambiguous(failure),
            MissingTerminal::Completed => {
                let content = self.last.map(answer::error);
                let (content, warning) =
                    content.map_or((None, None), |content| (content.content, content.warning));
                let warnings = [Some(Warning::MissingTerminalEvent), warning];
                let outcome = Outcome {
                    content,
                    warnings: warnings.into_iter().flatten().collect(),
                    ..Outcome::default()
                };
                Verdict::Presumed(Box::new(Presumed { outcome, failure }))
            }
        }
    }
}

fn is_line_end(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}

fn line_bytes_max(settings: &HttpSettings) -> usize {
    settings.result_bytes_max.saturating_add(FIELD_BYTES_MAX)
}
