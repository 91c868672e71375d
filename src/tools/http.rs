//! Calling a tool over HTTP: one POST, and what its answer or its failure says of the world.
//!
//! # When a request is known to be unsent
//!
//! The request's body asks the gate at its first poll and yields an error where the answer is no.
//! hyper (1.12, `proto/h1/dispatch.rs`, `poll_write`) encodes a request's head into its write buffer
//! and goes on to poll the body before anything is flushed, as long as the buffer has room; an error
//! of that poll ends the connection with the buffer unwritten. So a body that was never polled, or
//! whose gate was shut, means that no byte of the request has left. The head is far smaller than
//! that buffer (`registry` bounds the URL and the headers); were it ever flushed first, what had left
//! would still be a head that announces a body of which no byte follows: no whole request. A body of
//! no bytes would never be polled, and is refused here. hyper-util repeats a request on another
//! connection only when it was handed back unpolled, which the gate covers as well.
//!
//! So one question decides, whatever the error is: was the gate open? If it was not, the request is
//! not sent. If it was, nothing but the answer says what happened.

mod body;
mod connect;
mod judge;
mod key;
mod probe;
mod stream;
mod trial;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue, InvalidHeaderValue};
use reqwest::{Response, Url};
use secrecy::{ExposeSecret, SecretString};
use tokio::time::{Instant, timeout_at};

use self::body::GatedBody;
use self::judge::Reading;
use self::probe::Probe;
use super::answer::{AnswerKind, Body};
use super::gate::ShutOnDrop;
use super::{KeyPlace, ProbePolicy, Probed, SendGate, ToolCall, failure, place};
use crate::call::key::KeyFormat;
use crate::call::reply::Phase;
use crate::duration;
use crate::outcome::{Branch, EffectClass, Verdict};

pub(super) use connect::{TlsError, TlsSetup};
pub(super) use judge::{Statuses, answers_for_good};
pub(super) use key::{KeyIn, is_taken};
pub(super) use probe::{DEADLINE, KEY, Pointer, ProbeSettings, ProbeUrl};
pub(super) use stream::{MissingTerminal, StreamSettings};
pub(crate) use trial::{Exchange, Trial, TrialError};

/// A trace header longer than this is no trace: W3C trace context's is 55 bytes long.
const TRACEPARENT_BYTES_MAX: usize = 256;

/// How a tool's requests travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Over TLS.
    Https,
    /// In the clear, on this machine.
    HttpOnLoopback,
    /// In the clear, over a network: whoever can read it can read the key and the headers.
    HttpOffLoopback,
}

/// What the registry says of an HTTP tool.
#[derive(Clone)]
pub(super) struct HttpSettings {
    /// None where the registry was read without its variables: such a tool cannot be called.
    pub(super) url: Option<HiddenUrl>,
    pub(super) headers: Vec<(HeaderName, SecretString)>,
    pub(super) key: KeyIn,
    pub(super) replay_header: Option<HeaderName>,
    pub(super) statuses: Statuses,
    pub(super) answer: AnswerKind,
    pub(super) stream: StreamSettings,
    pub(super) effect: EffectClass,
    pub(super) timeout: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) result_bytes_max: usize,
}

impl HttpSettings {
    /// The headers that the registry gives to every request.
    fn own_headers(&self) -> Result<HeaderMap, InvalidHeaderValue> {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            let mut value = HeaderValue::from_str(value.expose_secret())?;
            value.set_sensitive(true);
            headers.insert(name.clone(), value);
        }
        Ok(headers)
    }

    /// The one kind of answer that counts.
    fn accept(&self) -> &'static str {
        match self.answer {
            _ if self.stream.declared => "text/event-stream",
            AnswerKind::Json => "application/json",
            AnswerKind::Text | AnswerKind::Bytes => "*/*",
        }
    }
}

/// A URL whose path or query may hold a secret.
#[derive(Clone)]
pub(super) struct HiddenUrl(pub(super) Url);

impl fmt::Debug for HiddenUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[REDACTED]")
    }
}

/// A tool behind an HTTP endpoint.
pub(super) struct HttpTool {
    settings: HttpSettings,
    probe: Option<Probe>,
    client: Option<reqwest::Client>,
}

impl HttpTool {
    /// A tool that can be called; without TLS settings or a URL one that can only be described.
    pub(super) fn new(
        settings: HttpSettings,
        probe: Option<ProbeSettings>,
        tls: Option<&TlsSetup>,
    ) -> Result<Self, TlsError> {
        let client = match (&settings.url, tls) {
            (Some(HiddenUrl(url)), Some(tls)) => Some(connect::client(&settings, url, tls)?),
            (Some(_), None) | (None, _) => None,
        };
        let probe = probe.map(|probe| Probe::new(probe, &settings, tls)).transpose()?;
        Ok(Self { settings, probe, client })
    }

    pub(super) fn probe(&self) -> Option<&ProbePolicy> {
        self.probe.as_ref().map(Probe::policy)
    }

    /// Asks once for a call's state; see [`super::Tool::ask`].
    pub(super) async fn ask(&self, key: &str) -> Probed {
        match &self.probe {
            Some(probe) => probe.ask(key, &self.settings).await,
            None => Probed::Unclear("the tool has no probe".to_owned()),
        }
    }

    pub(super) fn timeout(&self) -> Duration {
        self.settings.timeout
    }

    pub(super) fn key_place(&self) -> KeyPlace<'_> {
        self.settings.key.place()
    }

    pub(super) fn not_run_status(&self) -> &[u16] {
        &self.settings.statuses.not_run
    }

    pub(super) fn transport(&self) -> Option<Transport> {
        self.settings.url.as_ref().map(|HiddenUrl(url)| connect::transport(url))
    }

    pub(super) fn sent_as(&self, key_format: KeyFormat) -> [u8; 32] {
        let (scheme, host, port, path) = match &self.settings.url {
            Some(HiddenUrl(url)) => (
                url.scheme(),
                url.host_str().unwrap_or_default(),
                url.port_or_known_default().unwrap_or_default(),
                url.path(),
            ),
            None => ("", "", 0, ""),
        };
        let port = port.to_string();
        let (key_place, name) = match self.key_place() {
            KeyPlace::Header(name) => ("header", name),
            KeyPlace::Field(name) => ("field", name),
            KeyPlace::Variable(name) => ("variable", name),
            KeyPlace::Nowhere => ("nowhere", ""),
        };
        let format = key_format.name();
        place(["http", "POST", scheme, host, &port, path, key_place, name, format])
    }

    /// Sends one request; see [`super::Tool::call`].
    pub(super) async fn call(&self, call: ToolCall, gate: Arc<SendGate>) -> Verdict {
        let deadline = Instant::now() + self.settings.timeout;
        let gate = ShutOnDrop(gate);
        let (client, request) = match self.request(call, &gate.0) {
            Ok(ready) => ready,
            Err(message) => {
                return Verdict::NotSent(failure(Branch::NotSent, Phase::Send, message));
            }
        };
        let response = match timeout_at(deadline, client.execute(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return self.unanswered(Some(&error), &gate.0),
            Err(_) => return self.unanswered(None, &gate.0),
        };
        if gate.0.shut() {
            // Nothing that was asked can be what this answers.
            return Verdict::NotSent(failure(
                Branch::NotSent,
                Phase::Send,
                "the server answered before it was asked",
            ));
        }
        self.answered(response, deadline).await
    }

    fn request(
        &self,
        call: ToolCall,
        gate: &Arc<SendGate>,
    ) -> Result<(&reqwest::Client, reqwest::Request), &'static str> {
        let (Some(client), Some(HiddenUrl(url))) = (&self.client, &self.settings.url) else {
            return Err("the registry was read to be looked at, not to be called");
        };
        if call.args.is_empty() {
            return Err("the arguments are empty");
        }
        let mut headers = self
            .settings
            .own_headers()
            .map_err(|_| "a header of this tool is no legal header value")?;
        let body = match &self.settings.key {
            KeyIn::Header(name) => {
                let key = HeaderValue::from_str(&call.key)
                    .map_err(|_| "the key is no legal header value")?;
                headers.insert(name.clone(), key);
                call.args
            }
            KeyIn::Field(name) => key::with_key(&call.args, name, &call.key)?,
        };
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if !headers.contains_key(header::ACCEPT) {
            let accept = self.settings.accept();
            headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
        }
        if let Some(traceparent) = call.traceparent
            && traceparent.len() <= TRACEPARENT_BYTES_MAX
            && let Ok(value) = HeaderValue::try_from(traceparent)
        {
            headers.insert(HeaderName::from_static("traceparent"), value);
        }
        let mut request = reqwest::Request::new(reqwest::Method::POST, url.clone());
        *request.headers_mut() = headers;
        let body = GatedBody::new(body, Arc::clone(gate));
        *request.body_mut() = Some(reqwest::Body::wrap(body));
        Ok((client, request))
    }

    /// No response: by an error, or, without one, because the time was over.
    fn unanswered(&self, error: Option<&reqwest::Error>, gate: &SendGate) -> Verdict {
        let settings = &self.settings;
        if gate.shut() {
            return Verdict::NotSent(match error {
                Some(error) => connect::unsent(error, settings.connect_timeout),
                None => failure(
                    Branch::NotSent,
                    Phase::Connect,
                    format!("not connected within {}", duration::show(settings.timeout)),
                ),
            });
        }
        let (branch, message) = match error {
            Some(_) => (Branch::Lost, "the connection was lost before any answer".to_owned()),
            None => {
                let within = duration::show(settings.timeout);
                (Branch::TimedOut, format!("no answer within {within}"))
            }
        };
        Verdict::Ambiguous(failure(branch, Phase::AwaitResponse, message))
    }

    async fn answered(&self, response: Response, deadline: Instant) -> Verdict {
        let replay_header = self.settings.replay_header.as_ref();
        let replay = replay_header.and_then(|name| response.headers().get(name)).map(judge::shown);
        judge::with_replay(self.judged(response, deadline).await, replay)
    }

    async fn judged(&self, response: Response, deadline: Instant) -> Verdict {
        let settings = &self.settings;
        let status = response.status().as_u16();
        let purpose = match judge::head(settings, status, response.headers()) {
            Ok(Reading::Whole(purpose)) => purpose,
            Ok(Reading::Stream) => return stream::read(response, settings, deadline).await,
            Err(verdict) => return verdict,
        };
        let read = timeout_at(deadline, read(response, settings.result_bytes_max)).await;
        let (branch, message) = match read {
            Ok(Ok(body)) => return judge::whole(settings, status, purpose, body),
            Ok(Err(_)) => (Branch::Cut, format!("the answer with status {status} was cut off")),
            Err(_) => {
                let within = duration::show(settings.timeout);
                let message =
                    format!("the answer with status {status} did not end within {within}");
                (Branch::TimedOut, message)
            }
        };
        Verdict::Ambiguous(failure(branch, Phase::Stream, message))
    }
}

impl fmt::Debug for HttpTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<_> = self.settings.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("HttpTool")
            .field("url", &self.settings.url)
            .field("headers", &headers)
            .field("key", &self.settings.key)
            .field("replay_header", &self.settings.replay_header)
            .field("statuses", &self.settings.statuses)
            .field("answer", &self.settings.answer)
            .field("stream", &self.settings.stream)
            .field("probe", &self.probe)
            .field("timeout", &self.settings.timeout)
            .field("connect_timeout", &self.settings.connect_timeout)
            .finish_non_exhaustive()
    }
}

/// Reads a body to its end, keeping at most its first `bytes_max`.
///
/// hyper ends a body with an error where the connection ended before the announced length or the
/// last chunk. A body that neither length nor chunks delimit ends with the connection, and is taken
/// as whole when that end was orderly: whether it is an answer is left to the JSON in it.
async fn read(mut response: Response, bytes_max: usize) -> Result<Body, reqwest::Error> {
    let mut body = Body::new(bytes_max);
    while let Some(chunk) = response.chunk().await? {
        body.push(&chunk);
    }
    Ok(body)
}

#[cfg(test)]
mod tests;
