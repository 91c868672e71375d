//! What a key is made of, and the key.
//!
//! Every identifier is parsed once, here, and cannot hold what would make the key ambiguous. Two
//! calls have one key exactly if conversation, turn, name, ordinal and canonical arguments are
//! equal; nothing else goes in: no clock, host, attempt, delivery count or provider's call id.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

mod id;
#[cfg(test)]
mod tests;

pub use id::{
    CallId, ConversationId, IdError, IndexError, Ordinal, ResponseId, ToolName, TurnIndex,
};

/// The version of the key's recipe, kept in every ledger row.
pub const KEY_VERSION: i16 = 1;

/// What stands between the parts of the material, and in none of them but the last.
const SEPARATOR: u8 = b'|';

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
        hash.update([SEPARATOR]);
        hash.update(decimal(turn.get(), &mut [0; 20]));
        hash.update([SEPARATOR]);
        hash.update(name.as_str());
        hash.update([SEPARATOR]);
        hash.update(decimal(ordinal.get(), &mut [0; 20]));
        hash.update([SEPARATOR]);
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
        f.write_str(hex(&self.0, &mut [0; 64]))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(hex(&self.0, &mut [0; 64]))
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
        f.write_str(hex(&self.0, &mut [0; 64]))
    }
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(hex(&self.0, &mut [0; 64]))
    }
}

impl Serialize for IdempotencyKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(hex(&self.0, &mut [0; 64]))
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

impl KeyFormat {
    /// As a registry writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hex32 => "hex32",
            Self::Hex64 => "hex64",
            Self::Uuid => "uuid",
        }
    }
}

/// Writes bytes, at most as many as a digest has, as lower-case hex.
fn hex<'a>(bytes: &[u8], buffer: &'a mut [u8; 64]) -> &'a str {
    for (pair, byte) in buffer.chunks_exact_mut(2).zip(bytes) {
        pair[0] = HEX[usize::from(byte >> 4)];
        pair[1] = HEX[usize::from(byte & 0xf)];
    }
    std::str::from_utf8(&buffer[..2 * bytes.len()]).expect("hex digits are ASCII")
}

const HEX: &[u8; 16] = b"0123456789abcdef";

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
