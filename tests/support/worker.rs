//! The built binary as a worker: started, watched through its log, stopped and killed.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{DEADLINE, Tool, World, eventually, within};

/// A worker that is about to be started.
pub(crate) struct WorkerBuilder {
    command: Command,
}

impl WorkerBuilder {
    pub(super) fn new(world: &World, tools: &[Tool]) -> Self {
        let mut command = world.command(&["worker", "--migrate", "--log-format", "json"]);
        command
            .env("CALLONCE_TOOLS", world.registry(tools))
            // Small and short, so that many workers of many tests fit beside each other.
            .env("CALLONCE_POOL_SIZE", "4")
            .env("CALLONCE_RETRY_DELAYS", "200ms, 400ms")
            .env("CALLONCE_DRAIN_TIMEOUT", "15s");
        // The tests of faults run in both modes: in batches, and with each call's statement its own.
        if let Some(max) = std::env::var_os("TEST_BATCH_MAX") {
            command.env("CALLONCE_BATCH_MAX", max);
        }
        Self { command }
    }

    /// A setting, by its name in the settings' file.
    pub(crate) fn set(self, name: &str, value: &str) -> Self {
        self.env(&format!("CALLONCE_{}", name.to_uppercase()), value)
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn arg(mut self, arg: &str) -> Self {
        self.command.arg(arg);
        self
    }

    /// The registry's file, instead of the tools that were given.
    pub(crate) fn registry(self, path: &std::path::Path) -> Self {
        self.env("CALLONCE_TOOLS", &path.to_string_lossy())
    }

    /// Stops for good at a named point, after passing it `skip` times.
    pub(crate) fn failpoint(self, name: &str, skip: u32) -> Self {
        self.env("CALLONCE_FAILPOINT", name).env("CALLONCE_FAILPOINT_SKIP", &skip.to_string())
    }

    /// Starts the worker and waits until it consumes.
    pub(crate) async fn start(self) -> Worker {
        let worker = self.spawn();
        worker.wait_until_said("consuming").await;
        worker
    }

    /// Starts the worker and waits for nothing.
    pub(crate) fn spawn(mut self) -> Worker {
        let mut child = self
            .command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary was built");
        let stderr = child.stderr.take().expect("it is piped");
        let lines = Arc::new(Mutex::new(Vec::new()));
        // Ends with the worker's standard error.
        let reader = std::thread::spawn({
            let lines = lines.clone();
            move || {
                for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
                    let line = String::from_utf8_lossy(&line).into_owned();
                    lock(&lines).push(line);
                }
            }
        });
        Worker { child, lines, reader: Some(reader) }
    }
}

/// A worker that runs, or has ended; killed when it is dropped.
pub(crate) struct Worker {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    reader: Option<std::thread::JoinHandle<()>>,
}

fn lock(lines: &Mutex<Vec<String>>) -> MutexGuard<'_, Vec<String>> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Worker {
    /// The whole log so far.
    pub(crate) fn log(&self) -> String {
        lock(&self.lines).join("\n")
    }

    /// Whether any line of the log holds this text.
    pub(crate) fn logged(&self, text: &str) -> bool {
        self.times_logged(text) > 0
    }

    /// How many lines of the log hold this text.
    pub(crate) fn times_logged(&self, text: &str) -> usize {
        lock(&self.lines).iter().filter(|line| line.contains(text)).count()
    }

    /// How many entries of the log have exactly this message.
    pub(crate) fn times_said(&self, message: &str) -> usize {
        let said = |line: &&String| {
            serde_json::from_str::<Value>(line).is_ok_and(|entry| entry["message"] == message)
        };
        lock(&self.lines).iter().filter(said).count()
    }

    pub(crate) async fn wait_until_logged(&self, text: &str) {
        eventually(&format!("{text:?} in the log"), async || self.logged(text)).await;
    }

    /// Waits for an entry of the log with exactly this message.
    pub(crate) async fn wait_until_said(&self, message: &str) {
        self.wait_until_said_times(message, 1).await;
    }

    pub(crate) async fn wait_until_said_times(&self, message: &str, times: usize) {
        let what = format!("{message:?} {times} times in the log");
        eventually(&what, async || self.times_said(message) >= times).await;
    }

    /// Waits until the worker stands at a failpoint.
    pub(crate) async fn wait_for_failpoint(&self, name: &str) {
        let line = format!("failpoint {name}");
        eventually(&line, async || lock(&self.lines).contains(&line)).await;
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_none()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("it has not been waited for");
    }

    /// SIGKILL, as a machine that lost its power.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it is our child");
        self.child.wait().expect("it is our child");
        if let Some(reader) = self.reader.take() {
            reader.join().expect("reading does not panic");
        }
    }

    /// SIGTERM, and the exit status.
    pub(crate) async fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.exit(DEADLINE).await
    }

    /// SIGTERM, and the exit must be a clean one.
    pub(crate) async fn drain(&mut self) {
        let status = self.terminate().await;
        assert_eq!(status.code(), Some(0), "the drain was not clean");
    }

    /// The exit status, once the worker has ended; its whole log is there then.
    pub(crate) async fn exit(&mut self, deadline: Duration) -> ExitStatus {
        let mut status = None;
        within(deadline, "the worker ends", async || {
            status = self.child.try_wait().expect("it is our child");
            status.is_some()
        })
        .await;
        if let Some(reader) = self.reader.take() {
            reader.join().expect("reading does not panic");
        }
        status.expect("the wait is over")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of worker {}\n{}", self.child.id(), self.log());
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
