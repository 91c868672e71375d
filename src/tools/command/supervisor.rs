//! The process between a worker and one run of a tool: starts it, keeps its time, ends it with all
//! that it has started, and goes.
//!
//! Its standard input is a socket whose other side only the worker holds: when that closes, nobody
//! waits for the tool any more. Its outputs are the tool's.

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::CommandExt as _;
use std::pin::pin;
use std::process::{ChildStdin, Command, Stdio};

use rustix::process::{Pid, Signal};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::time::{Instant, sleep};

use super::End;
use super::family::{self, Family};
use super::frames::{self, Event, Request};

/// Runs one tool for the worker at the other side of standard input.
///
/// # Errors
/// Standard input is no such socket, or the system refuses what a supervisor needs. No tool has been
/// started then.
pub(crate) async fn supervise() -> io::Result<()> {
    family::adopt()?;
    let mut child_signal = signal(SignalKind::child())?;
    // Whoever stops the worker's service may send these to every process of it. A drain is the
    // worker's to begin, and this process must not go before the tool. Handled instead of ignored:
    // what is ignored would be ignored by the tool too.
    let _handled = [
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
        signal(SignalKind::hangup())?,
    ];
    let socket = StdUnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    let mut socket = UnixStream::from_std(socket)?;
    frames::write_event(&mut socket, Event::Ready).await?;
    let Some((request, input)) = frames::read_request(&mut socket).await? else {
        return Ok(());
    };
    let (pid, stdin) = match spawn(&request) {
        Ok(spawned) => spawned,
        Err(error) => {
            let errno = error.raw_os_error();
            return frames::write_event(&mut socket, Event::NotSpawned { errno }).await;
        }
    };
    let mut family = Family::new(pid);
    watch(&mut family, &mut socket, &mut child_signal, &request, feed(stdin, &input)).await;
    let left_behind = !family.end(&mut child_signal).await;
    tell(&mut socket, Event::Ended { left_behind }).await;
    Ok(())
}

/// Starts the program at the head of a process group of its own; its family reaps it.
fn spawn(request: &Request) -> io::Result<(Pid, ChildStdin)> {
    let mut command = Command::new(&request.program);
    command
        .args(&request.args)
        .env_clear()
        .envs(request.env.iter().map(|(name, value)| (name, value)))
        .process_group(0)
        .stdin(Stdio::piped());
    if let Some(dir) = &request.dir {
        command.current_dir(dir);
    }
    let child = command.spawn()?;
    let pid = Pid::from_child(&child);
    let stdin = child.stdin.expect("it is piped");
    Ok((pid, stdin))
}

/// Gives the tool its arguments. A tool that does not read them to their end has not failed.
async fn feed(stdin: ChildStdin, input: &[u8]) {
    if let Ok(mut stdin) = pipe::Sender::from_owned_fd(stdin.into()) {
        stdin.write_all(input).await.ok();
    }
}

/// Comes back when the tool has ended, or is to be ended at once.
async fn watch(
    family: &mut Family,
    socket: &mut UnixStream,
    child_signal: &mut unix::Signal,
    request: &Request,
    feeding: impl Future<Output = ()>,
) {
    tell(socket, Event::Spawned { pid: family.pid() }).await;
    let (mut feeding, mut fed) = (pin!(feeding), false);
    let (mut alarm, mut timed_out) = (pin!(sleep(request.timeout)), false);
    loop {
        // Also before the first signal: it may have come before this was waited for.
        match family.ended() {
            Some(End::Exited(code)) => return tell(socket, Event::Exited { code }).await,
            Some(End::Signalled(signal)) => return tell(socket, Event::Signalled { signal }).await,
            None => {}
        }
        let mut byte = [0];
        tokio::select! {
            biased;
            _ = child_signal.recv() => {}
            // The worker has no more to say: its side is closed.
            _ = socket.read(&mut byte) => return,
            () = &mut alarm => {
                if timed_out {
                    return;
                }
                timed_out = true;
                tell(socket, Event::TimedOut).await;
                family.signal(Signal::TERM);
                alarm.as_mut().reset(Instant::now() + request.grace);
            }
            () = &mut feeding, if !fed => fed = true,
        }
    }
}

/// Tells the worker; one that is gone is noticed where it is waited for.
async fn tell(socket: &mut UnixStream, event: Event) {
    frames::write_event(socket, event).await.ok();
}
