//! What the demo sees: the workers' logs, the payments API's books, and conditions that come true.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use serde::Deserialize;

/// For anything that the demo waits for.
const PATIENCE: Duration = Duration::from_secs(40);

/// Between two looks at a condition.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Waits, but not for ever.
pub(crate) async fn within<T>(
    what: &str,
    done: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    tokio::time::timeout(PATIENCE, done)
        .await
        .map_err(|_| anyhow!("{what}: not within {PATIENCE:?}"))?
        .with_context(|| what.to_owned())
}

/// Looks until there is something to see.
pub(crate) async fn until<T>(
    what: &str,
    mut look: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    within(what, async {
        loop {
            if let Some(seen) = look().await? {
                return Ok(seen);
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
    })
    .await
}

/// What a worker says, by the beginning of its message.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Said {
    /// A session with the broker stands.
    Consuming,
    /// The session was lost.
    SessionLost,
    /// A delivery arrived.
    Received,
    /// A delivery was answered without running anything.
    Replayed,
    /// A delivery could not be acked.
    NotAcked,
}

impl Said {
    fn message(self) -> &'static str {
        match self {
            Self::Consuming => "consuming",
            Self::SessionLost => "no consuming session",
            Self::Received => "received",
            Self::Replayed => "answered from the ledger",
            Self::NotAcked => "not acked",
        }
    }
}

/// Lines of workers' logs.
#[derive(Debug, Default)]
pub(crate) struct Logs(Vec<Line>);

#[derive(Debug, Deserialize)]
struct Line {
    message: String,
    span: Option<Span>,
}

#[derive(Debug, Deserialize)]
struct Span {
    key: Option<String>,
}

impl Logs {
    /// Takes a log's lines; a last one that is not whole yet is for the next look.
    pub(crate) fn add(&mut self, log: &str) {
        self.0.extend(log.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok()));
    }

    /// How often this was said.
    pub(crate) fn count(&self, said: Said) -> usize {
        self.0.iter().filter(|line| line.message.starts_with(said.message())).count()
    }

    /// How often this was said of a call.
    pub(crate) fn count_of(&self, key: &str, said: Said) -> usize {
        let of_key = |line: &&Line| {
            line.span.as_ref().and_then(|span| span.key.as_deref()).is_some_and(|of| of == key)
        };
        self.0.iter().filter(of_key).filter(|line| line.message.starts_with(said.message())).count()
    }
}

/// What the payments API has counted.
#[derive(Debug, Deserialize)]
pub(crate) struct Books {
    pub(crate) payments: usize,
    pub(crate) tickets: usize,
    pub(crate) stalls: usize,
    keys: BTreeMap<String, OfKey>,
}

/// What it has counted of one key.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
pub(crate) struct OfKey {
    pub(crate) posts: usize,
    pub(crate) effects: usize,
}

impl Books {
    pub(crate) fn of(&self, key: &str) -> OfKey {
        self.keys.get(key).copied().unwrap_or_default()
    }
}
