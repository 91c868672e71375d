//! How a tool's server is reached: look-up, connection, TLS, and which of them failed.

use std::error::Error as StdError;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use rustls::{ClientConfig, RootCertStore};
use thiserror::Error;

use super::{HttpSettings, Transport, failure};
use crate::call::reply::Phase;
use crate::duration;
use crate::outcome::{Branch, EffectClass, Failure};

/// How long a connection may be kept idle. A server that closes an idle connection just as the next
/// request goes out makes that request ambiguous, so this stays under the shortest ordinary limit
/// (Node's 5 s); a busy worker uses its connections again much sooner.
const IDLE_MAX: Duration = Duration::from_secs(4);

/// A response head of more lines than this is an error of the connection, not a memory of ours.
const RESPONSE_HEADERS_MAX: usize = 100;

/// Why a tool cannot be called at all.
#[derive(Debug, Error)]
pub(in crate::tools) enum TlsError {
    /// No TLS version is left.
    #[error("TLS cannot be set up")]
    Versions(#[source] rustls::Error),
    /// Without certificates no server could be trusted.
    #[error("no trusted certificates were found on this machine, and the URL is https")]
    NoCertificates,
    /// The HTTP client refused its settings.
    #[error("the HTTP client cannot be built")]
    Client(#[source] reqwest::Error),
}

/// The TLS settings that all tools share; certificates are looked for once, when a tool needs them.
pub(in crate::tools) struct TlsSetup {
    roots: OnceLock<Arc<RootCertStore>>,
}

impl TlsSetup {
    pub(in crate::tools) fn new() -> Self {
        Self { roots: OnceLock::new() }
    }

    #[cfg(test)]
    pub(super) fn trusting(roots: RootCertStore) -> Self {
        Self { roots: OnceLock::from(Arc::new(roots)) }
    }

    /// The one crypto provider of this program, named here so that none has to be installed.
    fn config(&self, https: bool) -> Result<ClientConfig, TlsError> {
        let roots = if https {
            Arc::clone(self.roots.get_or_init(|| Arc::new(native_roots())))
        } else {
            Arc::new(RootCertStore::empty())
        };
        if https && roots.is_empty() {
            return Err(TlsError::NoCertificates);
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Versions)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// The machine's trusted certificates. Some that cannot be read are no reason to trust fewer of the
/// others.
fn native_roots() -> RootCertStore {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "some trusted certificates could not be loaded");
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    roots
}

/// A client that does what it is told and nothing by itself: no redirects, no proxies, no retries.
pub(super) fn client(
    settings: &HttpSettings,
    url: &Url,
    tls: &TlsSetup,
) -> Result<reqwest::Client, TlsError> {
    // A tool's calls run `max_concurrency` at a time, which bounds the connections that are kept. A
    // write that nothing deduplicates takes no chance with one that may be closing.
    let idle_max = match settings.effect {
        EffectClass::Read | EffectClass::KeyedWrite => usize::MAX,
        EffectClass::UnkeyedWrite => 0,
    };
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls.config(url.scheme() == "https")?)
        .dns_resolver(Lookup { timeout: lookup_timeout(settings.connect_timeout) })
        .connect_timeout(settings.connect_timeout)
        .http1_only()
        // Some servers look for `Idempotency-Key` letter by letter.
        .http1_title_case_headers()
        .http1_max_headers(RESPONSE_HEADERS_MAX)
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .no_proxy()
        .referer(false)
        .pool_max_idle_per_host(idle_max)
        .pool_idle_timeout(IDLE_MAX)
        .user_agent(concat!("callonce/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(TlsError::Client)
}

pub(super) fn transport(url: &Url) -> Transport {
    let loopback = url.host_str().is_some_and(crate::is_loopback);
    match (url.scheme() == "https", loopback) {
        (true, _) => Transport::Https,
        (false, true) => Transport::HttpOnLoopback,
        (false, false) => Transport::HttpOffLoopback,
    }
}

/// Looks addresses up as the system does, with an error type by which a failed look-up is known.
struct Lookup {
    timeout: Duration,
}

/// A little under the time-out for the whole of connecting, which would else end first and could
/// not say that it was the look-up that took so long.
fn lookup_timeout(connect_timeout: Duration) -> Duration {
    connect_timeout * 9 / 10
}

/// Why a host has no address.
#[derive(Debug, Error)]
enum LookupError {
    #[error("the host's address could not be looked up")]
    Failed(#[source] io::Error),
    #[error("the host has no address")]
    NoAddress,
    #[error("the look-up of the host's address took too long")]
    TimedOut,
}

impl Resolve for Lookup {
    fn resolve(&self, name: Name) -> Resolving {
        let timeout = self.timeout;
        Box::pin(async move {
            // The connector puts the URL's port in.
            let lookup = tokio::net::lookup_host((name.as_str(), 0));
            let addresses = match tokio::time::timeout(timeout, lookup).await {
                Ok(Ok(addresses)) => addresses.collect::<Vec<_>>(),
                Ok(Err(error)) => return Err(LookupError::Failed(error).into()),
                Err(_) => return Err(LookupError::TimedOut.into()),
            };
            if addresses.is_empty() {
                return Err(LookupError::NoAddress.into());
            }
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

/// In which part a request ended of which nothing was sent, told by the types of the error's causes.
pub(super) fn unsent(error: &reqwest::Error, connect_timeout: Duration) -> Failure {
    if let Some(lookup) = causes(error).find_map(|cause| cause.downcast_ref::<LookupError>()) {
        return failure(Branch::NotSent, Phase::Resolve, lookup.to_string());
    }
    if !error.is_connect() {
        return failure(
            Branch::NotSent,
            Phase::Send,
            "the request was given up before it was sent",
        );
    }
    if let Some(tls) = causes(error).find_map(|cause| cause.downcast_ref()) {
        return failure(Branch::NotSent, Phase::Connect, tls_message(tls));
    }
    if error.is_timeout() {
        let within = duration::show(connect_timeout);
        return failure(Branch::NotSent, Phase::Connect, format!("not connected within {within}"));
    }
    let io = causes(error).filter_map(|cause| cause.downcast_ref::<io::Error>()).last();
    failure(
        Branch::NotSent,
        Phase::Connect,
        match io {
            Some(error) => format!("could not connect: {}", error.kind()),
            None => "could not connect".to_owned(),
        },
    )
}

/// An error and its causes. An I/O error leaves the error that it wraps out of its sources, so it is
/// asked for that first.
fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |cause| {
        let io = cause.downcast_ref::<io::Error>();
        match io.and_then(io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => StdError::source(*cause),
        }
    })
}

/// Without the names in the error: they come from the URL, which may be a secret.
#[expect(clippy::wildcard_enum_match_arm, reason = "the enum is another crate's and grows")]
fn tls_message(error: &rustls::Error) -> &'static str {
    match error {
        rustls::Error::InvalidCertificate(_) => "the server's certificate is not trusted",
        rustls::Error::AlertReceived(_) => "the server refused the TLS handshake",
        _ => "the TLS handshake failed",
    }
}
