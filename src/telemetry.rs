//! Logs and counters: where they go, and the names of what is counted.
//!
//! Logs go to standard error, for a person on a terminal and as JSON elsewhere. At the default level
//! an ordinary call writes no line. No argument, result or secret is logged at any level above
//! `trace` of other crates, which the default leaves out.

use std::error::Error;
use std::fmt;
use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{Format, JsonFields};

mod names;

pub use names::Names;
use names::WithNames;

/// The client library logs whole messages that the broker returns, with their bodies: they are
/// reported here without.
const DEFAULT_FILTER: &str = "info,lapin=error,refinery_core=warn,deadpool=error";

/// How logs are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// Pretty on a terminal, JSON elsewhere.
    #[default]
    Auto,
    /// For people.
    Pretty,
    /// One JSON object a line.
    Json,
}

/// Sends logs to standard error; `CALLONCE_LOG` holds a filter in the syntax of `RUST_LOG`.
pub fn start(format: LogFormat) {
    let filter =
        EnvFilter::try_from_env("CALLONCE_LOG").unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let json = match format {
        LogFormat::Auto => !std::io::stderr().is_terminal(),
        LogFormat::Pretty => false,
        LogFormat::Json => true,
    };
    let started = if json {
        let line = Format::default().json().flatten_event(true);
        subscriber.fmt_fields(JsonFields::new()).event_format(WithNames::Json(line)).try_init()
    } else {
        let line = Format::default().with_ansi(std::io::stderr().is_terminal());
        subscriber.event_format(WithNames::Pretty(line)).try_init()
    };
    if let Err(error) = started {
        tracing::debug!(%error, "logs were started before");
    }
}

/// An error and its causes on one line. Some libraries repeat a cause in the text of its effect; here
/// it is said once.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    causes.fold(String::new(), |told, cause| match cause.to_string() {
        cause if told.ends_with(&cause) => told,
        cause if told.is_empty() => cause,
        cause => format!("{told}: {cause}"),
    })
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a worker has counted since it started.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: Counter,)*
        }

        impl fmt::Display for Counters {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let counts = [$((stringify!($name), self.$name.get()),)*];
                let mut counts = counts.into_iter().filter(|(_, count)| *count > 0);
                if let Some((name, count)) = counts.next() {
                    write!(f, "{name}={count}")?;
                }
                counts.try_for_each(|(name, count)| write!(f, " {name}={count}"))
            }
        }
    };
}

counters! {
    /// Deliveries that arrived.
    deliveries,
    /// Attempts that were begun.
    attempts,
    /// Deliveries that were answered from the ledger.
    replays,
    /// Claims that were taken over.
    takeovers,
    /// Calls that became unknown.
    unknowns,
    /// Calls with an ordinal above 0: likely errors of a model.
    ordinals_above_zero,
    /// Jobs that were refused.
    refusals,
    /// Jobs that were parked or sent to wait for their next round.
    parked,
    /// Jobs that went to the dead queue.
    dead,
    /// Replies that no queue took, or that one refused.
    replies_lost,
    /// Deliveries that could not be acked because their session was gone.
    acks_lost,
    /// Deliveries that were left to the next worker when this one ended.
    left,
    /// Keys of two different calls that were the same.
    collisions,
    /// Keys that a tool's downstream knew with other arguments.
    keys_reused,
    /// Deliveries of calls that wait for a person's word.
    held,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Counts one more.
    pub fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// How many there were.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Said(&'static str, #[source] Option<Box<Said>>);

    #[test]
    fn a_chain_says_each_cause_once() {
        let refused = || Some(Box::new(Said("refused", None)));
        let error = Said("publishing failed", Some(Box::new(Said("IO error: refused", refused()))));
        assert_eq!(chain(&error), "publishing failed: IO error: refused");
    }
}
