//! What every step may use.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{RwLock, Semaphore};
use tokio_util::sync::CancellationToken;

use super::{Journal, Permits, UnderWay};
use crate::broker::{Publisher, Topology};
use crate::config::Config;
use crate::ledger::{Ledger, Waits, lease::LeaseKeeper};
use crate::retry::Backoff;
use crate::telemetry::{Counters, chain};
use crate::tools::registry::Registry;

/// What every step may use; one for a worker.
pub struct Context {
    /// The settings.
    pub config: Config,
    /// The tools.
    pub registry: Registry,
    /// The ledger.
    pub ledger: Ledger,
    /// Keeps the leases of what runs.
    pub leases: Arc<LeaseKeeper>,
    /// Waits for other attempts.
    pub waits: Arc<Waits>,
    /// Publishes replies and jobs.
    pub publisher: Publisher,
    /// The queues.
    pub topology: Topology,
    /// Keeps outcomes while Postgres is away.
    pub journal: Journal,
    /// The limits on running tools.
    pub permits: Permits,
    /// The calls that are under way here.
    pub under_way: UnderWay,
    /// Deliveries that may wait for somebody else's claim.
    pub waiting: Semaphore,
    /// Held shared for an instant by every start, and alone by a suspect for as long as it runs.
    pub starts: RwLock<()>,
    /// What was counted.
    pub counters: Counters,
    /// This worker's name.
    pub worker: Arc<str>,
    /// The first stop: nothing new is begun.
    pub draining: CancellationToken,
    /// The second stop: what runs is left as it is.
    pub ending: CancellationToken,
}

impl Context {
    /// Waits, but not past the first stop; false where that came.
    pub(super) async fn pause(&self, wait: Duration) -> bool {
        tokio::select! {
            () = self.draining.cancelled() => false,
            () = tokio::time::sleep(wait) => true,
        }
    }

    /// Waits, but not past the second stop; false where that came.
    pub(super) async fn pause_to_the_end(&self, wait: Duration) -> bool {
        tokio::select! {
            () = self.ending.cancelled() => false,
            () = tokio::time::sleep(wait) => true,
        }
    }

    /// Logs an error of the ledger and waits for the next try; false where the first stop came.
    pub(super) async fn ledger_is_away(
        &self,
        error: &crate::ledger::LedgerError,
        backoff: &mut Backoff,
    ) -> bool {
        let wait = backoff.wait();
        tracing::warn!(
            error = %chain(error),
            ?wait,
            "the ledger did not answer; nothing runs meanwhile"
        );
        self.pause(wait).await
    }
}
