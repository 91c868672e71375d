//! Asking for a call's state by its key: one GET, and what its answer says.

use std::fmt;
use std::time::Duration;

use reqwest::Url;
use reqwest::header::{self, HeaderValue};
use secrecy::{ExposeSecret, SecretString};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{HttpSettings, KeyIn, TlsError, TlsSetup, connect, read};
use crate::call::reply::{CallError, ErrorKind, Phase, Warning};
use crate::outcome::Outcome;
use crate::tools::answer::{self, AnswerKind, Body};
use crate::tools::{ProbePolicy, Probed};

/// Where the key stands in a probe's URL.
pub(in crate::tools) const KEY: &str = "{key}";

/// The longest that one look may take in all, unless the registry says otherwise.
pub(in crate::tools) const DEADLINE: Duration = Duration::from_secs(60);

/// Read beside a result of the longest size: what stands around it, and what of a larger result is
/// not kept.
const BESIDE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What the registry says of a probe.
#[derive(Clone)]
pub(in crate::tools) struct ProbeSettings {
    /// None where the registry was read without its variables.
    pub(in crate::tools) url: Option<ProbeUrl>,
    pub(in crate::tools) state: Pointer,
    pub(in crate::tools) completed: Vec<String>,
    pub(in crate::tools) running: Vec<String>,
    pub(in crate::tools) failed: Vec<String>,
    /// None: the whole answer is the result.
    pub(in crate::tools) result: Option<Pointer>,
    pub(in crate::tools) policy: ProbePolicy,
}

/// An address with a place for the key; it may hold a secret.
#[derive(Clone)]
pub(in crate::tools) struct ProbeUrl(SecretString);

impl ProbeUrl {
    /// An address that was found good with some key in its place.
    pub(in crate::tools) fn new(text: &str) -> Self {
        Self(text.to_owned().into())
    }

    /// The same at another server.
    fn at(&self, server: &Url) -> Option<Self> {
        // No address of a tool holds it, so that it can be found again.
        const SAMPLE: &str = "callonce-key-goes-here";
        let mut url = self.of(SAMPLE)?;
        url.set_scheme(server.scheme()).ok()?;
        url.set_host(server.host_str()).ok()?;
        url.set_port(server.port()).ok()?;
        Some(Self::new(&url.as_str().replace(SAMPLE, KEY)))
    }

    fn of(&self, key: &str) -> Option<Url> {
        Url::parse(&self.0.expose_secret().replace(KEY, key)).ok()
    }
}

/// A JSON Pointer (RFC 6901), by its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::tools) struct Pointer(Vec<String>);

impl Pointer {
    pub(in crate::tools) fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self(Vec::new()));
        }
        let part = |part: &str| {
            let escapes = part.match_indices('~');
            let escaped = |at: usize| part[at + 1..].starts_with(['0', '1']);
            let legal = escapes.map(|(at, _)| at).all(escaped);
            legal.then(|| part.replace("~1", "/").replace("~0", "~"))
        };
        text.strip_prefix('/')?.split('/').map(part).collect::<Option<_>>().map(Self)
    }

    /// What stands there, byte for byte.
    pub(super) fn look<'a>(&self, whole: &'a RawValue) -> Option<&'a RawValue> {
        self.0.iter().try_fold(whole, |at, part| {
            if let Ok(Members(members)) = serde_json::from_str(at.get()) {
                let mut named = members.into_iter().filter(|(name, _)| name == part);
                // A member that is there twice says nothing.
                return named.next().filter(|_| named.next().is_none()).map(|(_, value)| value);
            }
            let entries: Vec<&RawValue> = serde_json::from_str(at.get()).ok()?;
            let digits = part.bytes().all(|byte| byte.is_ascii_digit());
            let plain = digits && (part == "0" || !part.starts_with('0'));
            entries.get(part.parse::<usize>().ok().filter(|_| plain)?).copied()
        })
    }
}

/// An object's members, as often as they are there.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;

        impl<'de> Visitor<'de> for Visit {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(members)
            }
        }

        deserializer.deserialize_map(Visit).map(Self)
    }
}

/// A tool's probe, ready to be asked.
pub(super) struct Probe {
    settings: ProbeSettings,
    client: Option<reqwest::Client>,
}

impl Probe {
    pub(super) fn new(
        settings: ProbeSettings,
        http: &HttpSettings,
        tls: Option<&TlsSetup>,
    ) -> Result<Self, TlsError> {
        let url = settings.url.as_ref().and_then(|url| url.of(""));
        let client = match (url, tls) {
            (Some(url), Some(tls)) => Some(connect::client(http, &url, tls)?),
            (Some(_), None) | (None, _) => None,
        };
        Ok(Self { settings, client })
    }

    /// Its settings with another server for the tool's.
    pub(super) fn settings_at(&self, server: &Url) -> ProbeSettings {
        let url = self.settings.url.as_ref().and_then(|url| url.at(server));
        ProbeSettings { url, ..self.settings.clone() }
    }

    pub(super) fn policy(&self) -> &ProbePolicy {
        &self.settings.policy
    }

    /// Asks once, for as long as one request may take.
    pub(super) async fn ask(&self, key: &str, http: &HttpSettings) -> Probed {
        let asked = tokio::time::timeout(http.timeout, self.exchange(key, http)).await;
        asked.unwrap_or_else(|_| {
            let within = crate::duration::show(http.timeout);
            Probed::Unclear(format!("no answer within {within}"))
        })
    }

    async fn exchange(&self, key: &str, http: &HttpSettings) -> Probed {
        let (Some(client), Some(url)) =
            (&self.client, self.settings.url.as_ref().and_then(|url| url.of(key)))
        else {
            return unclear("the registry was read to be looked at, not to be called");
        };
        let mut request = reqwest::Request::new(reqwest::Method::GET, url);
        let Ok(mut headers) = http.own_headers() else {
            return unclear("a header of this tool is no legal header value");
        };
        if let (KeyIn::Header(name), Ok(key)) = (&http.key, HeaderValue::from_str(key)) {
            headers.insert(name.clone(), key);
        }
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        *request.headers_mut() = headers;
        let response = match client.execute(request).await {
            Ok(response) => response,
            Err(error) if error.is_connect() => {
                return Probed::Unclear(connect::unsent(&error, http.connect_timeout).message);
            }
            Err(_) => return unclear("the connection was lost before any answer"),
        };
        match response.status().as_u16() {
            404 | 410 => return Probed::NotFound,
            200..=299 => {}
            status => return Probed::Unclear(format!("it answered with status {status}")),
        }
        match read(response, http.result_bytes_max + BESIDE_BYTES_MAX).await {
            Ok(body) => self.judge(body, http.result_bytes_max),
            Err(_) => unclear("its answer was cut off"),
        }
    }

    fn judge(&self, body: Body, result_bytes_max: usize) -> Probed {
        if body.is_cut() {
            return unclear("its answer was too long");
        }
        let bytes = body.into_bytes();
        let Ok(whole) = serde_json::from_slice::<&RawValue>(&bytes) else {
            return unclear("its answer was not one JSON text");
        };
        let Some(state) = self.settings.state.look(whole).map(RawValue::get) else {
            return unclear("its answer has no state");
        };
        // A state that is no text is compared as it is written.
        let state = serde_json::from_str::<String>(state).unwrap_or_else(|_| state.to_owned());
        let is = |list: &[String]| list.contains(&state);
        if is(&self.settings.running) {
            return Probed::Running;
        }
        let failed = is(&self.settings.failed);
        if !failed && !is(&self.settings.completed) {
            return unclear("its answer has a state that the registry does not name");
        }
        let result = match &self.settings.result {
            Some(pointer) => pointer.look(whole),
            None => Some(whole),
        };
        Probed::Answered(outcome(result, failed, result_bytes_max))
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ProbeSettings { state, completed, running, failed, result, policy, .. } =
            &self.settings;
        f.debug_struct("Probe")
            .field("state", state)
            .field("completed", completed)
            .field("running", running)
            .field("failed", failed)
            .field("result", result)
            .field("policy", policy)
            .finish_non_exhaustive()
    }
}

fn outcome(result: Option<&RawValue>, failed: bool, result_bytes_max: usize) -> Outcome {
    let error = failed.then(|| {
        let message = "the tool's own records say that the call failed";
        CallError::new(ErrorKind::ToolError, Some(Phase::Finish), message)
    });
    let content = result.and_then(|result| {
        let mut body = Body::new(result_bytes_max);
        body.push(result.get().as_bytes());
        answer::success(body, AnswerKind::Json).ok()
    });
    let (content, warning) = match content {
        Some(content) => (content.content, content.warning),
        None => (None, Some(Warning::ResultUnavailable)),
    };
    Outcome {
        is_error: failed,
        content,
        warnings: warning.into_iter().collect(),
        error,
        replay_header: None,
    }
}

fn unclear(why: &str) -> Probed {
    Probed::Unclear(why.to_owned())
}
