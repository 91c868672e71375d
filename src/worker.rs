//! The pool's worker: starts everything, owns every task and both stop signals, drains.
//!
//! The first stop ends taking, the second ends working. Between them what runs goes on to its
//! recorded outcome, its reply and its ack, for as long as `drain_timeout` lets it.

use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;

use futures_util::FutureExt as _;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::sync::{RwLock, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::broker::{BrokerError, BrokerSettings, Consume, Publisher, Topology, consume};
use crate::config::{Config, ConfigError};
use crate::job::{self, Context, Journal, Permits, UnderWay};
use crate::ledger::lease::LeaseKeeper;
use crate::ledger::{Ledger, LedgerError, PoolSettings, Waits};
use crate::retry::Backoff;
use crate::telemetry::{Counters, chain};
use crate::tools::registry::{Registry, RegistryError, Variables};

/// Why a worker did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// Settings that do not fit the tools.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The registry cannot be used.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The ledger cannot be used.
    #[error("the ledger cannot be used")]
    Ledger(#[from] LedgerError),
    /// The broker cannot be used.
    #[error("the broker cannot be used")]
    Broker(#[from] BrokerError),
    /// The task that consumes panicked.
    #[error("consuming ended without a reason")]
    Consuming(#[source] tokio::task::JoinError),
    /// The journal of outcomes cannot be read.
    #[error("the journal of outcomes that an ended worker left cannot be read")]
    Journal(#[source] std::io::Error),
    /// Signals cannot be listened for.
    #[error("signals cannot be listened for")]
    Signals(#[source] std::io::Error),
    /// The drain took longer than it may, or a second signal ended it; what still ran is left to the
    /// next worker.
    #[error("{0} deliveries were still under way when the drain ended; left to the next worker")]
    DrainOverrun(u64),
}

/// Where a worker finds what it works with.
pub struct Places<'a> {
    /// The ledger's URL.
    pub database_url: &'a SecretString,
    /// The broker's URL.
    pub amqp_url: &'a SecretString,
    /// The registry's file.
    pub tools: &'a Path,
    /// What all queues' names begin with.
    pub prefix: &'a str,
}

/// Runs a worker until it is told to stop, and drains it.
///
/// # Errors
///
/// Where it cannot start, and where the drain was overrun.
pub async fn run(config: Config, places: Places<'_>, migrate: bool) -> Result<(), WorkerError> {
    let registry = Registry::load_with(places.tools, Variables::required(), config.result_max.0)?;
    config.check_tools(&registry)?;
    registry.check_way_back(crate::broker::LONGEST_WAY_BACK)?;
    let topology = Topology::new(places.prefix, config.retry_delays.0.clone())?;
    let settings = broker_settings(&config, places.amqp_url);
    let (draining, ending) = (CancellationToken::new(), CancellationToken::new());
    let signals = listen(draining.clone(), ending.clone())?;

    let (loops, jobs) = (TaskTracker::new(), TaskTracker::new());
    let ledger = ledger(&config, places.database_url, config.pool_size.0)?.batched(
        config.batch_max.0,
        &loops,
        &ending,
    );
    let renewals = self::ledger(&config, places.database_url, 1)?;
    // The renewals' connection is made before there is anything to renew: a lease may be as short as
    // that takes.
    if !ready(&ledger, migrate, &draining).await? || !ready(&renewals, false, &draining).await? {
        return Ok(());
    }

    let worker: Arc<str> = name(&config).into();
    let publisher = Publisher::start(settings.clone(), &worker, &loops, &ending);
    let (leases, waits) = (LeaseKeeper::new(), Waits::new());
    let context = Arc::new(Context {
        permits: Permits::new(config.max_running.0, config.prefetch, &registry),
        journal: Journal::new(Path::new(&config.journal)),
        under_way: UnderWay::default(),
        waiting: Semaphore::new(config.max_waiting.0),
        starts: RwLock::new(()),
        counters: Counters::default(),
        worker: worker.clone(),
        draining: draining.clone(),
        ending: ending.clone(),
        leases: leases.clone(),
        waits: waits.clone(),
        registry,
        ledger,
        publisher,
        topology: topology.clone(),
        config: config.clone(),
    });

    if !job::take_over_journal(&context).await.map_err(WorkerError::Journal)? {
        return Ok(());
    }

    let drained = CancellationToken::new();
    let renewing = CancellationToken::new();
    loops.spawn({
        let renewing = renewing.clone();
        async move { leases.run(&renewals, renewing).await }
    });
    loops.spawn({
        let (ledger, renewing) = (context.ledger.clone(), renewing.clone());
        async move { waits.run(&ledger, renewing).await }
    });
    let consume_what = Consume {
        settings,
        topology,
        passive: config.passive,
        prefetch: config.prefetch,
        name: worker.to_string(),
    };
    tracing::info!(worker = &*worker, tools = context.registry.iter().count(), "started");
    let start = {
        let (context, jobs) = (context.clone(), jobs.clone());
        move |delivery| {
            // Boxed once, rather than moved by each layer around it.
            jobs.spawn(Box::pin(guarded(context.clone(), delivery)));
        }
    };
    // On a task of its own: deliveries are handed over on the threads that carry them out.
    let consuming = loops.spawn({
        let (draining, drained) = (draining.clone(), drained.clone());
        async move {
            // A worker that cannot consume at all stops as if it were told to.
            let _stop = draining.clone().drop_guard();
            consume(&consume_what, start, draining, drained).await
        }
    });
    let left = drain(&context, &jobs, &drained).await;
    let consumed = consuming.await;
    renewing.cancel();
    ending.cancel();
    loops.close();
    loops.wait().await;
    signals.abort();
    tracing::info!(counts = %context.counters, "stopped");
    consumed.map_err(WorkerError::Consuming)??;
    if left > 0 { Err(WorkerError::DrainOverrun(left)) } else { Ok(()) }
}

/// A handle to the ledger with the settings' time-outs.
///
/// # Errors
///
/// Where the URL cannot be used.
pub fn ledger(config: &Config, url: &SecretString, size: usize) -> Result<Ledger, LedgerError> {
    let settings = PoolSettings {
        size,
        connect_timeout: config.database_connect_timeout.0,
        checkout_timeout: config.database_checkout_timeout.0,
    };
    Ledger::new(url.expose_secret(), settings, config.database_statement_timeout.0)
}

/// How to reach the broker, by the settings.
pub fn broker_settings(config: &Config, url: &SecretString) -> BrokerSettings {
    BrokerSettings {
        url: url.clone(),
        connect_timeout: config.broker_connect_timeout.0,
        heartbeat: config.broker_heartbeat.0,
        allow_plaintext: config.allow_plaintext,
    }
}

/// Waits for the ledger to be there and checks its schema; false where the first stop came before.
async fn ready(
    ledger: &Ledger,
    migrate: bool,
    draining: &CancellationToken,
) -> Result<bool, LedgerError> {
    let mut backoff = Backoff::database();
    loop {
        let checked = async {
            if migrate {
                ledger.migrate().await?;
            }
            ledger.check().await
        };
        match checked.await {
            Ok(()) => return Ok(true),
            Err(error) if !error.is_lasting() => {
                let wait = backoff.wait();
                tracing::warn!(
                    error = %chain(&error),
                    ?wait,
                    "the ledger is not there yet"
                );
                tokio::select! {
                    () = draining.cancelled() => return Ok(false),
                    () = tokio::time::sleep(wait) => {}
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// A delivery whose task panics is left to its redelivery, and the worker goes on.
async fn guarded(context: Arc<Context>, delivery: crate::broker::Delivery) {
    if AssertUnwindSafe(job::run(context, delivery)).catch_unwind().await.is_err() {
        tracing::error!(
            "a delivery's task panicked; what it had claimed lapses, and the delivery comes again with the next session"
        );
    }
}

/// Waits for the first stop and then for what runs; says how many deliveries were left.
async fn drain(context: &Context, jobs: &TaskTracker, drained: &CancellationToken) -> u64 {
    context.draining.cancelled().await;
    tracing::info!(under_way = jobs.len(), "draining: nothing new is taken");
    jobs.close();
    tokio::select! {
        () = jobs.wait() => {}
        () = context.ending.cancelled() => {}
        () = tokio::time::sleep(context.config.drain_timeout.0) => {}
    }
    context.ending.cancel();
    // What is told to end needs a moment to say what it leaves. Whether anything is left is for the
    // deliveries to say: they may all have ended before this task sees the second stop.
    let ended = tokio::time::timeout(std::time::Duration::from_secs(1), jobs.wait()).await;
    tracing::debug!(in_time = ended.is_ok(), "nothing is under way, or it was told to end");
    let left = context.counters.left.get() + u64::try_from(jobs.len()).unwrap_or(u64::MAX);
    drained.cancel();
    left
}

/// The first SIGTERM or SIGINT drains, the second ends at once.
fn listen(
    draining: CancellationToken,
    ending: CancellationToken,
) -> Result<tokio::task::JoinHandle<()>, WorkerError> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).map_err(WorkerError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(WorkerError::Signals)?;
    let listening = async move {
        for stop in [draining, ending] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            stop.cancel();
        }
    };
    Ok(TaskTracker::new().spawn(listening))
}

fn name(config: &Config) -> String {
    if !config.worker_name.is_empty() {
        return config.worker_name.clone();
    }
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}-{}", std::process::id())
}
