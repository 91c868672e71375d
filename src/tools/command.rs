//! Calling a tool as a child process: arguments on its standard input, the key in its environment,
//! the answer from its standard output.
//!
//! # Who ends it
//!
//! A tool may fork, leave its process group, become a daemon, ignore a signal; and the worker may be
//! killed while it runs. So the worker does not start it. It starts its own binary again as a
//! [`supervisor`], one for each call, which adopts whatever the tool leaves behind and ends all of it
//! when the tool ends, when its time is over, or when the worker's side of their socket closes: by
//! dropping the call, or with the worker itself. The time is kept by the supervisor, so that it is
//! kept as well while the worker is stopped; the worker waits a little longer than that and no more.
//!
//! Only Linux lets a process adopt the descendants of its children. Elsewhere the tool's process
//! group is ended, and what has left the group is not. On Linux too what is outside the tree is not
//! ended: a container or a unit that the tool has asked another service for. Of a supervisor that is
//! itself killed the worker ends the tool's process group, once it was told of it, and no more.
//!
//! # When a call is known to be unsent
//!
//! The gate is asked when the supervisor is ready and nothing has been written to it. From then on
//! only the supervisor's word that the program was not started counts as not sent.
//!
//! What the tool writes to standard error is in the worker's log as it is: secrets have no place
//! there.

mod errors;
mod family;
mod frames;
mod supervisor;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use secrecy::{ExposeSecret, SecretString};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::time::{Instant, timeout_at};

use self::errors::Errors;
use self::frames::{Event, Request};
use super::answer::{self, AnswerKind, Body, Content};
use super::gate::ShutOnDrop;
use super::{SendGate, ToolCall, failure, place};
use crate::call::key::KeyFormat;
use crate::call::reply::{CallError, ErrorKind, Phase};
use crate::duration;
use crate::outcome::{Branch, Outcome, Verdict};

pub(crate) use supervisor::supervise;

/// The variable that holds the key.
pub(super) const KEY_VARIABLE: &str = "CALLONCE_IDEMPOTENCY_KEY";

/// How long a tool that is over its time may clean up, from SIGTERM to SIGKILL. Enough to remove a
/// file and to close a connection; short, since its call is ambiguous already and holds a permit.
const TERM_GRACE: Duration = Duration::from_secs(2);

/// How long killed processes may take to be gone: one that the kernel holds, as on a network disk
/// that does not answer, ends late or never.
const REAP_MAX: Duration = Duration::from_secs(3);

/// How long the supervisor's last word may take to arrive on a busy machine.
const WORD_MAX: Duration = Duration::from_secs(2);

/// What is read at a time: what a pipe holds on Linux.
const CHUNK_BYTES: usize = 64 * 1024;

/// What the registry says of a command.
pub(super) struct CommandSettings {
    pub(super) program: String,
    pub(super) args: Vec<String>,
    /// None where the registry was read without its variables: such a tool cannot be called.
    pub(super) env: Option<Vec<(String, SecretString)>>,
    pub(super) dir: Option<String>,
    pub(super) not_run_exit: Vec<u8>,
    pub(super) answer: AnswerKind,
    pub(super) timeout: Duration,
    pub(super) result_bytes_max: usize,
}

/// A tool that is a program on this machine.
pub(super) struct CommandTool {
    settings: CommandSettings,
}

impl CommandTool {
    pub(super) fn new(settings: CommandSettings) -> Self {
        Self { settings }
    }

    /// From the beginning of a call until it is given up: the tool may act until it is gone, which
    /// takes longer than its own time.
    pub(super) fn timeout(&self) -> Duration {
        self.settings.timeout + TERM_GRACE + REAP_MAX + WORD_MAX
    }

    pub(super) fn not_run_exit(&self) -> &[u8] {
        &self.settings.not_run_exit
    }

    pub(super) fn sent_as(&self, key_format: KeyFormat) -> [u8; 32] {
        let program = ["command", &self.settings.program].into_iter();
        let args = self.settings.args.iter().map(String::as_str);
        place(program.chain(args).chain(["variable", KEY_VARIABLE, key_format.name()]))
    }

    /// Runs the program once; see [`super::Tool::call`].
    pub(super) async fn call(&self, call: ToolCall, gate: Arc<SendGate>) -> Verdict {
        let begun = Instant::now();
        let (deadline, last) = (begun + self.settings.timeout, begun + self.timeout());
        let gate = ShutOnDrop(gate);
        let Some(mut request) = self.request(&call) else {
            let message = "the registry was read to be looked at, not to be called";
            return Verdict::NotSent(failure(Branch::NotSent, Phase::Connect, message));
        };
        let mut supervised = match timeout_at(deadline, Supervised::start()).await {
            Ok(Ok(supervised)) => supervised,
            Ok(Err(error)) => {
                let message = format!("the supervisor could not be started: {}", error.kind());
                return Verdict::NotSent(failure(Branch::NotSent, Phase::Connect, message));
            }
            Err(_) => {
                let within = duration::show(self.settings.timeout);
                let message = format!("the supervisor was not ready within {within}");
                return Verdict::NotSent(failure(Branch::NotSent, Phase::Connect, message));
            }
        };
        if !gate.0.open() {
            let message = "the call was given up before the program was started";
            return Verdict::NotSent(failure(Branch::NotSent, Phase::Send, message));
        }
        request.timeout = deadline.saturating_duration_since(Instant::now());
        let mut report = Report::default();
        let mut body = Body::new(self.settings.result_bytes_max);
        let mut errors = Errors::new();
        let run = supervised.run(&request, &call.args, &mut report, &mut body, &mut errors);
        // An error is one of the pipes', which are whole or are not: that is what counts.
        let whole = matches!(timeout_at(last, run).await, Ok(Ok(())));
        errors.finish();
        report.end_group();
        if !report.over {
            supervised.wake();
        }
        if report.left_behind {
            tracing::warn!("a process that the tool has left behind could not be ended");
        }
        self.judge(&report, whole.then_some(body))
    }

    fn request(&self, call: &ToolCall) -> Option<Request> {
        let CommandSettings { program, args, env, dir, timeout, .. } = &self.settings;
        let granted = env.as_ref()?.iter();
        let mut env: Vec<_> =
            granted.map(|(name, value)| (name.clone(), value.expose_secret().to_owned())).collect();
        env.push((KEY_VARIABLE.to_owned(), call.key.clone()));
        Some(Request {
            program: program.clone(),
            args: args.clone(),
            env,
            dir: dir.clone(),
            timeout: *timeout,
            grace: TERM_GRACE,
        })
    }

    /// Says what the supervisor's report means; `body` is the output, where it came to its end.
    fn judge(&self, report: &Report, body: Option<Body>) -> Verdict {
        let ambiguous =
            |branch, message| Verdict::Ambiguous(failure(branch, Phase::AwaitResponse, message));
        if let Some(message) = &report.not_spawned {
            return Verdict::NotSent(failure(Branch::NotSent, Phase::Connect, message.clone()));
        }
        if report.timed_out {
            let within = duration::show(self.settings.timeout);
            let message = format!("the tool did not end within {within}");
            return ambiguous(Branch::TimedOut, message);
        }
        let code = match report.end {
            Some(End::Exited(code)) => code,
            Some(End::Signalled(signal)) => {
                return ambiguous(Branch::Killed, format!("the tool was ended by signal {signal}"));
            }
            None => {
                let message = "the supervisor was lost while the tool ran";
                return ambiguous(Branch::Lost, message.to_owned());
            }
        };
        if self.settings.not_run_exit.iter().any(|not_run| i32::from(*not_run) == code) {
            let message = format!("the tool refused before any work, with exit code {code}");
            return Verdict::Refused(failure(Branch::Refused, Phase::Finish, message));
        }
        let Some(body) = body else {
            let message = format!("the output of the tool did not end after exit code {code}");
            return Verdict::Ambiguous(failure(Branch::Cut, Phase::Stream, message));
        };
        if code != 0 {
            let message = format!("the tool ended with exit code {code}");
            let error = CallError::new(ErrorKind::ToolError, Some(Phase::Finish), message);
            return completed(answer::error(body), Some(error));
        }
        match answer::success(body, self.settings.answer) {
            Ok(content) => completed(content, None),
            Err(found) => {
                let message =
                    format!("the tool ended with exit code 0 and an output that is {found}");
                Verdict::Ambiguous(failure(Branch::Unexpected, Phase::Finish, message))
            }
        }
    }
}

fn completed(content: Content, error: Option<CallError>) -> Verdict {
    let is_error = error.is_some();
    let outcome = Outcome {
        is_error,
        content: content.content,
        warnings: content.warning.into_iter().collect(),
        error,
        replay_header: None,
    };
    Verdict::Completed { outcome, settles_resend: !is_error, branch: None }
}

/// Without the arguments and the values of the environment: whoever wrote them may have put a secret
/// there.
impl fmt::Debug for CommandTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let env = self.settings.env.iter().flatten();
        let env: Vec<_> = env.map(|(name, _)| name).collect();
        f.debug_struct("CommandTool")
            .field("program", &self.settings.program)
            .field("args", &self.settings.args.len())
            .field("env", &env)
            .field("dir", &self.settings.dir)
            .field("not_run_exit", &self.settings.not_run_exit)
            .field("answer", &self.settings.answer)
            .field("timeout", &self.settings.timeout)
            .finish_non_exhaustive()
    }
}

/// How the tool's own process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Exited(i32),
    Signalled(i32),
}

/// What the supervisor has said so far.
#[derive(Default)]
struct Report {
    not_spawned: Option<String>,
    /// The tool's process group, while the supervisor has not said that it is ended.
    group: Option<Pid>,
    timed_out: bool,
    end: Option<End>,
    left_behind: bool,
    /// Whether the supervisor has said its last word.
    over: bool,
}

impl Report {
    fn note(&mut self, event: Event) {
        match event {
            Event::Ready => {}
            Event::NotSpawned { errno } => {
                let kind = errno.map(|errno| io::Error::from_raw_os_error(errno).kind());
                self.not_spawned = Some(match kind {
                    Some(kind) => format!("the program or its folder cannot be used: {kind}"),
                    None => "the program cannot be started".to_owned(),
                });
                self.over = true;
            }
            Event::Spawned { pid } => self.group = Pid::from_raw(pid),
            Event::TimedOut => self.timed_out = true,
            Event::Exited { code } => self.end = Some(End::Exited(code)),
            Event::Signalled { signal } => self.end = Some(End::Signalled(signal)),
            Event::Ended { left_behind } => {
                self.left_behind = left_behind;
                self.group = None;
                self.over = true;
            }
        }
    }

    /// Ends the tool's process group where the supervisor has not: it was killed, or is stuck.
    fn end_group(&mut self) {
        if let Some(group) = self.group.take() {
            tracing::warn!("the supervisor of the tool was lost; its process group is ended");
            // It may be gone, which is as good.
            kill_process_group(group, Signal::KILL).ok();
        }
    }
}

/// A supervisor that is ready.
struct Supervised {
    child: Child,
    socket: UnixStream,
    stdout: ChildStdout,
    stderr: ChildStderr,
}

impl Supervised {
    /// Starts a supervisor and waits until it is ready.
    ///
    /// # Cancel safety
    /// Dropping the future, or what it gives, closes the socket, by which the supervisor ends itself
    /// and all that it has started. Tokio reaps it then.
    async fn start() -> io::Result<Self> {
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let mut socket = UnixStream::from_std(ours)?;
        // The command holds the other side of the socket, and goes with this statement: as long as
        // the worker held it, the supervisor's end would go unseen.
        let mut child = own_binary()?
            .arg("supervise")
            // Secrets of the worker are none of the tool's business.
            .env_clear()
            // A Ctrl-C at the worker's terminal drains the worker; the tool's calls are to finish.
            .process_group(0)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        match frames::read_event(&mut socket).await? {
            Some(Event::Ready) => Ok(Self { child, socket, stdout, stderr }),
            Some(_) | None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Lets a supervisor that was stopped see that its socket is closed, and end all that it has
    /// started.
    fn wake(&self) {
        let pid = self.child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(pid) = pid {
            // It may be gone, which is as good.
            kill_process(pid, Signal::CONT).ok();
        }
    }

    /// Has the program run, to the end of the supervisor and of both outputs.
    async fn run(
        &mut self,
        request: &Request,
        input: &[u8],
        report: &mut Report,
        body: &mut Body,
        errors: &mut Errors,
    ) -> io::Result<()> {
        let socket = &mut self.socket;
        let talk = async {
            frames::write_request(socket, request, input).await?;
            while let Some(event) = frames::read_event(socket).await? {
                report.note(event);
            }
            // Without the supervisor there may be nobody who ends what holds the outputs open.
            if report.over { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
        };
        let answer = read(&mut self.stdout, |chunk| body.push(chunk));
        let log = read(&mut self.stderr, |chunk| errors.push(chunk));
        tokio::try_join!(talk, answer, log)?;
        self.child.wait().await?;
        Ok(())
    }
}

/// This very binary: where it has been replaced meanwhile, its file is another version.
fn own_binary() -> io::Result<Command> {
    if cfg!(target_os = "linux") {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("callonce");
        return Ok(command);
    }
    Ok(Command::new(std::env::current_exe()?))
}

/// Reads to the end, whatever is kept of it.
async fn read(mut from: impl AsyncRead + Unpin, mut keep: impl FnMut(&[u8])) -> io::Result<()> {
    let mut chunk = Vec::with_capacity(CHUNK_BYTES);
    while from.read_buf(&mut chunk).await? > 0 {
        keep(&chunk);
        chunk.clear();
    }
    Ok(())
}
