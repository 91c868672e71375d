//! `bench`: how fast an installation is.
//!
//! Measured with workers of this binary on the user's own servers, in a schema and in queues that are
//! made for it and removed at the end, also after an error or a signal: nobody's data are touched.
//! Figures go to standard output, and what could not be seen is a dash.

mod bounds;
mod downstream;
mod error;
mod growth;
mod jobs;
mod latency;
mod machine;
mod measure;
mod place;
mod process;
mod report;
mod session;
mod throughput;
mod worker;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum as _};
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{CliError, Global};
pub use error::BenchError;
use growth::Growth;
use measure::Measure;
use place::Place;
use report::Report;
use session::{Session, Shared};

/// Measures how fast this installation is, on a schema and queues of its own.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  callonce bench --short\n  callonce bench --runs 5 --only unique,unique.per_call,latency --table bench.md"
)]
pub(super) struct BenchCommand {
    #[command(subcommand)]
    other: Option<Other>,
    #[command(flatten)]
    shared: Shared,
    /// Measure these figures only
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    only: Vec<Measure>,
    /// Write all figures to a file, as a table in Markdown
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
    /// Fail where `unique` is not so many times as fast as `unique.per_call`
    #[arg(long, value_name = "TIMES")]
    at_least_per_call: Option<f64>,
}

#[derive(Debug, Subcommand)]
enum Other {
    /// Measures what the ledger's size costs
    Growth(Growth),
}

impl BenchCommand {
    pub(super) async fn run(self, global: &Global) -> Result<(), CliError> {
        let selected = self.selected()?;
        let config = global.start()?;
        let mut signals = Signals::listen()?;
        let (database_url, amqp_url) = (global.database_url()?, global.amqp_url()?);
        let mut place = Place::find(config, database_url, amqp_url, &global.prefix).await?;
        let ran = tokio::select! {
            ran = self.run_in(&mut place, &selected, global.json) => ran,
            () = signals.next() => Err(BenchError::Interrupted.into()),
        };
        // Whatever became of it; a second signal leaves what is there.
        let removed = tokio::select! {
            removed = place.remove() => removed,
            () = signals.next() => Err(BenchError::Interrupted),
        };
        ran.and(removed.map_err(CliError::from))
    }

    async fn run_in(
        &self,
        place: &mut Place,
        selected: &BTreeSet<Measure>,
        json: bool,
    ) -> Result<(), CliError> {
        place.make().await?;
        let shared = match &self.other {
            Some(Other::Growth(growth)) => &growth.shared,
            None => &self.shared,
        };
        let mut session = Session::begin(place, shared).await?;
        print(&match json {
            true => json!({ "machine": session.machine.json() }).to_string(),
            false => session.machine.text(),
        })?;
        match &self.other {
            Some(Other::Growth(growth)) => growth.run(&mut session, json).await,
            None => self.measure(&mut session, selected, json).await,
        }
    }

    /// Measures everything once, and all of it again: what changes on the machine meanwhile falls on
    /// all figures alike.
    async fn measure(
        &self,
        session: &mut Session<'_>,
        selected: &BTreeSet<Measure>,
        json: bool,
    ) -> Result<(), CliError> {
        let mut report = Report::new(session.machine.clone());
        for run in 1..=self.shared.runs {
            for measure in selected {
                let sample = session.measure(*measure).await?;
                report.add(*measure, session.calls(*measure), sample);
                let line = report.line(*measure);
                match run == self.shared.runs {
                    true if json => print(&report.json(*measure).to_string())?,
                    true => print(&line)?,
                    false => eprintln!("run {run} of {}: {line}", self.shared.runs),
                }
            }
        }
        if let Some(table) = &self.table {
            std::fs::write(table, report.table())
                .map_err(BenchError::io("the table cannot be written"))?;
        }
        self.judge(&report)
    }

    /// Whether batches are as much faster as they have to be.
    fn judge(&self, report: &Report) -> Result<(), CliError> {
        let Some(expected) = self.at_least_per_call else { return Ok(()) };
        let rates =
            report.calls_per_s(Measure::Unique).zip(report.calls_per_s(Measure::UniquePerCall));
        let found = rates.map_or(f64::NAN, |(unique, per_call)| unique / per_call);
        if found >= expected { Ok(()) } else { Err(BenchError::TooSlow { found, expected }.into()) }
    }

    /// What is to be measured, in the order of the measures.
    fn selected(&self) -> Result<BTreeSet<Measure>, CliError> {
        let all = Measure::value_variants().iter().copied();
        let selected: BTreeSet<Measure> = match self.only.is_empty() {
            true => all.collect(),
            false => self.only.iter().copied().collect(),
        };
        let both = [Measure::Unique, Measure::UniquePerCall];
        if self.at_least_per_call.is_some() && !both.iter().all(|one| selected.contains(one)) {
            return Err(CliError::Missing(
                "--at-least-per-call compares unique with unique.per_call: --only must name both",
            ));
        }
        Ok(selected)
    }
}

/// SIGINT and SIGTERM.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn listen() -> Result<Self, BenchError> {
        let listen = |kind| signal(kind).map_err(BenchError::io("signals cannot be listened for"));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

fn print(line: &str) -> Result<(), CliError> {
    writeln!(std::io::stdout().lock(), "{line}").map_err(CliError::output)
}

/// Says on a terminal how far it is; each word takes the place of the one before.
fn show_progress(what: &str, progress: &str) {
    use std::io::IsTerminal as _;
    let mut err = std::io::stderr().lock();
    if err.is_terminal() {
        // A terminal that is gone is no reason to stop.
        write!(err, "\r\x1b[K{what}: {progress}\r").ok();
        err.flush().ok();
    }
}
