//! Why there is no figure.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use crate::broker::BrokerError;
use crate::ledger::{Held, LedgerError, SchemaError};

/// Why a benchmark ended without its figures.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// There is no schema to measure in.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The ledger did not do as it was asked.
    #[error("the ledger cannot be used")]
    Ledger(#[from] LedgerError),
    /// The broker did not do as it was asked.
    #[error("the broker cannot be used")]
    Broker(#[from] BrokerError),
    /// The database's URL cannot be given a schema.
    #[error("the database URL must begin with postgres:// or postgresql://")]
    Url,
    /// A file, a socket, a signal or a process.
    #[error("{what}")]
    Io {
        /// What could not be done.
        what: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A worker ended by itself, or failed when it was told to end.
    #[error("a worker ended ({status}); its last words:\n{log}")]
    WorkerEnded {
        /// How.
        status: ExitStatus,
        /// The end of its log.
        log: String,
    },
    /// A worker does not consume.
    #[error("a worker did not consume within {after:?}; its last words:\n{log}")]
    NotConsuming {
        /// For how long that was waited for.
        after: Duration,
        /// The end of its log.
        log: String,
    },
    /// A worker did not end.
    #[error("a worker did not end within {0:?} after SIGTERM")]
    NotEnded(Duration),
    /// No more replies came.
    #[error("{replies} of {jobs} replies came, and none within {after:?} after that")]
    Stalled {
        /// Those that came.
        replies: u64,
        /// Those that should have.
        jobs: u64,
        /// For how long the next was waited for.
        after: Duration,
    },
    /// The ledger does not hold what it must.
    #[error(
        "after {measure} the ledger holds {rows} calls, {completed} completed by their first \
         attempt; expected {expected} of both",
        rows = held.rows,
        completed = held.completed_at_once
    )]
    Rows {
        /// What was measured.
        measure: &'static str,
        /// What it holds.
        held: Held,
        /// What it must.
        expected: i64,
    },
    /// Batches are not as much faster as was asked for.
    #[error("unique is {found:.2} times as fast as unique.per_call; expected at least {expected}")]
    TooSlow {
        /// How much faster they are.
        found: f64,
        /// How much faster they have to be.
        expected: f64,
    },
    /// A signal came.
    #[error("interrupted")]
    Interrupted,
    /// Something of the benchmark's own is still there.
    #[error("{what} is still there and can be removed")]
    LeftBehind {
        /// What.
        what: String,
        /// Why.
        #[source]
        source: Box<BenchError>,
    },
}

impl BenchError {
    pub(super) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}
