//! Why a text is refused.

use std::fmt;

use thiserror::Error;

/// Why a JSON text is refused, and where.
///
/// `at` is a byte offset into the text that was given. No message holds anything of the text
/// itself: neither values nor member names, which may be values of somebody's map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Something else was expected here.
    #[error("expected {expected} at byte {at}")]
    Syntax {
        /// Where.
        at: usize,
        /// What could have stood there.
        expected: &'static str,
    },
    /// The text ends in the middle of a value, or holds none.
    #[error("the text ends too early, at byte {at}: it is empty or was cut")]
    Cut {
        /// The text's length.
        at: usize,
    },
    /// Something follows the value.
    #[error("something follows the value, at byte {at}")]
    Trailing {
        /// Where it begins.
        at: usize,
    },
    /// A bare control character in a string.
    #[error("bare control character in a string at byte {at}: it must be escaped")]
    ControlCharacter {
        /// Where.
        at: usize,
    },
    /// A backslash that begins no escape of JSON.
    #[error("escape that JSON does not have at byte {at}")]
    BadEscape {
        /// Where the backslash is.
        at: usize,
    },
    /// `NaN`, `Infinity` or `-Infinity`, which some writers print and JSON does not have.
    #[error("not a number at byte {at}: JSON has neither NaN nor Infinity")]
    NotANumber {
        /// Where.
        at: usize,
    },
    /// An object names a member twice, in the same or in another spelling.
    #[error("member name given twice in one object, again at byte {at}")]
    DuplicateName {
        /// Where the name stands again.
        at: usize,
    },
    /// Half of a surrogate pair: no text that can be written as UTF-8.
    #[error("lone surrogate escape at byte {at}: no UTF-8 text can hold it")]
    LoneSurrogate {
        /// Where the escape begins.
        at: usize,
    },
    /// A number that a double can only hold as infinity.
    #[error("number too large for a double at byte {at}")]
    Overflow {
        /// Where the number begins.
        at: usize,
    },
    /// An integer of more digits than Python reads.
    #[error("integer of more than {} digits at byte {at}", super::INTEGER_DIGITS_MAX)]
    HugeInteger {
        /// Where the number begins.
        at: usize,
    },
    /// Arrays and objects stand in one another too deeply.
    #[error("nested deeper than the limit of {} levels at byte {at}", super::LEVELS_MAX)]
    TooDeep {
        /// Where the first level too many opens.
        at: usize,
    },
    /// A member name that a JSON library gives a meaning of its own.
    #[error("member name at byte {at} begins with a prefix that is private to a JSON library")]
    PrivateName {
        /// Where the name stands.
        at: usize,
    },
    /// A whole value, and no object.
    #[error("{found}, where an object is needed")]
    NotAnObject {
        /// What it is.
        found: Kind,
    },
}

impl Refusal {
    /// Whether the text is broken JSON, rather than well-formed JSON that we cannot carry.
    ///
    /// Exact: a text that is both is called broken, wherever the break is.
    pub fn is_syntax(&self) -> bool {
        match self {
            Self::Syntax { .. }
            | Self::Cut { .. }
            | Self::Trailing { .. }
            | Self::ControlCharacter { .. }
            | Self::BadEscape { .. }
            | Self::NotANumber { .. } => true,
            Self::DuplicateName { .. }
            | Self::LoneSurrogate { .. }
            | Self::Overflow { .. }
            | Self::HugeInteger { .. }
            | Self::TooDeep { .. }
            | Self::PrivateName { .. }
            | Self::NotAnObject { .. } => false,
        }
    }
}

/// The kinds of JSON values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `{…}`
    Object,
    /// `[…]`
    Array,
    /// `"…"`
    Text,
    /// `true` or `false`
    Bool,
    /// `null`
    Null,
    /// What is left.
    Number,
}

impl Kind {
    /// The kind of a value by its text, which is known to be valid and without white space around.
    pub(in crate::call) fn of(valid: &str) -> Self {
        match valid.bytes().next() {
            Some(b'{') => Self::Object,
            Some(b'[') => Self::Array,
            Some(b'"') => Self::Text,
            Some(b't' | b'f') => Self::Bool,
            Some(b'n') => Self::Null,
            Some(_) | None => Self::Number,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Object => "an object",
            Self::Array => "an array",
            Self::Text => "text",
            Self::Bool => "true or false",
            Self::Null => "null",
            Self::Number => "a number",
        })
    }
}
