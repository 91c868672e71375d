//! One benchmark under way: which measure is made how, and what must hold after it.

use std::path::PathBuf;

use clap::Args;
use serde_json::Value;

use super::bounds::Bounds;
use super::downstream::Downstream;
use super::jobs::{Series, TOOL};
use super::latency;
use super::machine::Machine;
use super::measure::Measure;
use super::place::Place;
use super::process::Servers;
use super::report::{Report, Sample};
use super::throughput::Run;
use super::worker::Settings;
use super::{BenchError, show_progress};
use crate::broker::broker_version;
use crate::ledger::Held;

/// What one statement a call can do in the time that it takes batches to do all.
const PER_CALL_SHARE: u64 = 5;
/// Calls that a tool with a wait has under way.
const WAITING_PREFETCH: u16 = 250;

/// Flags of both benchmarks.
#[derive(Debug, Args)]
pub(super) struct Shared {
    /// Jobs a figure; with one statement a call a fifth of them [default: 100000, with --short 10000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(10..))]
    jobs: Option<u32>,
    /// How often each figure is measured; the median is shown, with the least and the most
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) runs: u32,
    /// Deliveries that a worker holds, and calls that it runs at a time
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u16).range(1..))]
    prefetch: u16,
    /// Few jobs and calls, to see that all of it works
    #[arg(long)]
    short: bool,
    /// The broker's process on this machine, to see the CPU that it has
    #[arg(long, env = "CALLONCE_BROKER_PID", value_name = "PID")]
    broker_pid: Option<u32>,
}

impl Shared {
    fn jobs(&self) -> u64 {
        self.jobs.map_or(if self.short { 10_000 } else { 100_000 }, u64::from)
    }

    /// Calls one after another.
    fn calls(&self) -> u64 {
        if self.short { 200 } else { 2_000 }
    }
}

/// A benchmark on its place.
pub(super) struct Session<'a> {
    pub(super) place: &'a Place,
    pub(super) machine: Machine,
    shared: &'a Shared,
    servers: Servers,
    downstream: Option<Downstream>,
    series: u64,
    /// The calls that the ledger holds, all of them completed.
    known: Option<Series>,
}

/// A figure for a ledger of some size.
pub(super) struct Grown {
    pub(super) rows: i64,
    pub(super) database_bytes: i64,
    pub(super) line: String,
    pub(super) json: Value,
}

impl<'a> Session<'a> {
    pub(super) async fn begin(place: &'a Place, shared: &'a Shared) -> Result<Self, BenchError> {
        let server = place.ledger.server().await?;
        let rabbitmq = broker_version(&place.broker).await;
        Ok(Self {
            place,
            machine: Machine::here(server.version, rabbitmq),
            shared,
            servers: Servers::find(server.backend, shared.broker_pid),
            downstream: None,
            series: 0,
            known: None,
        })
    }

    /// How many calls a measure makes.
    pub(super) fn calls(&self, measure: Measure) -> u64 {
        match measure {
            Measure::UniquePerCall => (self.shared.jobs() / PER_CALL_SHARE).max(1),
            Measure::Latency | Measure::LatencyPerCall => self.shared.calls(),
            Measure::Start => 1,
            Measure::BoundLedger
            | Measure::BoundPublish
            | Measure::BoundConsume
            | Measure::Unique
            | Measure::Replayed
            | Measure::Repeated
            | Measure::Live
            | Measure::Http
            | Measure::Wait1
            | Measure::Wait2 => self.shared.jobs(),
        }
    }

    /// Makes one measure once.
    pub(super) async fn measure(&mut self, measure: Measure) -> Result<Sample, BenchError> {
        show_progress(measure.name(), "begins");
        if measure != Measure::Replayed {
            self.known = None;
            self.place.ledger.empty().await?;
        }
        let calls = self.calls(measure);
        match measure {
            Measure::BoundLedger => {
                let series = self.next_series(calls);
                let sample = self.bounds().ledger(&series).await?;
                self.check(measure.name(), calls, 0).await?;
                Ok(sample)
            }
            Measure::BoundPublish => {
                let series = self.next_series(calls);
                self.bounds().publish(&series).await
            }
            Measure::BoundConsume => {
                let series = self.next_series(calls);
                self.bounds().consume(&series).await
            }
            Measure::Unique => {
                let series = self.next_series(calls);
                let sample = self.prefilled(measure, &series).await?;
                self.known = Some(series);
                Ok(sample)
            }
            Measure::UniquePerCall | Measure::Http | Measure::Wait1 | Measure::Wait2 => {
                let series = self.next_series(calls);
                self.prefilled(measure, &series).await
            }
            Measure::Repeated => {
                let series = self.next_series(calls).with_repeats();
                self.prefilled(measure, &series).await
            }
            Measure::Replayed => {
                let series = self.known_calls(calls).await?;
                self.prefilled(measure, &series).await
            }
            Measure::Live => {
                let series = self.next_series(calls);
                let registry = self.registry(measure).await?;
                let sample = self.run(measure, &registry).live(&series).await?;
                self.check(measure.name(), series.calls(), 0).await?;
                Ok(sample)
            }
            Measure::Latency | Measure::LatencyPerCall => {
                let series = self.next_series(latency::with_warm_up(calls));
                let registry = self.registry(measure).await?;
                let settings = self.settings(measure);
                let sample = latency::latency(self.place, &registry, settings, &series).await?;
                self.check(measure.name(), series.calls(), 0).await?;
                Ok(sample)
            }
            Measure::Start => {
                let series = self.next_series(calls);
                let registry = self.registry(measure).await?;
                let settings = self.settings(measure);
                let sample = latency::start(self.place, &registry, settings, &series).await?;
                self.check(measure.name(), series.calls(), 0).await?;
                Ok(sample)
            }
        }
    }

    /// Measures `unique` on the ledger as it is.
    pub(super) async fn grown(&mut self) -> Result<Grown, BenchError> {
        let rows = self.place.ledger.held().await?.rows;
        let database_bytes = self.place.ledger.database_bytes().await?;
        let registry = self.registry(Measure::Unique).await?;
        let mut report = Report::new(self.machine.clone());
        for _ in 0..self.shared.runs {
            let series = self.next_series(self.shared.jobs());
            let before = self.place.ledger.held().await?.rows;
            let sample = self.run(Measure::Unique, &registry).prefilled(&series).await?;
            self.check("growth", series.calls(), before).await?;
            report.add(Measure::Unique, series.jobs, sample);
        }
        let (line, json) = (report.line(Measure::Unique), report.json(Measure::Unique));
        Ok(Grown { rows, database_bytes, line, json })
    }

    async fn prefilled(&mut self, measure: Measure, series: &Series) -> Result<Sample, BenchError> {
        let registry = self.registry(measure).await?;
        let sample = self.run(measure, &registry).prefilled(series).await?;
        self.check(measure.name(), series.calls(), 0).await?;
        Ok(sample)
    }

    /// Calls that are in the ledger: those of the measure before, or made now.
    async fn known_calls(&mut self, calls: u64) -> Result<Series, BenchError> {
        if let Some(known) = self.known.take() {
            return Ok(known);
        }
        self.place.ledger.empty().await?;
        let series = self.next_series(calls);
        self.prefilled(Measure::Unique, &series).await?;
        Ok(series)
    }

    fn next_series(&mut self, jobs: u64) -> Series {
        self.series += 1;
        Series::new(self.series, jobs)
    }

    fn bounds(&self) -> Bounds<'a> {
        Bounds { place: self.place, servers: self.servers, prefetch: self.shared.prefetch }
    }

    fn run<'r>(&self, measure: Measure, registry: &'r std::path::Path) -> Run<'r>
    where
        'a: 'r,
    {
        Run {
            place: self.place,
            servers: self.servers,
            name: measure.name(),
            registry,
            workers: if measure == Measure::Wait2 { 2 } else { 1 },
            settings: self.settings(measure),
        }
    }

    fn settings(&self, measure: Measure) -> Settings {
        let prefetch = match measure {
            Measure::Wait1 | Measure::Wait2 => WAITING_PREFETCH,
            Measure::BoundLedger
            | Measure::BoundPublish
            | Measure::BoundConsume
            | Measure::UniquePerCall
            | Measure::Unique
            | Measure::Replayed
            | Measure::Repeated
            | Measure::Live
            | Measure::Http
            | Measure::LatencyPerCall
            | Measure::Latency
            | Measure::Start => self.shared.prefetch,
        };
        let per_call = matches!(measure, Measure::UniquePerCall | Measure::LatencyPerCall);
        Settings { prefetch, per_call }
    }

    /// A registry with the one tool that a measure calls.
    async fn registry(&mut self, measure: Measure) -> Result<PathBuf, BenchError> {
        let executor = match measure {
            Measure::Http => format!("http = {{ url = {:?} }}", self.downstream().await?.url()),
            Measure::Wait1 | Measure::Wait2 => "idle = { wait = \"20ms\" }".to_owned(),
            Measure::BoundLedger
            | Measure::BoundPublish
            | Measure::BoundConsume
            | Measure::UniquePerCall
            | Measure::Unique
            | Measure::Replayed
            | Measure::Repeated
            | Measure::Live
            | Measure::LatencyPerCall
            | Measure::Latency
            | Measure::Start => "idle = { wait = \"0s\" }".to_owned(),
        };
        let at_a_time = self.settings(measure).prefetch;
        let text = format!(
            "[tools.{TOOL}]\neffect = \"keyed_write\"\ninput_schema = {{ type = \"object\" }}\n\
             max_concurrency = {at_a_time}\n{executor}\n"
        );
        self.place.write(&format!("{}.toml", measure.name()), &text)
    }

    async fn downstream(&mut self) -> Result<&Downstream, BenchError> {
        let downstream = match self.downstream.take() {
            Some(downstream) => downstream,
            None => Downstream::start()
                .await
                .map_err(BenchError::io("a server on loopback cannot be started"))?,
        };
        Ok(self.downstream.insert(downstream))
    }

    /// A figure of calls that were lost, or made twice, is none.
    async fn check(
        &self,
        measure: &'static str,
        calls: u64,
        before: i64,
    ) -> Result<(), BenchError> {
        let expected = before.saturating_add(i64::try_from(calls).unwrap_or(i64::MAX));
        let held = self.place.ledger.held().await?;
        if held == (Held { rows: expected, completed_at_once: expected }) {
            return Ok(());
        }
        Err(BenchError::Rows { measure, held, expected })
    }
}
