//! What is published, and what of a delivery goes with a job that we publish again.

use bytes::Bytes;
use jiff::Timestamp;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};

use super::connect::BrokerError;
use super::topology::short;

pub(super) const PUBLISH_ID: &str = "x-callonce-publish-id";
pub(super) const ROUND: &str = "x-callonce-round";
const GAVE_WAY: &str = "x-callonce-gave-way";
pub(super) const REASON: &str = "x-callonce-reason";
pub(super) const DETAIL: &str = "x-callonce-detail";
pub(super) const ANSWERED: &str = "x-callonce-answered";
/// What a quorum queue counts: how often the message was given back.
const DELIVERY_COUNT: &str = "x-delivery-count";
const TRACEPARENT: &str = "traceparent";

/// How much of a detail the dead queue keeps.
const DETAIL_BYTES_MAX: usize = 1024;
/// Persistent, in AMQP's own numbers.
const PERSISTENT: u8 = 2;

/// The properties of a delivery that mean something to us. No other header ever stops a job, and
/// none is published again: a copied `CC` multiplies jobs, a copied `x-death` loses them.
#[derive(Debug, Clone, Default)]
pub struct Origin {
    /// Of the body.
    pub content_type: Option<ShortString>,
    /// Of the body.
    pub content_encoding: Option<ShortString>,
    /// Where the reply goes.
    pub reply_to: Option<ShortString>,
    /// What ties the reply to its request.
    pub correlation_id: Option<ShortString>,
    /// The producer's.
    pub message_id: Option<ShortString>,
    /// The W3C trace context.
    pub traceparent: Option<String>,
    /// The job's trips through delay queues.
    pub trips: Trips,
    /// How often a quorum queue has given the message back; 0 where it does not say.
    pub returns: u64,
    /// Why it is in the dead queue, if it is.
    pub reason: Option<String>,
    /// Details of that.
    pub detail: Option<String>,
    /// What the caller was told before it went to the dead queue.
    pub answered: Option<String>,
    /// The headers that are not published again.
    foreign: Vec<(ShortString, AMQPValue)>,
}

/// How often a job has been through a delay queue, by why.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trips {
    /// To be tried again.
    pub round: u32,
    /// To make room for the calls of other tools.
    pub gave_way: u32,
}

impl Origin {
    pub(super) fn read(properties: &BasicProperties) -> Self {
        let headers = properties.headers().as_ref();
        Self {
            content_type: properties.content_type().clone(),
            content_encoding: properties.content_encoding().clone(),
            reply_to: properties.reply_to().clone().filter(|queue| !queue.as_str().is_empty()),
            correlation_id: properties.correlation_id().clone(),
            message_id: properties.message_id().clone(),
            traceparent: text_header(headers, TRACEPARENT),
            trips: Trips { round: count(headers, ROUND), gave_way: count(headers, GAVE_WAY) },
            returns: number_header(headers, DELIVERY_COUNT).unwrap_or(0),
            reason: text_header(headers, REASON),
            detail: text_header(headers, DETAIL),
            answered: text_header(headers, ANSWERED),
            foreign: headers.map(foreign).unwrap_or_default(),
        }
    }

    /// The headers that are not published again, as text.
    fn foreign_headers(&self) -> String {
        let foreign = self.foreign.iter();
        foreign
            .map(|(name, value)| format!("; header {:?}: {}", name.as_str(), as_text(value)))
            .collect()
    }
}

/// All headers but ours and what the broker writes about a message's ways, which is nobody's.
fn foreign(headers: &FieldTable) -> Vec<(ShortString, AMQPValue)> {
    let foreign = headers.inner().iter().filter(|(name, _)| {
        let name = name.as_str();
        let of_ways = ["x-callonce-", "x-death", "x-first-death-", "x-last-death-"];
        !of_ways.iter().any(|start| name.starts_with(start))
            && !matches!(name, TRACEPARENT | DELIVERY_COUNT)
    });
    foreign.map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn as_text(value: &AMQPValue) -> String {
    if let AMQPValue::LongString(text) = value {
        return format!("{:?}", text.to_string());
    }
    format!("{value:?}")
}

fn text_header(headers: Option<&FieldTable>, name: &str) -> Option<String> {
    let value = headers?.inner().get(name)?;
    if let AMQPValue::LongString(text) = value {
        return std::str::from_utf8(text.as_bytes()).ok().map(str::to_owned);
    }
    if let AMQPValue::ShortString(text) = value { Some(text.to_string()) } else { None }
}

fn count(headers: Option<&FieldTable>, name: &str) -> u32 {
    number_header(headers, name).and_then(|number| u32::try_from(number).ok()).unwrap_or(0)
}

fn number_header(headers: Option<&FieldTable>, name: &str) -> Option<u64> {
    match *headers?.inner().get(name)? {
        AMQPValue::ShortShortInt(number) => u64::try_from(number).ok(),
        AMQPValue::ShortShortUInt(number) => Some(number.into()),
        AMQPValue::ShortInt(number) => u64::try_from(number).ok(),
        AMQPValue::ShortUInt(number) => Some(number.into()),
        AMQPValue::LongInt(number) => u64::try_from(number).ok(),
        AMQPValue::LongUInt(number) => Some(number.into()),
        AMQPValue::LongLongInt(number) => u64::try_from(number).ok(),
        AMQPValue::Boolean(_)
        | AMQPValue::Float(_)
        | AMQPValue::Double(_)
        | AMQPValue::DecimalValue(_)
        | AMQPValue::ShortString(_)
        | AMQPValue::LongString(_)
        | AMQPValue::FieldArray(_)
        | AMQPValue::Timestamp(_)
        | AMQPValue::FieldTable(_)
        | AMQPValue::ByteArray(_)
        | AMQPValue::Void => None,
    }
}

/// A message to publish to one queue through the default exchange, persistent.
#[derive(Debug, Clone)]
pub struct Message {
    pub(super) queue: ShortString,
    pub(super) body: Bytes,
    pub(super) mandatory: bool,
    origin: Origin,
    headers: Vec<(&'static str, AMQPValue)>,
}

impl Message {
    /// A job's first publication.
    ///
    /// # Errors
    ///
    /// [`BrokerError::NameTooLong`] where a name does not fit AMQP.
    pub fn job(
        queue: &str,
        body: Bytes,
        reply_to: Option<&str>,
        correlation_id: Option<&str>,
    ) -> Result<Self, BrokerError> {
        let origin = Origin {
            content_type: Some("application/json".into()),
            reply_to: reply_to.map(short).transpose()?,
            correlation_id: correlation_id.map(short).transpose()?,
            ..Origin::default()
        };
        Ok(Self { queue: short(queue)?, body, mandatory: true, origin, headers: Vec::new() })
    }

    /// A reply to a job. `None`: the job names no queue to reply to.
    pub fn reply(to: &Origin, body: Bytes) -> Option<Self> {
        let queue = to.reply_to.clone()?;
        // The broker returns everything mandatory that goes to a direct reply-to.
        let mandatory = !queue.as_str().starts_with("amq.rabbitmq.reply-to");
        let origin = Origin {
            content_type: Some("application/json".into()),
            correlation_id: to.correlation_id.clone(),
            message_id: None,
            traceparent: to.traceparent.clone(),
            ..Origin::default()
        };
        Some(Self { queue, body, mandatory, origin, headers: Vec::new() })
    }

    /// A job on its way through a delay queue, to come back with `trips`.
    ///
    /// # Errors
    ///
    /// [`BrokerError::NameTooLong`] where a name does not fit AMQP.
    pub fn delayed(
        queue: &str,
        body: Bytes,
        origin: &Origin,
        trips: Trips,
    ) -> Result<Self, BrokerError> {
        let headers = vec![
            (ROUND, AMQPValue::LongUInt(trips.round)),
            (GAVE_WAY, AMQPValue::LongUInt(trips.gave_way)),
        ];
        Ok(Self { queue: short(queue)?, body, mandatory: true, origin: origin.clone(), headers })
    }

    /// A job that no redelivery will mend.
    ///
    /// # Errors
    ///
    /// [`BrokerError::NameTooLong`] where a name does not fit AMQP.
    pub fn dead(
        queue: &str,
        body: Bytes,
        origin: &Origin,
        reason: &str,
        detail: &str,
        answered: Option<&str>,
    ) -> Result<Self, BrokerError> {
        let detail = format!("{detail}{}", origin.foreign_headers());
        let detail = &detail[..detail.floor_char_boundary(DETAIL_BYTES_MAX)];
        let mut headers = vec![
            (ROUND, AMQPValue::LongUInt(origin.trips.round)),
            (REASON, AMQPValue::LongString(reason.into())),
            (DETAIL, AMQPValue::LongString(detail.into())),
        ];
        headers.extend(answered.map(|answered| (ANSWERED, AMQPValue::LongString(answered.into()))));
        Ok(Self { queue: short(queue)?, body, mandatory: true, origin: origin.clone(), headers })
    }

    /// The message's properties under a publish id of its own.
    pub(super) fn properties(&self, publish_id: &str) -> BasicProperties {
        let mut headers = FieldTable::default();
        headers.insert(PUBLISH_ID.into(), AMQPValue::LongString(publish_id.into()));
        if let Some(traceparent) = &self.origin.traceparent {
            headers.insert(TRACEPARENT.into(), AMQPValue::LongString(traceparent.as_str().into()));
        }
        for (name, value) in &self.headers {
            headers.insert((*name).into(), value.clone());
        }
        let published_at = u64::try_from(Timestamp::now().as_second()).unwrap_or_default();
        let mut properties = BasicProperties::default()
            .with_delivery_mode(PERSISTENT)
            .with_timestamp(published_at)
            .with_headers(headers);
        let origin = &self.origin;
        if let Some(content_type) = &origin.content_type {
            properties = properties.with_content_type(content_type.clone());
        }
        if let Some(content_encoding) = &origin.content_encoding {
            properties = properties.with_content_encoding(content_encoding.clone());
        }
        if let Some(reply_to) = &origin.reply_to {
            properties = properties.with_reply_to(reply_to.clone());
        }
        if let Some(correlation_id) = &origin.correlation_id {
            properties = properties.with_correlation_id(correlation_id.clone());
        }
        if let Some(message_id) = &origin.message_id {
            properties = properties.with_message_id(message_id.clone());
        }
        properties
    }
}

/// The publish id of a message that came back.
pub(super) fn publish_id(properties: &BasicProperties) -> Option<String> {
    text_header(properties.headers().as_ref(), PUBLISH_ID)
}
