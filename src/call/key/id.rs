//! Identifiers and indices, parsed once.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use thiserror::Error;

/// Why a text is no identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum IdError {
    /// It is empty.
    #[error("is empty")]
    Empty,
    /// It is longer than the limit.
    #[error("has {bytes} bytes, more than {bytes_max}")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// It holds the separator of the key's material, which could then be read two ways.
    #[error("holds a '|', which separates the parts of the key")]
    Separator,
    /// It holds a control character.
    #[error("holds a control character")]
    ControlCharacter,
}

/// Why a number is no index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("is no integer from 0 to 2^63-1 in plain digits")]
pub struct IndexError;

fn check_id(text: &str, bytes_max: usize) -> Result<(), IdError> {
    if text.is_empty() {
        return Err(IdError::Empty);
    }
    if text.len() > bytes_max {
        return Err(IdError::TooLong { bytes: text.len(), bytes_max });
    }
    if has_control(text) {
        return Err(IdError::ControlCharacter);
    }
    Ok(())
}

fn has_control(text: &str) -> bool {
    // Bytes are looked through faster than characters.
    if text.is_ascii() {
        text.bytes().any(|byte| byte.is_ascii_control())
    } else {
        text.chars().any(char::is_control)
    }
}

/// For an identifier that is a part of the key's material.
fn check_part(text: &str, bytes_max: usize) -> Result<(), IdError> {
    check_id(text, bytes_max)?;
    if text.as_bytes().contains(&super::SEPARATOR) { Err(IdError::Separator) } else { Ok(()) }
}

macro_rules! identifier {
    ($(#[$doc:meta])* $name:ident, $check:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Takes the text as it is; nothing is trimmed or normalised.
            ///
            /// # Errors
            ///
            /// [`IdError`] says what an identifier may not be.
            pub fn parse(text: &str, bytes_max: usize) -> Result<Self, IdError> {
                $check(text, bytes_max)?;
                Ok(Self(text.into()))
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

identifier! {
    /// The conversation that a call belongs to.
    ConversationId, check_part
}
identifier! {
    /// A tool's name.
    ToolName, check_part
}
identifier! {
    /// The id that a model provider gave the call: carried, never a part of the key.
    CallId, check_id
}
identifier! {
    /// The id that a model provider gave the response: carried, never a part of the key.
    ResponseId, check_id
}

macro_rules! index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        pub struct $name(u64);

        impl $name {
            /// An index from 0 to 2^63-1, so that it fits Postgres' `bigint`.
            ///
            /// # Errors
            ///
            /// A larger number.
            pub fn new(value: u64) -> Result<Self, IndexError> {
                if i64::try_from(value).is_ok() { Ok(Self(value)) } else { Err(IndexError) }
            }

            /// Reads plain digits: no sign, fraction, exponent or white space.
            ///
            /// # Errors
            ///
            /// Any other text, and a number that is too large.
            pub fn parse(digits: &str) -> Result<Self, IndexError> {
                if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                    return Err(IndexError);
                }
                Self::new(digits.parse().map_err(|_| IndexError)?)
            }

            /// The number.
            pub fn get(self) -> u64 {
                self.0
            }

            /// The number as Postgres keeps it.
            pub fn as_i64(self) -> i64 {
                self.0.cast_signed()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

index! {
    /// How many model responses were committed to the conversation before this one.
    TurnIndex
}
index! {
    /// Which occurrence of the same call in one turn this is, from 0.
    #[derive(Default)]
    Ordinal
}
