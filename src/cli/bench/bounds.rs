//! The servers without us: what no worker on the same machine can be faster than.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::jobs::{Producer, Series};
use super::place::Place;
use super::process::{Process, Servers};
use super::report::Sample;
use super::{BenchError, show_progress};
use crate::call::job::{Job, Limits};
use crate::ledger::state::Terms;
use crate::ledger::{ClaimRequest, Ledger, LedgerError, Settle, Settling};
use crate::outcome::{EffectClass, Outcome};

const LEASE: Duration = Duration::from_secs(30);
/// As long as a reply to a call that was answered null.
const REPLY: &[u8] = &[b'r'; 200];

/// Measures the servers alone.
pub(super) struct Bounds<'a> {
    pub(super) place: &'a Place,
    pub(super) servers: Servers,
    pub(super) prefetch: u16,
}

impl Bounds<'_> {
    /// Claims and settles each call of a series from as many tasks as a worker has deliveries.
    pub(super) async fn ledger(&self, series: &Series) -> Result<Sample, BenchError> {
        self.place.ledger.empty().await?;
        let commits = self.place.commits().await?;
        let ledger = self.place.measured_ledger()?;
        let own = self.begin();
        let next = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        for _ in 0..self.prefetch {
            tasks.spawn(claim_and_settle(ledger.clone(), series.clone(), Arc::clone(&next)));
        }
        while let Some(ended) = tasks.join_next().await {
            ended.map_err(|error| BenchError::Io {
                what: "a task of the benchmark failed",
                source: error.into(),
            })??;
        }
        let took = own.begun.elapsed();
        // Its sessions tell their commits when they end.
        drop(ledger);
        let commits = self.place.commits().await? - commits;
        let sample = self.sample(series.jobs, took, own);
        Ok(Sample { commits_per_call: Some(commits as f64 / series.jobs as f64), ..sample })
    }

    /// Publishes as many replies.
    pub(super) async fn publish(&self, series: &Series) -> Result<Sample, BenchError> {
        self.place.queues.purge().await?;
        let count = usize::try_from(series.jobs).unwrap_or(usize::MAX);
        let own = self.begin();
        let took =
            self.place.queues.publish_alone(REPLY, count, usize::from(self.prefetch)).await?;
        Ok(self.sample(series.jobs, took, own))
    }

    /// Consumes a series, and acks each of its jobs.
    pub(super) async fn consume(&self, series: &Series) -> Result<Sample, BenchError> {
        self.place.queues.purge().await?;
        show_progress("bound.consume", "publishing");
        let producer = Producer::start(self.place);
        let sent = producer.send_all(series, &self.place.queues.replies()).await;
        producer.end().await;
        sent?;
        let count = usize::try_from(series.jobs).unwrap_or(usize::MAX);
        let own = self.begin();
        let took = self.place.queues.consume_alone(count, self.prefetch).await?;
        Ok(self.sample(series.jobs, took, own))
    }

    fn begin(&self) -> Begin {
        Begin { begun: Instant::now(), own: own_cpu(), servers: self.servers.cpu() }
    }

    /// This process stands where a worker stands elsewhere.
    fn sample(&self, jobs: u64, took: Duration, begin: Begin) -> Sample {
        let calls = jobs as f64;
        let per_call = |cpu: Duration| cpu.as_secs_f64() * 1e6 / calls;
        let servers = begin.servers.until(self.servers.cpu());
        let own = begin.own.zip(own_cpu()).map(|(before, after)| after.saturating_sub(before));
        Sample {
            calls_per_s: Some(calls / took.as_secs_f64()),
            worker_cpu_us: own.map(per_call),
            postgres_cpu_us: servers.postgres.map(per_call),
            broker_cpu_us: servers.broker.map(per_call),
            ..Sample::default()
        }
    }
}

struct Begin {
    begun: Instant,
    own: Option<Duration>,
    servers: super::process::ServersCpu,
}

fn own_cpu() -> Option<Duration> {
    Process::read(std::process::id()).map(|process| process.cpu)
}

/// Takes calls until there are no more.
async fn claim_and_settle(
    ledger: Ledger,
    series: Series,
    next: Arc<AtomicU64>,
) -> Result<(), BenchError> {
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= series.jobs {
            return Ok(());
        }
        let request = request(series.body(number))?;
        let claim = Uuid::new_v4();
        let Some(granted) = ledger.claim(&request, claim).await? else {
            return Err(LedgerError::Row("a call of the benchmark that was claimed before").into());
        };
        let outcome = Outcome { content: Some(RawValue::NULL.to_owned()), ..Outcome::default() };
        let settling = Settling {
            request,
            claim,
            attempt: granted.attempt,
            args: granted.args,
            outcome,
            evident: false,
            trail: None,
        };
        if !ledger.settle(&settling, Settle::Completed).await? {
            return Err(LedgerError::Row("a claim of the benchmark that was lost").into());
        }
    }
}

fn request(body: Bytes) -> Result<ClaimRequest, LedgerError> {
    let job = Job::decode(&body, None, None, &Limits::default())
        .map_err(|_| LedgerError::Row("a job of the benchmark that cannot be read"))?;
    Ok(ClaimRequest {
        job: Arc::new(job),
        terms: Terms {
            effect: EffectClass::KeyedWrite,
            sent_as: [0; 32],
            timeout: 10_000_000,
            key_memory: None,
            max_attempts: 5,
            approval: false,
        },
        lease: LEASE,
        worker: "bench".into(),
    })
}
