//! Workers as child processes: the binary that runs, on the benchmark's own servers' part.

use std::collections::VecDeque;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use secrecy::ExposeSecret as _;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tokio::task::JoinSet;

use super::BenchError;
use super::place::Place;
use super::process::{Process, peak_memory_bytes};

/// What is kept of a worker's log, to be shown should it fail.
const LOG_LINES_MAX: usize = 15;
/// A worker that starts makes its connections and declares its queues.
const START_MAX: Duration = Duration::from_secs(60);
/// Nothing is under way any more when a worker is told to end.
const END_MAX: Duration = Duration::from_secs(30);
/// How often a process is looked at that is about to start or end.
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// How the workers of one measure are set.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    /// Deliveries, and calls that run at a time: no other setting may bound what is measured.
    pub(super) prefetch: u16,
    /// Whether each statement serves one call alone.
    pub(super) per_call: bool,
}

/// What a worker has used.
#[derive(Debug, Clone, Copy)]
pub(super) struct Used {
    pub(super) cpu: Option<Duration>,
    pub(super) memory_bytes: Option<u64>,
}

/// A worker that runs; killed when it is dropped.
pub(super) struct Worker {
    child: Child,
    log: Arc<Mutex<VecDeque<String>>>,
    reader: JoinSet<()>,
}

impl Worker {
    pub(super) fn start(
        place: &Place,
        registry: &Path,
        settings: Settings,
    ) -> Result<Self, BenchError> {
        let binary =
            std::env::current_exe().map_err(BenchError::io("the own binary cannot be found"))?;
        let limit = settings.prefetch.to_string();
        let mut command = Command::new(binary);
        // What is not set here is as the user has it, in the environment or in a settings file.
        command
            .args(["worker", "--prefetch", &limit, "--max-running", &limit])
            .args(["--max-waiting", &limit, "--passive", "false", "--worker-name", ""])
            .arg("--journal")
            .arg(place.journal())
            .arg("--tools")
            .arg(registry)
            .env("DATABASE_URL", place.measured_url.expose_secret())
            .env("AMQP_URL", place.broker.url.expose_secret())
            .env("CALLONCE_PREFIX", &place.prefix);
        if settings.per_call {
            command.env("CALLONCE_BATCH_MAX", "1");
        }
        let mut child = command
            // Ctrl-C is for this process, which ends its workers.
            .process_group(0)
            .kill_on_drop(true)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(BenchError::io("a worker cannot be started"))?;
        let log = Arc::default();
        let mut reader = JoinSet::new();
        if let Some(stderr) = child.stderr.take() {
            reader.spawn(keep_last_lines(stderr, Arc::clone(&log)));
        }
        Ok(Self { child, log, reader })
    }

    /// Waits until so many workers consume, and looks after these meanwhile.
    pub(super) async fn all_consume(workers: &mut [Self], place: &Place) -> Result<(), BenchError> {
        let deadline = Instant::now() + START_MAX;
        while (place.queues.jobs_depth().await?.consumers as usize) < workers.len() {
            for worker in &mut *workers {
                worker.check().await?;
                if Instant::now() > deadline {
                    let log = worker.last_words();
                    return Err(BenchError::NotConsuming { after: START_MAX, log });
                }
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
        Ok(())
    }

    /// Makes sure that it runs.
    pub(super) async fn check(&mut self) -> Result<(), BenchError> {
        let ended =
            self.child.try_wait().map_err(BenchError::io("a worker cannot be looked at"))?;
        match ended {
            Some(status) => Err(self.ended(status).await),
            None => Ok(()),
        }
    }

    /// The CPU that it has had so far.
    pub(super) fn cpu(&self) -> Option<Duration> {
        Process::read(self.child.id()?).map(|process| process.cpu)
    }

    /// Tells it to end, waits for that, and says what it has used in all.
    pub(super) async fn end(mut self) -> Result<Used, BenchError> {
        let memory_bytes = self.child.id().and_then(peak_memory_bytes);
        if let Some(pid) = self.pid() {
            // It may have ended by itself, which shows below.
            kill_process(pid, Signal::TERM).ok();
        }
        let cpu = self.last_cpu().await;
        let status = tokio::time::timeout(END_MAX, self.child.wait())
            .await
            .map_err(|_| BenchError::NotEnded(END_MAX))?
            .map_err(BenchError::io("a worker cannot be waited for"))?;
        if !status.success() {
            return Err(self.ended(status).await);
        }
        Ok(Used { cpu, memory_bytes })
    }

    /// What it has had when it has ended and nobody has waited for it yet.
    async fn last_cpu(&self) -> Option<Duration> {
        let (pid, deadline) = (self.child.id()?, Instant::now() + END_MAX);
        loop {
            let process = Process::read(pid)?;
            if process.has_ended || Instant::now() > deadline {
                return Some(process.cpu);
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
    }

    fn pid(&self) -> Option<Pid> {
        self.child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?))
    }

    async fn ended(&mut self, status: ExitStatus) -> BenchError {
        // The pipe's end comes with the process's; what the worker itself has started may hold it.
        let read = async { while self.reader.join_next().await.is_some() {} };
        tokio::time::timeout(Duration::from_secs(1), read).await.ok();
        BenchError::WorkerEnded { status, log: self.last_words() }
    }

    fn last_words(&self) -> String {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}

async fn keep_last_lines(stderr: ChildStderr, log: Arc<Mutex<VecDeque<String>>>) {
    let mut lines = BufReader::new(stderr).split(b'\n');
    while let Ok(Some(line)) = lines.next_segment().await {
        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
        if log.len() == LOG_LINES_MAX {
            log.pop_front();
        }
        log.push_back(String::from_utf8_lossy(&line).into_owned());
    }
}
