//! Requests whose answers are given as they came, without a judgement: to try what a downstream does
//! with repeats, at an address that is not the registry's.

use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName};
use thiserror::Error;
use tokio::time::{Instant, timeout_at};

use super::{HiddenUrl, HttpSettings, HttpTool, TlsSetup, judge, read};
use crate::duration;
use crate::outcome::Verdict;
use crate::tools::{Probed, SendGate, ToolCall};

/// By what downstreams say that an answer is an earlier request's, where the registry names nothing.
const REPLAY_HEADERS: [HeaderName; 4] = [
    HeaderName::from_static("idempotent-replayed"),
    HeaderName::from_static("idempotency-replayed"),
    HeaderName::from_static("x-idempotent-replayed"),
    HeaderName::from_static("x-idempotency-replayed"),
];

/// Why a tool cannot be tried at an address.
#[derive(Debug, Error)]
#[error("{0}")]
pub(crate) struct TrialError(pub(in crate::tools) String);

/// A tool at an address where it may be tried.
#[derive(Debug)]
pub(crate) struct Trial(HttpTool);

/// An answer as it came.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) status: u16,
    /// The header by which it says that it is an earlier request's answer, if it does.
    pub(crate) replay_header: Option<String>,
    /// No more than the longest result.
    pub(crate) body: Vec<u8>,
}

impl Trial {
    /// The tool, with nothing but its address changed.
    pub(in crate::tools) fn new(tool: &HttpTool, url: Url) -> Result<Self, TrialError> {
        if let Some(HiddenUrl(own)) = &tool.settings.url
            && own.origin() == url.origin()
            && own.path() == url.path()
        {
            let message = "that is the registry's own address of the tool; expected a sandbox's";
            return Err(TrialError(message.to_owned()));
        }
        let probe = tool.probe.as_ref().map(|probe| probe.settings_at(&url));
        let settings = HttpSettings { url: Some(HiddenUrl(url)), ..tool.settings.clone() };
        let tool = HttpTool::new(settings, probe, Some(&TlsSetup::new()));
        tool.map(Self).map_err(|error| TrialError(error.to_string()))
    }

    /// Where its requests go, without what may be a secret.
    pub(crate) fn place(&self) -> String {
        match &self.0.settings.url {
            Some(HiddenUrl(url)) => format!("{}{}", url.origin().ascii_serialization(), url.path()),
            None => String::new(),
        }
    }

    /// The names of the registry's headers, which go with each request.
    pub(crate) fn headers(&self) -> Vec<&str> {
        self.0.settings.headers.iter().map(|(name, _)| name.as_str()).collect()
    }

    /// Asks the sandbox for a call's state; none for a tool without a probe.
    pub(crate) async fn ask(&self, key: &str) -> Option<Probed> {
        self.0.probe()?;
        Some(self.0.ask(key).await)
    }

    /// Sends one request and reads its whole answer, within the tool's time-out.
    ///
    /// # Errors
    /// Why there is no whole answer; a lower-case fragment.
    pub(crate) async fn exchange(&self, call: ToolCall) -> Result<Exchange, String> {
        let settings = &self.0.settings;
        let deadline = Instant::now() + settings.timeout;
        let gate = SendGate::new(|| true);
        let (client, request) = self.0.request(call, &gate)?;
        let response = match timeout_at(deadline, client.execute(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(message(self.0.unanswered(Some(&error), &gate))),
            Err(_) => return Err(message(self.0.unanswered(None, &gate))),
        };
        let status = response.status().as_u16();
        let replay_header = self.replay_header(response.headers());
        match timeout_at(deadline, read(response, settings.result_bytes_max)).await {
            Ok(Ok(body)) => Ok(Exchange { status, replay_header, body: body.into_kept() }),
            Ok(Err(_)) => Err(format!("the answer with status {status} was cut off")),
            Err(_) => {
                let within = duration::show(settings.timeout);
                Err(format!("the answer with status {status} did not end within {within}"))
            }
        }
    }

    fn replay_header(&self, headers: &HeaderMap) -> Option<String> {
        let known = match &self.0.settings.replay_header {
            Some(name) => std::slice::from_ref(name),
            None => &REPLAY_HEADERS,
        };
        // Some send it with every answer.
        let says_no = |value: &str| {
            ["", "false", "0", "no"].iter().any(|no| value.trim().eq_ignore_ascii_case(no))
        };
        let says_so = |name: &&HeaderName| {
            headers.get(*name).is_some_and(|value| !says_no(&judge::shown(value)))
        };
        known.iter().find(says_so).map(|name| name.as_str().to_owned())
    }
}

fn message(verdict: Verdict) -> String {
    verdict.failure().map(|failure| failure.message.clone()).unwrap_or_default()
}
