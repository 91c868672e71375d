//! From a message's members to a job, each field read on its own.

use std::borrow::Cow;

use bytes::Bytes;
use jiff::Timestamp;

use super::error::{DecodeError, shown};
use super::{Job, Limits};
use crate::call::canonical::{self, Envelope, Field, Kind};
use crate::call::key::{
    CallId, ConversationId, Digest, IdError, IdempotencyKey, Ordinal, ResponseId, ToolName,
    TurnIndex,
};

const CONVERSATION_ID: &str = "conversation_id";
const TURN_INDEX: &str = "turn_index";
const ORDINAL: &str = "ordinal";
const CALL_ID: &str = "call_id";
const RESPONSE_ID: &str = "response_id";
const NAME: &str = "name";
const ARGS: &str = "args";
const EXPIRES_AT: &str = "expires_at";
const META: &str = "meta";

/// All fields of a job.
const FIELDS: [&str; 9] =
    [CONVERSATION_ID, TURN_INDEX, ORDINAL, CALL_ID, RESPONSE_ID, NAME, ARGS, EXPIRES_AT, META];

/// A message taken apart.
pub(super) struct Message<'a> {
    text: &'a str,
    envelope: Envelope<'a>,
    limits: &'a Limits,
}

impl<'a> Message<'a> {
    pub(super) fn new(text: &'a str, limits: &'a Limits) -> Self {
        Self { text, envelope: canonical::envelope(text), limits }
    }

    /// The job that this message is; `body` is what its text came from.
    pub(super) fn job(&self, body: &Bytes) -> Result<Job, DecodeError> {
        self.whole()?;
        self.known()?;
        let conversation_id = self.conversation_id()?;
        let turn_index = self.turn_index()?;
        let name = self.name()?;
        let ordinal = self.ordinal()?;
        let args = self.args()?;
        let canonical = &self.envelope.canonical[args.written.clone()];
        let digest = Digest::of(&conversation_id, turn_index, &name, ordinal, canonical);
        Ok(Job {
            conversation_id,
            turn_index,
            ordinal,
            name,
            call_id: self.call_id()?,
            response_id: self.id(RESPONSE_ID, ResponseId::parse)?,
            args: body.slice(args.value.clone()),
            meta: self.meta()?.map(|field| body.slice(field.value.clone())),
            expires_at: self.expires_at()?,
            digest,
        })
    }

    /// The key, also where a field that is no part of it is wrong.
    pub(super) fn key(&self) -> Result<IdempotencyKey, DecodeError> {
        self.whole()?;
        let canonical = &self.envelope.canonical[self.args()?.written.clone()];
        let (conversation, turn) = (self.conversation_id()?, self.turn_index()?);
        let (name, ordinal) = (self.name()?, self.ordinal()?);
        Ok(Digest::of(&conversation, turn, &name, ordinal, canonical).key())
    }

    pub(super) fn name(&self) -> Result<ToolName, DecodeError> {
        let text = self.text_of(NAME, self.required(NAME)?)?;
        ToolName::parse(&text, self.limits.id_bytes_max)
            .map_err(|why| DecodeError::Id { field: NAME, why })
    }

    pub(super) fn call_id(&self) -> Result<Option<CallId>, DecodeError> {
        self.id(CALL_ID, CallId::parse)
    }

    /// Whether the message is JSON to its end.
    fn whole(&self) -> Result<(), DecodeError> {
        self.envelope.broken.map_or(Ok(()), |refusal| Err(DecodeError::Json(refusal)))
    }

    /// Whether all fields are a job's.
    fn known(&self) -> Result<(), DecodeError> {
        match self.envelope.fields.iter().find(|field| !FIELDS.contains(&&*field.name)) {
            Some(field) => Err(DecodeError::UnknownField { name: shown(&field.name) }),
            None => Ok(()),
        }
    }

    fn conversation_id(&self) -> Result<ConversationId, DecodeError> {
        let text = self.text_of(CONVERSATION_ID, self.required(CONVERSATION_ID)?)?;
        ConversationId::parse(&text, self.limits.conversation_id_bytes_max)
            .map_err(|why| DecodeError::Id { field: CONVERSATION_ID, why })
    }

    fn turn_index(&self) -> Result<TurnIndex, DecodeError> {
        let digits = self.number_of(TURN_INDEX, self.required(TURN_INDEX)?)?;
        TurnIndex::parse(digits).map_err(|why| DecodeError::Index { field: TURN_INDEX, why })
    }

    fn ordinal(&self) -> Result<Ordinal, DecodeError> {
        let Some(field) = self.field(ORDINAL)? else {
            // An unknown field may be a mistyped ordinal. To take it for 0 would answer a wanted
            // second call with what the first one got.
            return self.known().map(|()| Ordinal::default());
        };
        let digits = self.number_of(ORDINAL, field)?;
        Ordinal::parse(digits).map_err(|why| DecodeError::Index { field: ORDINAL, why })
    }

    fn args(&self) -> Result<&Field<'a>, DecodeError> {
        let field = self.field(ARGS)?.ok_or(DecodeError::ArgsMissing)?;
        match self.kind(field) {
            Kind::Object => Ok(field),
            Kind::Null => Err(DecodeError::ArgsNull),
            Kind::Text => Err(DecodeError::ArgsText),
            found @ (Kind::Array | Kind::Bool | Kind::Number) => {
                Err(DecodeError::ArgsNotObject { found })
            }
        }
    }

    fn meta(&self) -> Result<Option<&Field<'a>>, DecodeError> {
        let Some(field) = self.optional(META)? else { return Ok(None) };
        match self.kind(field) {
            Kind::Object => Ok(Some(field)),
            found @ (Kind::Array | Kind::Text | Kind::Bool | Kind::Null | Kind::Number) => {
                Err(DecodeError::WrongType { field: META, expected: "an object", found })
            }
        }
    }

    fn expires_at(&self) -> Result<Option<Timestamp>, DecodeError> {
        let Some(field) = self.optional(EXPIRES_AT)? else { return Ok(None) };
        let text = self.text_of(EXPIRES_AT, field)?;
        let time = is_rfc_3339(text.as_bytes()).then(|| text.parse().ok()).flatten();
        time.map(Some).ok_or(DecodeError::Time { field: EXPIRES_AT })
    }

    fn id<T>(
        &self,
        name: &'static str,
        parse: fn(&str, usize) -> Result<T, IdError>,
    ) -> Result<Option<T>, DecodeError> {
        let Some(field) = self.optional(name)? else { return Ok(None) };
        parse(&self.text_of(name, field)?, self.limits.id_bytes_max)
            .map(Some)
            .map_err(|why| DecodeError::Id { field: name, why })
    }

    /// A field that every job has.
    fn required(&self, name: &'static str) -> Result<&Field<'a>, DecodeError> {
        self.field(name)?.ok_or(DecodeError::Missing { field: name })
    }

    /// A field that is no part of the key, for which null is as good as none.
    fn optional(&self, name: &'static str) -> Result<Option<&Field<'a>>, DecodeError> {
        Ok(self.field(name)?.filter(|field| self.kind(field) != Kind::Null))
    }

    /// A field, if it is there, is there once, and can be carried.
    fn field(&self, name: &'static str) -> Result<Option<&Field<'a>>, DecodeError> {
        let mut named = self.envelope.fields.iter().filter(|field| field.name == name);
        let Some(field) = named.next() else { return Ok(None) };
        if named.next().is_some() {
            return Err(DecodeError::DuplicateField { field: name });
        }
        match field.refusal {
            Some(why) => Err(DecodeError::Refused { field: name, why }),
            None => Ok(Some(field)),
        }
    }

    fn text_of(&self, name: &'static str, field: &Field<'a>) -> Result<Cow<'a, str>, DecodeError> {
        canonical::text(self.raw(field)).ok_or(DecodeError::WrongType {
            field: name,
            expected: "text",
            found: self.kind(field),
        })
    }

    fn number_of(&self, name: &'static str, field: &Field<'a>) -> Result<&'a str, DecodeError> {
        match self.kind(field) {
            Kind::Number => Ok(self.raw(field)),
            found @ (Kind::Object | Kind::Array | Kind::Text | Kind::Bool | Kind::Null) => {
                Err(DecodeError::WrongType { field: name, expected: "an integer", found })
            }
        }
    }

    fn raw(&self, field: &Field<'a>) -> &'a str {
        &self.text[field.value.clone()]
    }

    fn kind(&self, field: &Field<'a>) -> Kind {
        Kind::of(self.raw(field))
    }
}

/// Whether a text has the form of RFC 3339, section 5.6. Whether it is a time is for the parser to
/// say, which takes other forms too, but no point without digits.
fn is_rfc_3339(text: &[u8]) -> bool {
    const DATE_TIME: &[u8] = b"0000-00-00T00:00:00";
    let Some((date_time, rest)) = text.split_at_checked(DATE_TIME.len()) else { return false };
    let offset = rest.strip_prefix(b".").map_or(rest, |fraction| {
        let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
        &fraction[digits..]
    });
    let is_offset = match offset {
        b"Z" | b"z" => true,
        [b'+' | b'-', time @ ..] => has_form(time, b"00:00"),
        _ => false,
    };
    is_offset && has_form(date_time, DATE_TIME)
}

/// Whether digits stand where the form has `0`, and what else it has stands where it does.
fn has_form(text: &[u8], form: &[u8]) -> bool {
    text.len() == form.len()
        && text.iter().zip(form).all(|(byte, form)| match form {
            b'0' => byte.is_ascii_digit(),
            b'T' => matches!(byte, b'T' | b't'),
            _ => byte == form,
        })
}
