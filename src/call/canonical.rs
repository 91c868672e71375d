//! Canonical JSON: the text of the arguments that goes into the key.
//!
//! [`canonical`] prints, byte for byte, what Python prints for
//!
//! ```text
//! json.dumps(json.loads(args), sort_keys=True, separators=(",", ":"))
//! ```
//!
//! so that a producer derives the same key with its standard library. It is read from the text
//! itself by a grammar of our own, never by way of a library's value type: such a type loses
//! digits, keeps the last of two equal names, or gives some names a meaning of its own, and each
//! of these makes two documents one. What Python accepts only by changing or losing something is
//! refused; nothing is repaired, and nothing here ever panics on a text.
//!
//! One grammar serves the arguments, the message around them and the tools' answers.

use std::borrow::Cow;

mod cursor;
mod double;
mod envelope;
mod reader;
mod refusal;
mod spelling;
#[cfg(test)]
mod tests;

use reader::Reader;

pub(super) use envelope::{Envelope, Field, envelope};
pub use refusal::{Kind, Refusal};

/// How deeply arrays and objects may stand in one another; the outermost is level 1.
///
/// Below the 128 at which JSON readers of Rust stop, so that a tool written in Rust can read what
/// we send, also inside an envelope of its own.
pub const LEVELS_MAX: usize = 120;

/// The digits that an integer may have: what `CPython` reads and prints (`int_max_str_digits`).
pub const INTEGER_DIGITS_MAX: usize = 4300;

/// By a name that begins so, `serde_json` tells its own number and raw text types from objects.
const PRIVATE_PREFIX: &str = "$serde_json::private::";

/// The canonical form of an object, for the key alone: a tool gets the text as it came.
///
/// # Errors
///
/// What is no JSON, no object, or not to be carried without loss; see [`Refusal`].
pub fn canonical(args: &str) -> Result<String, Refusal> {
    let mut reader = Reader::writing(args);
    let found = Kind::of(reader.document()?);
    let canonical = reader.finish()?;
    match found {
        Kind::Object => Ok(canonical),
        Kind::Array | Kind::Text | Kind::Bool | Kind::Null | Kind::Number => {
            Err(Refusal::NotAnObject { found })
        }
    }
}

/// Validates any JSON value by the rules of [`canonical`], without writing its canonical form.
///
/// # Errors
///
/// [`Refusal::is_syntax`] tells broken JSON from JSON that we cannot carry.
pub fn check(text: &str) -> Result<(), Refusal> {
    let mut reader = Reader::checking(text);
    reader.document()?;
    reader.finish().map(|_| ())
}

/// The members of an object in the order in which they come: name, and the raw text of the value.
///
/// Each value is validated by the rules of [`canonical`]; its own outermost array or object is
/// level 1.
///
/// # Errors
///
/// What is no JSON, no object, or not to be carried without loss; see [`Refusal`].
pub fn members(text: &str) -> Result<Vec<(Cow<'_, str>, &str)>, Refusal> {
    let mut fields = Vec::new();
    Reader::checking(text).object(&mut fields)?;
    if let Some(refusal) = fields.iter().find_map(|field| field.refusal) {
        return Err(refusal);
    }
    let mut names: Vec<_> = fields.iter().map(|field| (&*field.name, field.at)).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(Refusal::DuplicateName { at: pair[1].1 });
    }
    Ok(fields.into_iter().map(|field| (field.name, &text[field.value])).collect())
}

/// The text that a string means, from its raw text with its quotes; none for another value.
///
/// `raw` must have been read by this module.
pub(super) fn text(raw: &str) -> Option<Cow<'_, str>> {
    raw.strip_prefix('"')?.strip_suffix('"').map(cursor::unescape)
}
