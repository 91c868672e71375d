//! What a whole response body, or the data of a whole event, is worth as an answer.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::IgnoredAny;
use serde_json::value::{RawValue, to_raw_value};

use crate::call::canonical;
use crate::call::reply::Warning;

/// White space as JSON knows it (RFC 8259, section 2).
const JSON_SPACE: [char; 4] = [' ', '\t', '\n', '\r'];

/// What a tool's answers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerKind {
    /// One JSON text, which is the content.
    Json,
    /// UTF-8, which is the content as a JSON string.
    Text,
    /// Anything; the content is a JSON string that holds it as base64 (RFC 4648, section 4).
    Bytes,
}

/// A response body of which at most a bounded first part is kept.
pub(super) struct Body {
    kept: Vec<u8>,
    cut: bool,
    bytes_max: usize,
}

impl Body {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { kept: Vec::new(), cut: false, bytes_max }
    }

    /// Keeps what there is room for.
    pub(super) fn push(&mut self, chunk: &[u8]) {
        let room = self.bytes_max - self.kept.len();
        let kept = chunk.get(..room).unwrap_or(chunk);
        self.kept.extend_from_slice(kept);
        self.cut |= kept.len() < chunk.len();
    }

    /// The kept bytes as they are.
    pub(super) fn into_kept(self) -> Vec<u8> {
        self.kept
    }

    /// Whether less is kept than there was.
    pub(super) fn is_cut(&self) -> bool {
        self.cut
    }

    /// The kept bytes; of a body that was cut without the character that the cut went through.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        let mut kept = self.kept;
        if self.cut
            && let Err(error) = std::str::from_utf8(&kept)
            && error.error_len().is_none()
        {
            kept.truncate(error.valid_up_to());
        }
        kept
    }
}

/// What a reply can say of a body.
pub(super) struct Content {
    pub(super) content: Option<Box<RawValue>>,
    pub(super) warning: Option<Warning>,
}

/// Reads the body of a success as the tool's answers are read. JSON is kept byte for byte but for
/// the white space around it.
///
/// Of a body that was cut only the kept part can be judged: of JSON it has to be the beginning, and
/// is given as text.
///
/// # Errors
/// What the body is instead.
pub(super) fn success(body: Body, kind: AnswerKind) -> Result<Content, &'static str> {
    let cut = body.cut;
    if kind == AnswerKind::Bytes {
        return Ok(string(&STANDARD.encode(body.kept), truncated(cut)));
    }
    let text = String::from_utf8(body.into_bytes()).map_err(|_| "no UTF-8")?;
    if kind == AnswerKind::Text {
        return Ok(string(&text, truncated(cut)));
    }
    if text.trim_matches(JSON_SPACE).is_empty() {
        return Err("empty");
    }
    if cut {
        return match serde_json::from_str::<IgnoredAny>(&text) {
            Err(error) if !error.is_eof() => Err("not JSON"),
            Ok(_) | Err(_) => Ok(string(&text, truncated(cut))),
        };
    }
    json(&text).ok_or("not one JSON text")
}

fn truncated(cut: bool) -> Option<Warning> {
    cut.then_some(Warning::ResultTruncated)
}

/// Reads the body of an error: JSON where it parses, else text; nothing where there is no body.
pub(super) fn error(body: Body) -> Content {
    let cut = body.cut;
    let bytes = body.into_bytes();
    if bytes.is_empty() {
        return Content { content: None, warning: None };
    }
    let text = String::from_utf8_lossy(&bytes);
    if cut {
        return string(&text, truncated(cut));
    }
    let whole = std::str::from_utf8(&bytes).ok().and_then(json);
    whole.unwrap_or_else(|| string(&text, Some(Warning::ContentAsText)))
}

/// One JSON text as content; none where the text is no JSON.
///
/// JSON that other readers would refuse or misread (a lone surrogate's escape, a number beyond a
/// double, too deep a nesting) would make the whole reply unreadable, so it travels as text.
fn json(text: &str) -> Option<Content> {
    let text = text.trim_matches(JSON_SPACE);
    match canonical::check(text) {
        Ok(()) => Some(match RawValue::from_string(text.to_owned()) {
            Ok(raw) => Content { content: Some(raw), warning: None },
            Err(_) => string(text, Some(Warning::ContentAsText)),
        }),
        Err(refusal) if refusal.is_syntax() => None,
        Err(_) => Some(string(text, Some(Warning::ContentAsText))),
    }
}

fn string(text: &str, warning: Option<Warning>) -> Content {
    let raw = to_raw_value(text).expect("a string can always be written as JSON");
    Content { content: Some(raw), warning }
}
