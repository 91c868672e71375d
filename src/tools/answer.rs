//! What a whole response body is worth as an answer.

use serde::de::IgnoredAny;
use serde_json::value::{RawValue, to_raw_value};

use crate::call::canonical;
use crate::call::reply::Warning;

/// White space as JSON knows it (RFC 8259, section 2).
const JSON_SPACE: [char; 4] = [' ', '\t', '\n', '\r'];

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

    /// The kept bytes; of a body that was cut without the character that the cut went through.
    fn into_bytes(self) -> Vec<u8> {
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

/// Reads the body of a success: one JSON text, byte for byte but for the white space around it.
///
/// Of a body that was cut only the kept part can be judged: it has to be the beginning of a JSON
/// text, and is given as text.
///
/// # Errors
/// What is there instead of a JSON text.
pub(super) fn success(body: Body) -> Result<Content, &'static str> {
    let cut = body.cut;
    let text = String::from_utf8(body.into_bytes()).map_err(|_| "a body that is no UTF-8")?;
    if text.trim_matches(JSON_SPACE).is_empty() {
        return Err("an empty body");
    }
    if cut {
        return match serde_json::from_str::<IgnoredAny>(&text) {
            Err(error) if !error.is_eof() => Err("a body that is not JSON"),
            Ok(_) | Err(_) => Ok(as_text(&text, Warning::ResultTruncated)),
        };
    }
    json(&text).ok_or("a body that is not one JSON text")
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
        return as_text(&text, Warning::ResultTruncated);
    }
    let whole = std::str::from_utf8(&bytes).ok().and_then(json);
    whole.unwrap_or_else(|| as_text(&text, Warning::ContentAsText))
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
            Err(_) => as_text(text, Warning::ContentAsText),
        }),
        Err(refusal) if refusal.is_syntax() => None,
        Err(_) => Some(as_text(text, Warning::ContentAsText)),
    }
}

fn as_text(text: &str, warning: Warning) -> Content {
    let raw = to_raw_value(text).expect("a string can always be written as JSON");
    Content { content: Some(raw), warning: Some(warning) }
}
