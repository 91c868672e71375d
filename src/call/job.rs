//! The message: strict decoding, and its limits.
//!
//! A job is taken as it stands or refused; nothing is repaired, trimmed or normalised, because
//! each of these could give one call two keys or two calls one. A refusal names the field and
//! holds no argument. It carries what could still be read, so that it can be answered, and the key
//! wherever that can be derived, so that the ledger can be asked before `not_run` is said.

use bytes::Bytes;
use jiff::Timestamp;

use super::key::{
    CallId, ConversationId, Digest, IdempotencyKey, Ordinal, ResponseId, ToolName, TurnIndex,
};

mod error;
mod framing;
mod message;
#[cfg(test)]
mod tests;

pub use error::DecodeError;
use message::Message;

/// How large a message and its identifiers may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Of a whole message.
    pub message_bytes_max: usize,
    /// Of `conversation_id`.
    pub conversation_id_bytes_max: usize,
    /// Of every other identifier and name.
    pub id_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { message_bytes_max: 1024 * 1024, conversation_id_bytes_max: 1024, id_bytes_max: 256 }
    }
}

/// A request for one call, decoded.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Job {
    /// The conversation that the call belongs to.
    pub conversation_id: ConversationId,
    /// The turn of the conversation.
    pub turn_index: TurnIndex,
    /// Which of the turn's equal calls this is.
    pub ordinal: Ordinal,
    /// The tool to call.
    pub name: ToolName,
    /// The model provider's id of this call.
    pub call_id: Option<CallId>,
    /// The model provider's id of the response that made this call.
    pub response_id: Option<ResponseId>,
    /// The arguments' exact text, an object: a slice of the message.
    pub args: Bytes,
    /// The exact text of what the producer wants kept with the call, an object.
    pub meta: Option<Bytes>,
    /// When the call is no longer to be begun.
    pub expires_at: Option<Timestamp>,
    /// What the call is, hashed.
    pub digest: Digest,
}

impl Job {
    /// Decodes a message by its body and the properties that say how to read it.
    ///
    /// A missing or empty content type or encoding is accepted, as is the encoding `identity`.
    /// A null `call_id`, `response_id`, `expires_at` or `meta` is as good as none.
    ///
    /// # Errors
    ///
    /// [`BadJob`], with the first thing that is wrong and what could be read all the same.
    pub fn decode(
        body: &Bytes,
        content_type: Option<&str>,
        content_encoding: Option<&str>,
        limits: &Limits,
    ) -> Result<Self, BadJob> {
        let text = framing::text(body, content_type, content_encoding, limits)
            .map_err(BadJob::unreadable)?;
        let message = Message::new(text, limits);
        message.job(body).map_err(|error| BadJob {
            error,
            call_id: message.call_id().ok().flatten(),
            name: message.name().ok(),
            key: message.key().ok(),
        })
    }

    /// The call's key.
    pub fn key(&self) -> IdempotencyKey {
        self.digest.key()
    }
}

/// A message that is no job, with what could be read of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadJob {
    /// What is wrong with it.
    pub error: DecodeError,
    /// Its call id.
    pub call_id: Option<CallId>,
    /// Its tool.
    pub name: Option<ToolName>,
    /// Its key, where all that goes into the key is known and only another field is wrong.
    pub key: Option<IdempotencyKey>,
}

impl BadJob {
    fn unreadable(error: DecodeError) -> Self {
        Self { error, call_id: None, name: None, key: None }
    }
}
