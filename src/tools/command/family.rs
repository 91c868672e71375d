//! A tool's process and whatever it has started: watched, ended and reaped.

use std::io;
use std::time::Duration;

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process_group, wait, waitid,
};
use tokio::time::{Instant, timeout};

use super::{End, REAP_MAX};

/// How long to wait for a killed child's end before all are looked at again: a child of the killed
/// one becomes ours without a signal.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Makes this process the parent of every descendant whose own parent ends.
#[cfg(target_os = "linux")]
pub(super) fn adopt() -> io::Result<()> {
    use rustix::process::{getpid, set_child_subreaper};
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Elsewhere what has left the tool's process group and lost its parent is nobody's.
#[cfg(not(target_os = "linux"))]
pub(super) fn adopt() -> io::Result<()> {
    Ok(())
}

/// The processes of one tool, all of them descendants of this one.
pub(super) struct Family {
    /// The tool's own process, which leads its group.
    main: Pid,
    /// Whether its number still stands for its group: until it is reaped.
    leads: bool,
}

impl Family {
    pub(super) fn new(main: Pid) -> Self {
        Self { main, leads: true }
    }

    pub(super) fn pid(&self) -> i32 {
        self.main.as_raw_pid()
    }

    /// How the tool's own process has ended, if it has; reaps what else has.
    pub(super) fn ended(&mut self) -> Option<End> {
        // Only looked at, so that the number stays taken until the group is ended by it.
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if let Ok(Some(status)) = waitid(WaitId::Pid(self.main), look) {
            return end(status.exit_status(), status.terminating_signal());
        }
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid == self.main {
                self.leads = false;
                return end(status.exit_status(), status.terminating_signal());
            }
        }
        None
    }

    /// Sends a signal to the tool's process group.
    pub(super) fn signal(&self, signal: Signal) {
        if self.leads {
            // Whatever it says, the end of the processes is what is waited for.
            kill_process_group(self.main, signal).ok();
        }
    }

    /// Kills and reaps every process until none is left; false where some would not go.
    pub(super) async fn end(mut self, child_signal: &mut tokio::signal::unix::Signal) -> bool {
        self.signal(Signal::KILL);
        self.leads = false;
        let give_up = Instant::now() + REAP_MAX;
        loop {
            loop {
                match wait(WaitOptions::NOHANG) {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    // No child: so no descendant either.
                    Err(_) => return true,
                }
            }
            if Instant::now() >= give_up {
                return false;
            }
            kill_children();
            // Whether a signal came or not, all are looked at again.
            timeout(LOOK_AGAIN, child_signal.recv()).await.ok();
        }
    }
}

fn end(code: Option<i32>, signal: Option<i32>) -> Option<End> {
    code.map(End::Exited).or(signal.map(End::Signalled))
}

/// Kills the children of this process, and no deeper descendant: what is our own child stays so until
/// it is reaped here, so that its number cannot have become another process's. Its children are ours
/// when it is gone.
#[cfg(target_os = "linux")]
fn kill_children() {
    use rustix::process::{getpid, kill_process};
    // Without /proc this binary could not have been started again.
    let Ok(entries) = std::fs::read_dir("/proc") else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(stat) = std::fs::read(entry.path().join("stat")) else { continue };
        if parent(&stat) == Some(getpid().as_raw_pid())
            && let Some(pid) = Pid::from_raw(pid)
        {
            // One that is gone, or may not be killed, is seen by what is left to reap.
            kill_process(pid, Signal::KILL).ok();
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn kill_children() {}

/// The parent in a process's `stat` (`proc_pid_stat(5)`): the second field after the name, which stands
/// in parentheses and may hold anything.
#[cfg(target_os = "linux")]
fn parent(stat: &[u8]) -> Option<i32> {
    let name_ends = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(name_ends + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_parent_is_found_whatever_the_name_of_the_process() {
        assert_eq!(parent(b"71 (sh) S 70 71 70 0 -1 4194560"), Some(70));
        assert_eq!(parent(b"71 (a) S 1 ) (b)) R 8 71"), Some(8));
        assert_eq!(parent(b"71 (\xff\n) Z 9 1"), Some(9));
        assert_eq!(parent(b""), None);
        let own = std::fs::read("/proc/self/stat").unwrap();
        assert_eq!(parent(&own), Some(std::os::unix::process::parent_id() as i32));
    }
}
