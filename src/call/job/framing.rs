//! From a body and the properties that say how to read it to its text.

use super::Limits;
use super::error::{DecodeError, shown};

/// The text of a body; everything here is refused before a byte of it is parsed.
pub(super) fn text<'a>(
    body: &'a [u8],
    content_type: Option<&str>,
    content_encoding: Option<&str>,
    limits: &Limits,
) -> Result<&'a str, DecodeError> {
    if body.len() > limits.message_bytes_max {
        return Err(DecodeError::TooLarge {
            bytes: body.len(),
            bytes_max: limits.message_bytes_max,
        });
    }
    check_encoding(content_encoding.unwrap_or_default())?;
    check_type(content_type.unwrap_or_default())?;
    if body.starts_with(b"\xef\xbb\xbf") {
        return Err(DecodeError::ByteOrderMark);
    }
    if is_wide(body) {
        return Err(DecodeError::WideUnicode);
    }
    std::str::from_utf8(body).map_err(|error| DecodeError::NotUtf8 { at: error.valid_up_to() })
}

/// Some clients always set the property; the empty one and `identity` say that there is none.
fn check_encoding(encoding: &str) -> Result<(), DecodeError> {
    if encoding.is_empty() || encoding.eq_ignore_ascii_case("identity") {
        Ok(())
    } else {
        Err(DecodeError::ContentEncoding { found: shown(encoding) })
    }
}

/// JSON has no parameters; a `charset` is accepted that says what holds anyway, others are ignored.
fn check_type(content_type: &str) -> Result<(), DecodeError> {
    let mut parts = content_type.split(';').map(str::trim);
    let essence = parts.next().unwrap_or_default();
    let is_json = essence.eq_ignore_ascii_case("application/json");
    let is_missing = content_type.is_empty();
    if (is_json || is_missing) && parts.all(is_harmless) {
        Ok(())
    } else {
        Err(DecodeError::ContentType { found: shown(content_type) })
    }
}

fn is_harmless(parameter: &str) -> bool {
    let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
    let charset = value.trim().trim_matches('"');
    !name.trim().eq_ignore_ascii_case("charset")
        || ["utf-8", "utf8", "us-ascii"].iter().any(|known| charset.eq_ignore_ascii_case(known))
}

/// Whether this is UTF-16 or UTF-32: by its mark, or because ASCII alone opens a JSON text and
/// each of its characters is padded there.
fn is_wide(body: &[u8]) -> bool {
    body.starts_with(b"\xff\xfe")
        || body.starts_with(b"\xfe\xff")
        || body.iter().take(2).any(|&byte| byte == 0)
}
