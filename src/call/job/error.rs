//! What can be wrong with a message.

use thiserror::Error;

use crate::call::canonical::{Kind, Refusal};
use crate::call::key::{IdError, IndexError};

/// Why a message is no job.
///
/// The text of each names the field and the mend, and holds no argument; what it repeats of the
/// message (a property, an unknown field's name) is escaped and cut short.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The body is larger than the limit; it was not looked at.
    #[error("the message has {bytes} bytes, more than {bytes_max}")]
    TooLarge {
        /// Its length.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// The body is said to be encoded.
    #[error("content_encoding is \"{found}\": send the body as it is, without one")]
    ContentEncoding {
        /// The encoding.
        found: String,
    },
    /// The body is said to be something else.
    #[error("content_type is \"{found}\": send application/json in UTF-8")]
    ContentType {
        /// The type.
        found: String,
    },
    /// The body begins with a byte-order mark.
    #[error("the message begins with a byte-order mark: send UTF-8 without one")]
    ByteOrderMark,
    /// The body is UTF-16 or UTF-32.
    #[error("the message is in UTF-16 or UTF-32: send UTF-8")]
    WideUnicode,
    /// The body is no UTF-8.
    #[error("the message is not in UTF-8, from byte {at} on")]
    NotUtf8 {
        /// The first byte that is wrong.
        at: usize,
    },
    /// The body is no JSON object.
    #[error("the message is no job: {0}")]
    Json(Refusal),
    /// A field that a job does not have; it could be a mistyped one that it has.
    #[error("field \"{name}\" is unknown")]
    UnknownField {
        /// Its name.
        name: String,
    },
    /// A field is given twice.
    #[error("{field} is given twice")]
    DuplicateField {
        /// Its name.
        field: &'static str,
    },
    /// A field is missing that every job has.
    #[error("{field} is missing")]
    Missing {
        /// Its name.
        field: &'static str,
    },
    /// A field holds JSON that cannot be carried.
    #[error("{field}: {why}")]
    Refused {
        /// Its name.
        field: &'static str,
        /// What is in it.
        why: Refusal,
    },
    /// A field holds a value of another type.
    #[error("{field} is {found}: send {expected}")]
    WrongType {
        /// Its name.
        field: &'static str,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: Kind,
    },
    /// A field holds text that is no identifier.
    #[error("{field} {why}")]
    Id {
        /// Its name.
        field: &'static str,
        /// What is wrong with it.
        why: IdError,
    },
    /// A field holds a number that is no index.
    #[error("{field} {why}")]
    Index {
        /// Its name.
        field: &'static str,
        /// What is wrong with it.
        why: IndexError,
    },
    /// A field holds text that is no time.
    #[error("{field} is no time: send RFC 3339, such as 2026-12-01T09:00:00Z")]
    Time {
        /// Its name.
        field: &'static str,
    },
    /// `args` is missing.
    #[error("args is missing: send {{}} for a tool without parameters")]
    ArgsMissing,
    /// `args` is null.
    #[error("args is null: send {{}} for a tool without parameters")]
    ArgsNull,
    /// `args` is text.
    #[error("args is text: send the object itself, not JSON inside a string")]
    ArgsText,
    /// `args` is an array, a number or a truth value.
    #[error("args is {found}: send an object, whose members are the tool's parameters")]
    ArgsNotObject {
        /// What it is.
        found: Kind,
    },
}

/// As much of foreign text as is shown.
const SHOWN_CHARS_MAX: usize = 64;

/// Foreign text as it may stand in a log: printable ASCII, cut short.
pub(super) fn shown(text: &str) -> String {
    let mut shown: String =
        text.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_default).collect();
    if text.chars().nth(SHOWN_CHARS_MAX).is_some() {
        shown.push_str("...");
    }
    shown
}
