//! How a connection to Postgres is made: the URL, TLS, time-outs and what each session sets.

use std::time::Duration;

use deadpool_postgres::{
    Hook, HookError, Manager, ManagerConfig, Pool, PoolError, RecyclingMethod, Runtime,
};
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;
use url::Url;

/// Why a database URL cannot be used. No message holds the URL: it has a password.
#[derive(Debug, thiserror::Error)]
pub enum UrlError {
    /// It is no URL of Postgres.
    #[error("the database URL must begin with postgres:// or postgresql://")]
    Scheme,
    /// The driver refused it.
    #[error("the database URL cannot be read")]
    Syntax(#[source] tokio_postgres::Error),
    /// `sslmode` is not one that is known.
    #[error("sslmode is {0:?}; expected disable, require, verify-ca or verify-full")]
    SslMode(String),
    /// A mode that may silently go on without TLS.
    #[error(
        "sslmode {0} may send everything in the clear to another host; say verify-full, or disable \
         if that is meant"
    )]
    MayBePlain(String),
    /// The certificates of `sslrootcert` cannot be read.
    #[error("the certificates of sslrootcert cannot be read")]
    RootCertificates(#[source] rustls::pki_types::pem::Error),
    /// The machine's own certificates cannot be read.
    #[error("no certificate of this machine's store could be read; name a file with sslrootcert")]
    NoRootCertificates,
    /// A certificate is no trust anchor.
    #[error("a root certificate cannot be used")]
    Tls(#[source] rustls::Error),
    /// The pool refused its settings.
    #[error("the connection pool could not be built")]
    Pool(#[source] deadpool_postgres::BuildError),
}

/// How long to wait for the database, and how many connections to hold.
#[derive(Debug, Clone, Copy)]
pub struct PoolSettings {
    /// Connections held at most.
    pub size: usize,
    /// For one connection to be made.
    pub connect_timeout: Duration,
    /// For a connection of the pool to come free.
    pub checkout_timeout: Duration,
}

/// What every session of ours sets, whatever its role says.
///
/// The server must never cancel a statement: a cancelled wait for a standby succeeds with a warning.
/// A wait for a lock is no such wait. Who holds a row for longer than any statement of ours takes, such
/// as a person in `psql`, keeps its own call waiting and no other that shared its statement.
/// Every statement on the way of a call finds its rows by key; a plan that was made while the table
/// was small must not read all of it once it has grown.
const SESSION: &str = "
SET synchronous_commit = on;
SET statement_timeout = 0;
SET lock_timeout = '2s';
SET client_min_messages = warning;
SET plan_cache_mode = force_generic_plan;
SET enable_seqscan = off;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SET jit = off";

/// A half-open connection is noticed after about this long without an answer.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;

/// Builds a pool by the rules that every connection of ours follows; connects to nothing yet.
///
/// # Errors
///
/// [`UrlError`] where the URL cannot be used.
pub fn pool(database_url: &str, settings: PoolSettings) -> Result<Pool, UrlError> {
    let (mut config, tls) = read_url(database_url)?;
    config
        .connect_timeout(settings.connect_timeout)
        .keepalives(true)
        .keepalives_idle(KEEPALIVE_IDLE)
        .keepalives_interval(KEEPALIVE_INTERVAL)
        .keepalives_retries(KEEPALIVE_RETRIES)
        .tcp_user_timeout(KEEPALIVE_IDLE + KEEPALIVE_INTERVAL * KEEPALIVE_RETRIES);
    if config.get_application_name().is_none() {
        config.application_name("callonce");
    }
    let manager = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    Pool::builder(Manager::from_config(config, MakeRustlsConnect::new(tls), manager))
        .max_size(settings.size)
        .runtime(Runtime::Tokio1)
        .create_timeout(Some(settings.connect_timeout))
        .wait_timeout(Some(settings.checkout_timeout))
        .post_create(Hook::async_fn(|client, _| {
            Box::pin(async move { client.batch_execute(SESSION).await.map_err(HookError::Backend) })
        }))
        .build()
        .map_err(UrlError::Pool)
}

/// Whether an error of the pool may be over a little later.
pub(super) fn describe(error: &PoolError) -> &'static str {
    match error {
        PoolError::Timeout(deadpool_postgres::TimeoutType::Wait) => {
            "no connection came free in time"
        }
        PoolError::Timeout(deadpool_postgres::TimeoutType::Create) => {
            "the connection was not made in time"
        }
        PoolError::Timeout(deadpool_postgres::TimeoutType::Recycle) => {
            "the connection did not answer in time"
        }
        PoolError::Backend(_) => "the connection was refused",
        PoolError::Closed | PoolError::NoRuntimeSpecified | PoolError::PostCreateHook(_) => {
            "the connection could not be set up"
        }
    }
}

/// Reads the URL: `sslmode` and `sslrootcert` are ours, everything else is the driver's.
fn read_url(database_url: &str) -> Result<(tokio_postgres::Config, ClientConfig), UrlError> {
    let mut url = Url::parse(database_url).map_err(|_| UrlError::Scheme)?;
    if !matches!(url.scheme(), "postgres" | "postgresql") {
        return Err(UrlError::Scheme);
    }
    let (mut mode, mut roots, mut rest) = (None, None, Vec::new());
    for (name, value) in url.query_pairs() {
        match name.as_ref() {
            "sslmode" => mode = Some(value.into_owned()),
            "sslrootcert" => roots = Some(value.into_owned()),
            _ => rest.push((name.into_owned(), value.into_owned())),
        }
    }
    url.set_query(None);
    if !rest.is_empty() {
        // Not form encoding: the driver reads a plus sign as itself.
        let query: Vec<String> = rest
            .iter()
            .map(|(name, value)| format!("{}={}", encode(name), encode(value)))
            .collect();
        url.set_query(Some(&query.join("&")));
    }
    let mut config: tokio_postgres::Config = url.as_str().parse().map_err(UrlError::Syntax)?;
    let encrypted = encrypts(mode.as_deref(), is_local(&config))?;
    config.ssl_mode(if encrypted { SslMode::Require } else { SslMode::Disable });
    Ok((config, tls(encrypted, roots.as_deref())?))
}

/// Percent-encodes everything that could be read as part of a query's frame.
fn encode(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

fn is_local(config: &tokio_postgres::Config) -> bool {
    config.get_hosts().iter().all(|host| match host {
        Host::Tcp(name) => crate::is_loopback(name),
        #[cfg(unix)]
        Host::Unix(_) => true,
    }) && config.get_hostaddrs().iter().all(std::net::IpAddr::is_loopback)
}

/// Off loopback a connection is plain only when that is asked for. Every encrypted mode checks the
/// chain and the host's name: stricter than libpq's `require` and `verify-ca`, never laxer.
fn encrypts(mode: Option<&str>, local: bool) -> Result<bool, UrlError> {
    match mode {
        None => Ok(!local),
        Some("disable") => Ok(false),
        Some("require" | "verify-ca" | "verify-full") => Ok(true),
        Some("prefer" | "allow") if local => Ok(false),
        Some(mode @ ("prefer" | "allow")) => Err(UrlError::MayBePlain(mode.to_owned())),
        Some(other) => Err(UrlError::SslMode(other.to_owned())),
    }
}

fn tls(encrypted: bool, roots: Option<&str>) -> Result<ClientConfig, UrlError> {
    let mut store = rustls::RootCertStore::empty();
    match roots {
        Some(path) if path != "system" => {
            for certificate in
                CertificateDer::pem_file_iter(path).map_err(UrlError::RootCertificates)?
            {
                store
                    .add(certificate.map_err(UrlError::RootCertificates)?)
                    .map_err(UrlError::Tls)?;
            }
        }
        Some(_) | None if encrypted => {
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if store.is_empty() {
                return Err(UrlError::NoRootCertificates);
            }
        }
        Some(_) | None => {}
    }
    let provider = rustls::crypto::ring::default_provider();
    Ok(ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .map_err(UrlError::Tls)?
        .with_root_certificates(store)
        .with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn off_loopback_a_connection_is_plain_only_when_asked_for() {
        let mode = |url: &str| read_url(url).map(|(config, _)| config.get_ssl_mode());
        assert_eq!(mode("postgres://u:p@127.0.0.1/d").expect("a good URL"), SslMode::Disable);
        assert_eq!(
            mode("postgres://u:p@localhost/d?sslmode=verify-full&sslrootcert=system")
                .expect("a good URL"),
            SslMode::Require
        );
        assert_eq!(mode("postgres://u:p@db.example/d").expect("a good URL"), SslMode::Require);
        assert_eq!(
            mode("postgres://u:p@db.example/d?sslmode=disable").expect("a good URL"),
            SslMode::Disable
        );
        assert!(matches!(
            mode("postgres://u:p@db.example/d?sslmode=prefer"),
            Err(UrlError::MayBePlain(_))
        ));
        assert!(matches!(
            mode("postgres://u:p@db.example/d?sslmode=no"),
            Err(UrlError::SslMode(_))
        ));
        assert!(matches!(mode("mysql://u:p@db.example/d"), Err(UrlError::Scheme)));
    }

    #[test]
    fn what_is_the_drivers_stays_in_the_url() {
        let url = "postgres://u:p@127.0.0.1/d?options=-c%20search_path%3Da%2Bb&sslmode=disable";
        let (config, _) = read_url(url).expect("a good URL");
        assert_eq!(config.get_options(), Some("-c search_path=a+b"));
    }

    #[test]
    fn no_error_holds_the_password() {
        for url in [
            "postgres://u:sesame@h/d?sslmode=sesam",
            "http://u:sesame@h",
            "postgres://u:sesame@h:x/",
        ] {
            let error = read_url(url).expect_err("a bad URL");
            assert!(!format!("{error} {error:?}").contains("sesame"), "{error:?}");
        }
    }
}
