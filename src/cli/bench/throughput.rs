//! Calls a second through workers: from the moment when they consume until the last reply is there.

use std::path::Path;
use std::time::{Duration, Instant};

use super::jobs::{Producer, Series};
use super::place::Place;
use super::process::{Servers, ServersCpu};
use super::report::Sample;
use super::worker::{Settings, Used, Worker};
use super::{BenchError, show_progress};

/// How often the replies are counted: often enough for a window of a second, rarely enough to cost
/// the broker nothing.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
/// No reply for this long: a call may wait its turn in a delay queue, and no longer than this.
const STALL_MAX: Duration = Duration::from_secs(180);

/// What is measured, and with what.
pub(super) struct Run<'a> {
    pub(super) place: &'a Place,
    pub(super) servers: Servers,
    pub(super) name: &'static str,
    pub(super) registry: &'a Path,
    pub(super) workers: usize,
    pub(super) settings: Settings,
}

impl Run<'_> {
    /// All jobs wait in the queue before a worker starts.
    pub(super) async fn prefilled(&self, series: &Series) -> Result<Sample, BenchError> {
        self.place.queues.purge().await?;
        show_progress(self.name, "publishing");
        self.publish(series).await?;
        self.measure(series, async { Ok(()) }).await
    }

    /// The jobs are published while the workers run.
    pub(super) async fn live(&self, series: &Series) -> Result<Sample, BenchError> {
        self.place.queues.purge().await?;
        self.measure(series, self.publish(series)).await
    }

    async fn publish(&self, series: &Series) -> Result<(), BenchError> {
        let producer = Producer::start(self.place);
        let sent = producer.send_all(series, &self.place.queues.replies()).await;
        producer.end().await;
        sent
    }

    async fn measure(
        &self,
        series: &Series,
        publish: impl Future<Output = Result<(), BenchError>>,
    ) -> Result<Sample, BenchError> {
        let commits = self.place.commits().await?;
        let mut workers = Vec::with_capacity(self.workers);
        for _ in 0..self.workers {
            workers.push(Worker::start(self.place, self.registry, self.settings)?);
        }
        Worker::all_consume(&mut workers, self.place).await?;

        let (begun, servers) = (Instant::now(), self.servers.cpu());
        let cpu_before: Option<Duration> = workers.iter().map(Worker::cpu).sum();
        let ((), took) = tokio::try_join!(publish, async {
            self.replies(series.jobs, &mut workers).await?;
            Ok(begun.elapsed())
        })?;
        let mut used = Vec::with_capacity(self.workers);
        for worker in workers {
            used.push(worker.end().await?);
        }
        let commits = self.place.commits().await? - commits;
        let servers = servers.until(self.servers.cpu());
        Ok(sample(series.jobs, took, commits, &used, cpu_before, servers))
    }

    /// Waits until so many replies are there.
    async fn replies(&self, jobs: u64, workers: &mut [Worker]) -> Result<(), BenchError> {
        let (mut replies, mut since) = (0, Instant::now());
        loop {
            let came = self.place.queues.replies_counted();
            if came >= jobs {
                return Ok(());
            }
            if came > replies {
                (replies, since) = (came, Instant::now());
                show_progress(self.name, &format!("{replies} of {jobs}"));
            }
            if since.elapsed() > STALL_MAX {
                return Err(BenchError::Stalled { replies, jobs, after: STALL_MAX });
            }
            for worker in &mut *workers {
                worker.check().await?;
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
    }
}

fn sample(
    jobs: u64,
    took: Duration,
    commits: i64,
    used: &[Used],
    cpu_before: Option<Duration>,
    servers: ServersCpu,
) -> Sample {
    let calls = jobs as f64;
    let per_call = |cpu: Duration| cpu.as_secs_f64() * 1e6 / calls;
    let worker: Option<Duration> = used.iter().map(|used| used.cpu).sum();
    let worker = worker.zip(cpu_before).map(|(after, before)| after.saturating_sub(before));
    let memory = used.iter().map(|used| used.memory_bytes).max().flatten();
    Sample {
        calls_per_s: Some(calls / took.as_secs_f64()),
        commits_per_call: Some(commits as f64 / calls),
        worker_cpu_us: worker.map(per_call),
        postgres_cpu_us: servers.postgres.map(per_call),
        broker_cpu_us: servers.broker.map(per_call),
        memory_mib: memory.map(|bytes| bytes as f64 / f64::from(1 << 20)),
        ..Sample::default()
    }
}
