//! How a connection to RabbitMQ is made, and every error of this folder.

use std::time::Duration;

use lapin::types::LongString;
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Connection, ConnectionProperties};

/// Why the broker did not do as it was asked.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// The URL cannot be used. The message never holds it: it has a password.
    #[error("the broker URL must read amqp://user:password@host:port/vhost or amqps://…")]
    Url,
    /// A plain connection to another host that was not asked for.
    #[error(
        "amqp:// would send everything in the clear to another host; use amqps://, or allow_plaintext"
    )]
    Plaintext,
    /// A wait has ended.
    #[error("the broker did not answer within {after:?}: {what}")]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// For how long.
        after: Duration,
    },
    /// The client library's error.
    #[error("{what} failed")]
    Amqp {
        /// What was being done.
        what: &'static str,
        /// Why.
        #[source]
        source: lapin::Error,
    },
    /// A queue could not be declared or found.
    #[error("queue {queue} cannot be used")]
    Queue {
        /// Its name.
        queue: String,
        /// Why; names the argument that differs.
        #[source]
        source: lapin::Error,
    },
    /// A name is longer than AMQP's 255 bytes.
    #[error("the name of a queue is longer than 255 bytes")]
    NameTooLong,
    /// The broker ended the consumer: its queue was deleted or moved.
    #[error("the broker cancelled the consumer")]
    Cancelled,
    /// A message that a benchmark published was returned or refused.
    #[error("the broker did not take a message that it should have taken")]
    Unconfirmed,
    /// The worker is stopping.
    #[error("the worker is stopping")]
    Stopping,
}

/// How to reach the broker.
#[derive(Clone)]
pub struct BrokerSettings {
    /// The URL; it has a password.
    pub url: secrecy::SecretString,
    /// For a connection to be made, or a request of the set-up to be answered.
    pub connect_timeout: Duration,
    /// Between two heartbeats; a peer that misses two is gone.
    pub heartbeat: Duration,
    /// Whether a plain connection to another host is meant.
    pub allow_plaintext: bool,
}

/// Makes one connection. `name` is what the broker's own tools show.
pub(super) async fn connect(
    settings: &BrokerSettings,
    name: &str,
) -> Result<Connection, BrokerError> {
    let uri = read_url(settings)?;
    let properties = ConnectionProperties::default().with_connection_name(LongString::from(name));
    within(settings.connect_timeout, "connecting", Connection::connect_uri(uri, properties)).await
}

/// Waits for the client library, but not for ever.
pub(super) async fn within<T>(
    after: Duration,
    what: &'static str,
    answer: impl Future<Output = lapin::Result<T>>,
) -> Result<T, BrokerError> {
    tokio::time::timeout(after, answer)
        .await
        .map_err(|_| BrokerError::Timeout { what, after })?
        .map_err(|source| BrokerError::Amqp { what, source })
}

fn read_url(settings: &BrokerSettings) -> Result<AMQPUri, BrokerError> {
    use secrecy::ExposeSecret as _;
    let mut uri: AMQPUri = settings.url.expose_secret().parse().map_err(|_| BrokerError::Url)?;
    let plain = uri.scheme == AMQPScheme::AMQP;
    if plain && !settings.allow_plaintext && !crate::is_loopback(&uri.authority.host) {
        return Err(BrokerError::Plaintext);
    }
    if uri.query.heartbeat.is_none() {
        // The protocol counts whole seconds, and 0 would switch heartbeats off.
        let seconds = settings.heartbeat.as_secs().clamp(1, u64::from(u16::MAX));
        uri.query.heartbeat = u16::try_from(seconds).ok();
    }
    Ok(uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str, allow_plaintext: bool) -> Result<AMQPUri, BrokerError> {
        read_url(&BrokerSettings {
            url: url.to_owned().into(),
            connect_timeout: Duration::from_secs(1),
            heartbeat: Duration::from_secs(20),
            allow_plaintext,
        })
    }

    #[test]
    fn off_loopback_a_connection_is_plain_only_when_asked_for() {
        assert!(read("amqp://u:p@127.0.0.1:5672/%2f", false).is_ok());
        assert!(read("amqps://u:p@mq.example/%2f", false).is_ok());
        assert!(matches!(read("amqp://u:p@mq.example/%2f", false), Err(BrokerError::Plaintext)));
        assert!(read("amqp://u:p@mq.example/%2f", true).is_ok());
    }

    #[test]
    fn heartbeats_are_the_urls_or_the_settings_and_never_off() {
        assert_eq!(read("amqp://127.0.0.1", false).expect("a good URL").query.heartbeat, Some(20));
        assert_eq!(
            read("amqp://127.0.0.1?heartbeat=7", false).expect("a good URL").query.heartbeat,
            Some(7)
        );
    }

    #[test]
    fn no_error_holds_the_password() {
        let error = read("http://u:sesame@h", false).expect_err("a bad URL");
        assert!(!format!("{error} {error:?}").contains("sesame"));
    }
}
