//! What a key is made of, and the key.
//!
//! Every identifier is parsed once, here, and cannot hold what would make the key ambiguous. Two
//! calls have one key exactly if conversation, turn, name, ordinal and canonical arguments are
//! equal; nothing else goes in: no clock, host, attempt, delivery count or provider's call id.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

/// The version of the key's recipe, kept in every ledger row.
pub const KEY_VERSION: i16 = 1;

/// What stands between the parts of the material.
const SEPARATOR: char = '|';

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
    if text.chars().any(char::is_control) {
        return Err(IdError::ControlCharacter);
    }
    Ok(())
}

/// For an identifier that is a part of the key's material.
fn check_part(text: &str, bytes_max: usize) -> Result<(), IdError> {
    check_id(text, bytes_max)?;
    if text.contains(SEPARATOR) { Err(IdError::Separator) } else { Ok(()) }
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

/// SHA-256 of what a call is.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of a call, its arguments given in canonical form.
    pub fn of(
        conversation: &ConversationId,
        turn: TurnIndex,
        name: &ToolName,
        ordinal: Ordinal,
        canonical: &str,
    ) -> Self {
        let mut hash = Sha256::new();
        hash.update(conversation.as_str());
        hash.update("|");
        hash.update(decimal(turn.get(), &mut [0; 20]));
        hash.update("|");
        hash.update(name.as_str());
        hash.update("|");
        hash.update(decimal(ordinal.get(), &mut [0; 20]));
        hash.update("|");
        hash.update(canonical);
        Self(hash.finalize().into())
    }

    /// The digest that a ledger row holds.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// All of it, as a ledger row holds it.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The call's key: the digest's first half.
    pub fn key(&self) -> IdempotencyKey {
        IdempotencyKey(self.first_half())
    }

    /// The key in the form that a downstream takes.
    pub fn render(&self, format: KeyFormat) -> String {
        match format {
            KeyFormat::Hex32 => self.key().to_string(),
            KeyFormat::Hex64 => self.to_string(),
            KeyFormat::Uuid => {
                // Version 8 (RFC 9562, section 5.8) is the one whose content is its maker's.
                let uuid = uuid::Builder::from_custom_bytes(self.first_half()).into_uuid();
                uuid.hyphenated().to_string()
            }
        }
    }

    fn first_half(&self) -> [u8; 16] {
        let mut half = [0; 16];
        half.copy_from_slice(&self.0[..16]);
        half
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

/// The name of a call, equal for every repeat of it; written as 32 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdempotencyKey([u8; 16]);

/// A text that is not 32 lower-case hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a key is 32 lower-case hex digits")]
pub struct KeyError;

impl IdempotencyKey {
    /// The key that a ledger row holds.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The key as a ledger row holds it.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl FromStr for IdempotencyKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let mut bytes = [0; 16];
        if text.len() != 2 * bytes.len() {
            return Err(KeyError);
        }
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            *byte = hex_value(pair[0])? << 4 | hex_value(pair[1])?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

impl Serialize for IdempotencyKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// How a downstream wants its key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyFormat {
    /// 32 lower-case hex digits: our own key.
    #[default]
    Hex32,
    /// 64 lower-case hex digits: the whole digest.
    Hex64,
    /// A UUID of version 8 that is made from our own key.
    Uuid,
}

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Writes up to 32 bytes as lower-case hex.
fn write_hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    for &byte in bytes {
        fmt::Write::write_char(f, char::from(HEX[usize::from(byte >> 4)]))?;
        fmt::Write::write_char(f, char::from(HEX[usize::from(byte & 0xf)]))?;
    }
    Ok(())
}

fn hex_value(digit: u8) -> Result<u8, KeyError> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        _ => Err(KeyError),
    }
}

/// A number's decimal digits, written from the end of `buffer`, which holds those of any `u64`.
fn decimal(mut number: u64, buffer: &mut [u8; 20]) -> &[u8] {
    let mut start = buffer.len();
    loop {
        start -= 1;
        // A remainder of ten is one digit.
        buffer[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &buffer[start..];
        }
    }
}
