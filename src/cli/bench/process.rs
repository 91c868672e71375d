//! What the kernel tells of a process: how much of the CPU it has had, and how much memory.
//!
//! Read from `/proc`; on a system without one, and of a process that is not there, nothing is known.

use std::fs;
use std::time::Duration;

/// A process as `/proc/PID/stat` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) name: String,
    pub(super) has_ended: bool,
    pub(super) parent: u32,
    /// The CPU that it has had, in user and kernel mode.
    pub(super) cpu: Duration,
    /// The same of its children that have ended and been waited for.
    pub(super) children_cpu: Duration,
}

impl Process {
    pub(super) fn read(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Self::parse(&stat, rustix::param::clock_ticks_per_second())
    }

    fn parse(stat: &str, ticks_per_second: u64) -> Option<Self> {
        // The name is in parentheses and may hold some itself.
        let (before, after) = stat.rsplit_once(") ")?;
        let (_, name) = before.split_once('(')?;
        let fields: Vec<&str> = after.split_ascii_whitespace().collect();
        // proc(5) counts from 1, and the state after the name is the third.
        let field = |number: usize| fields.get(number - 3);
        let ticks = |number| field(number)?.parse::<u64>().ok();
        let cpu = |user, kernel| {
            let ticks = ticks(user)?.checked_add(ticks(kernel)?)?;
            Some(Duration::from_micros(
                ticks.checked_mul(1_000_000)?.checked_div(ticks_per_second)?,
            ))
        };
        Some(Self {
            name: name.to_owned(),
            has_ended: matches!(*field(3)?, "Z" | "X"),
            parent: field(4)?.parse().ok()?,
            cpu: cpu(14, 15)?,
            children_cpu: cpu(16, 17)?,
        })
    }
}

/// The most memory that a process has had at a time.
pub(super) fn peak_memory_bytes(pid: u32) -> Option<u64> {
    kibibytes(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "VmHWM")
}

/// A field of `/proc/PID/status` or `/proc/meminfo`, in bytes.
pub(super) fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    rest.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The server's processes on this machine, where they are on this machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Servers {
    postmaster: Option<u32>,
    broker: Option<u32>,
}

/// The CPU that the servers have had so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ServersCpu {
    pub(super) postgres: Option<Duration>,
    pub(super) broker: Option<Duration>,
}

impl ServersCpu {
    /// What was had between this moment and a later one.
    pub(super) fn until(self, later: Self) -> Self {
        let between = |(before, after): (Duration, Duration)| after.saturating_sub(before);
        Self {
            postgres: self.postgres.zip(later.postgres).map(between),
            broker: self.broker.zip(later.broker).map(between),
        }
    }
}

impl Servers {
    /// `backend` is the process of a session as its server counts them: elsewhere, or in a container,
    /// that is no process here or another one.
    pub(super) fn find(backend: i32, broker: Option<u32>) -> Self {
        let is_postgres = |process: &Process| process.name.starts_with("postgres");
        let backend = u32::try_from(backend).ok().and_then(Process::read).filter(is_postgres);
        let postmaster = backend.map(|backend| backend.parent);
        // A process that a wrapper waits for has another number than the wrapper.
        let is_broker =
            |pid: &u32| Process::read(*pid).is_some_and(|found| found.name.starts_with("beam"));
        let is_postmaster =
            |pid: &u32| Process::read(*pid).is_some_and(|found| is_postgres(&found));
        Self { postmaster: postmaster.filter(is_postmaster), broker: broker.filter(is_broker) }
    }

    pub(super) fn cpu(&self) -> ServersCpu {
        ServersCpu {
            postgres: self.postmaster.and_then(family_cpu),
            broker: self.broker.and_then(Process::read).map(|broker| broker.cpu),
        }
    }
}

/// The CPU of a process, of its living children, and of those that it has waited for.
fn family_cpu(parent: u32) -> Option<Duration> {
    const LOOKS_MAX: usize = 10;
    let mut before = Process::read(parent)?;
    for _ in 0..LOOKS_MAX {
        let pids = fs::read_dir("/proc").ok()?.flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let living = pids.filter_map(Process::read).filter(|process| process.parent == parent);
        let living: Duration = living.map(|child| child.cpu).sum();
        let after = Process::read(parent)?;
        // A child that ended while the others were looked at would be missed, or be counted twice.
        if after.children_cpu == before.children_cpu {
            return Some(after.cpu + after.children_cpu + living);
        }
        before = after;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str =
        "4711 (a (b) c) S 42 4711 4711 0 -1 4194560 1 2 3 4 250 50 700 300 20 0 1 0 99";

    #[test]
    fn a_process_is_read_whatever_its_name_is() {
        let process = Process::parse(STAT, 100).unwrap();
        assert_eq!((&*process.name, process.parent, process.has_ended), ("a (b) c", 42, false));
        assert_eq!(process.cpu, Duration::from_secs(3));
        assert_eq!(process.children_cpu, Duration::from_secs(10));
        assert!(Process::parse(&STAT.replace(") S ", ") Z "), 100).unwrap().has_ended);
    }

    #[test]
    fn what_is_no_process_is_none() {
        for text in ["", "1 (a) S", "1 (a) S 2 3", "no parentheses", &STAT.replace("250", "x")] {
            assert_eq!(Process::parse(text, 100), None, "{text}");
        }
        assert_eq!(Process::parse(STAT, 0), None);
    }

    #[test]
    fn memory_is_read_in_bytes() {
        let text = "Name:\tcallonce\nVmHWM:\t   41000 kB\nVmRSS:\t  1 kB\n";
        assert_eq!(kibibytes(text, "VmHWM"), Some(41_000 * 1024));
        assert_eq!(kibibytes(text, "VmH"), None);
        assert_eq!(kibibytes(text, "Name"), None);
    }

    #[test]
    fn a_backend_elsewhere_is_not_taken_for_one_here() {
        let here = i32::try_from(std::process::id()).unwrap();
        let own = std::process::id();
        for servers in [Servers::find(here, Some(own)), Servers::find(-1, None)] {
            assert!(servers.cpu().postgres.is_none() && servers.cpu().broker.is_none());
        }
    }
}
