//! `dead list`: looks at the jobs that no redelivery will mend.

use std::io;

use clap::{Args, Subcommand};
use serde::Serialize;

use super::table::{cell, print};
use super::{CliError, Global, key};
use crate::broker::{DeadLetter, Topology, peek_dead};
use crate::call::job::{Job, Limits};

/// Looks at the dead queue.
#[derive(Debug, Args)]
pub(super) struct DeadCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Lists the oldest jobs of the dead queue with their reasons; takes none out
    #[command(after_help = "Example:\n  callonce dead list --reason bad_job")]
    List {
        /// Only jobs that are there for this reason
        #[arg(long, env = "CALLONCE_REASON")]
        reason: Option<String>,
        /// Only jobs of this tool
        #[arg(long, env = "CALLONCE_TOOL")]
        tool: Option<String>,
        /// How many to look at, from the oldest
        #[arg(long, env = "CALLONCE_LIMIT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
    },
}

/// A dead job, as it is printed.
#[derive(Debug, Serialize)]
struct Dead {
    reason: String,
    tool: Option<String>,
    key: Option<String>,
    died_at: Option<String>,
    answered: Option<String>,
    detail: Option<String>,
}

impl Dead {
    fn of(letter: &DeadLetter, limits: &Limits) -> Self {
        let origin = &letter.origin;
        let (tool, key) = match Job::decode(&letter.body, None, None, limits) {
            Ok(job) => (Some(job.name.as_str().to_owned()), Some(job.key())),
            Err(bad) => (bad.name.map(|name| name.as_str().to_owned()), bad.key),
        };
        Self {
            // What the broker itself put there carries no reason of ours.
            reason: origin.reason.clone().unwrap_or_else(|| "broker".to_owned()),
            tool,
            key: key.map(|key| key.to_string()),
            died_at: letter.published_at.map(|at| at.to_string()),
            answered: origin.answered.clone(),
            detail: origin.detail.clone(),
        }
    }
}

impl DeadCommand {
    pub(super) async fn run(self, global: &Global) -> Result<(), CliError> {
        let Action::List { reason, tool, limit } = self.action;
        let config = global.start()?;
        let topology = Topology::new(&global.prefix, config.retry_delays.0.clone())?;
        let settings = crate::worker::broker_settings(&config, global.amqp_url()?);
        let looked_at = usize::try_from(limit).unwrap_or(usize::MAX);
        let (waiting, letters) = peek_dead(&settings, &topology, looked_at).await?;
        if usize::try_from(waiting).is_ok_and(|waiting| waiting > letters.len()) {
            eprintln!("looked at {} of {waiting}; raise --limit for more", letters.len());
        }
        let limits = key::limits(global)?;
        let wanted = |dead: &Dead| {
            reason.as_ref().is_none_or(|reason| *reason == dead.reason)
                && tool.as_ref().is_none_or(|tool| Some(tool) == dead.tool.as_ref())
        };
        let dead: Vec<Dead> =
            letters.iter().map(|letter| Dead::of(letter, &limits)).filter(wanted).collect();
        show(&dead, global.json).map_err(CliError::output)
    }
}

fn show(dead: &[Dead], json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if json {
        for entry in dead {
            serde_json::to_writer(&mut out, entry)?;
            io::Write::write_all(&mut out, b"\n")?;
        }
        return Ok(());
    }
    let text = |text: &Option<String>| text.as_deref().map_or_else(|| "-".to_owned(), cell);
    let head = ["reason", "tool", "key", "died", "answered", "detail"].map(str::to_owned);
    let rows = dead.iter().map(|entry| {
        [
            cell(&entry.reason),
            text(&entry.tool),
            text(&entry.key),
            text(&entry.died_at),
            text(&entry.answered),
            text(&entry.detail),
        ]
    });
    print(&mut out, &std::iter::once(head).chain(rows).collect::<Vec<_>>())
}
