//! What was measured, and how it is shown: a line a figure, JSON, and the table that the README quotes.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::machine::Machine;
use super::measure::Measure;

/// What one run of a measure has shown; none is what could not be seen.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sample {
    pub(super) calls_per_s: Option<f64>,
    pub(super) p50_ms: Option<f64>,
    pub(super) p99_ms: Option<f64>,
    pub(super) to_reply_ms: Option<f64>,
    pub(super) commits_per_call: Option<f64>,
    pub(super) worker_cpu_us: Option<f64>,
    pub(super) postgres_cpu_us: Option<f64>,
    pub(super) broker_cpu_us: Option<f64>,
    pub(super) memory_mib: Option<f64>,
}

/// The runs of one value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Spread {
    fn of(samples: &[Sample], value: impl Fn(&Sample) -> Option<f64>) -> Option<Self> {
        let mut values: Vec<f64> = samples.iter().filter_map(value).collect();
        values.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let (lower, upper) = (values.get((values.len() - 1) / 2)?, values.get(values.len() / 2)?);
        Some(Self { median: (lower + upper) / 2.0, min, max })
    }

    fn json(self) -> Value {
        json!({ "median": self.median, "min": self.min, "max": self.max })
    }

    /// The median, and the others where there is more than one.
    fn show(self, digits: usize) -> String {
        let Self { median, min, max } = self;
        if min == max {
            return format!("{median:.digits$}");
        }
        format!("{median:.digits$} ({min:.digits$} to {max:.digits$})")
    }
}

/// The value below which `percent` of the sorted values lie (nearest rank).
pub(super) fn percentile(sorted: &[f64], percent: usize) -> Option<f64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

/// All that was measured so far.
pub(super) struct Report {
    machine: Machine,
    figures: BTreeMap<Measure, (u64, Vec<Sample>)>,
}

/// One figure, with what it is worth beside the others.
struct Figure<'a> {
    measure: Measure,
    calls: u64,
    samples: &'a [Sample],
    report: &'a Report,
}

impl Report {
    pub(super) fn new(machine: Machine) -> Self {
        Self { machine, figures: BTreeMap::new() }
    }

    pub(super) fn add(&mut self, measure: Measure, calls: u64, sample: Sample) {
        self.figures.entry(measure).or_insert_with(|| (calls, Vec::new())).1.push(sample);
    }

    fn figure(&self, measure: Measure) -> Option<Figure<'_>> {
        let (calls, samples) = self.figures.get(&measure)?;
        Some(Figure { measure, calls: *calls, samples, report: self })
    }

    pub(super) fn calls_per_s(&self, measure: Measure) -> Option<f64> {
        self.figure(measure)?.value(|sample| sample.calls_per_s)
    }

    /// A figure as one line of text.
    pub(super) fn line(&self, measure: Measure) -> String {
        self.figure(measure).map(|figure| figure.line()).unwrap_or_default()
    }

    /// A figure as JSON.
    pub(super) fn json(&self, measure: Measure) -> Value {
        self.figure(measure).map_or(Value::Null, |figure| figure.json())
    }

    /// All figures as a table in Markdown, with where they were measured.
    pub(super) fn table(&self) -> String {
        let heads = "\n\n| figure | result | runs | × per-call | of ledger, publish, consume alone | \
                     CPU µs a call: worker + Postgres + broker | of the ceiling | commits a call | \
                     worker MiB |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
        let rows: String =
            self.figures.keys().filter_map(|measure| Some(self.figure(*measure)?.row())).collect();
        format!("{}{heads}{rows}", self.machine.text())
    }
}

impl Figure<'_> {
    fn spread(&self, value: impl Fn(&Sample) -> Option<f64>) -> Option<Spread> {
        Spread::of(self.samples, value)
    }

    fn value(&self, value: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
        self.spread(value).map(|spread| spread.median)
    }

    fn cpu_us(&self) -> [Option<f64>; 3] {
        [
            self.value(|sample| sample.worker_cpu_us),
            self.value(|sample| sample.postgres_cpu_us),
            self.value(|sample| sample.broker_cpu_us),
        ]
    }

    /// How many calls a second this machine's cores could do at this price, if nothing ever waited.
    fn ceiling(&self) -> Option<f64> {
        let price: Option<f64> = self.cpu_us().into_iter().sum();
        // The clock that CPU is counted by ticks a hundred times a second: a short run may cost none.
        let price = price.filter(|price| *price > 0.0)?;
        Some(self.report.machine.cores as f64 * 1e6 / price)
    }

    fn of_ceiling(&self) -> Option<f64> {
        Some(self.value(|sample| sample.calls_per_s)? / self.ceiling()?)
    }

    /// Beside the ledger alone, publishing alone and consuming alone.
    fn of_bounds(&self) -> [Option<f64>; 3] {
        [Measure::BoundLedger, Measure::BoundPublish, Measure::BoundConsume].map(|bound| {
            let own = self.value(|sample| sample.calls_per_s)?;
            let bound = self.report.calls_per_s(bound)?;
            self.measure.has_bounds().then_some(own / bound)
        })
    }

    /// How many times as fast it is as with one statement a call.
    fn of_per_call(&self) -> Option<f64> {
        let other = self.report.figure(self.measure.per_call()?)?;
        let rate = |figure: &Figure<'_>| figure.value(|sample| sample.calls_per_s);
        let time = |figure: &Figure<'_>| figure.value(|sample| sample.p50_ms);
        match (rate(self), rate(&other)) {
            (Some(own), Some(other)) => Some(own / other),
            (None, _) | (_, None) => Some(time(&other)? / time(self)?),
        }
    }

    /// The figure itself.
    fn result(&self) -> String {
        let show = |value: fn(&Sample) -> Option<f64>, digits| {
            self.spread(value).map(|spread| spread.show(digits))
        };
        if let Some(rate) = show(|sample| sample.calls_per_s, 0) {
            return format!("{rate} calls/s");
        }
        if let Some(time) = show(|sample| sample.to_reply_ms, 0) {
            return format!("{time} ms");
        }
        let (p50, p99) = (show(|sample| sample.p50_ms, 2), show(|sample| sample.p99_ms, 2));
        format!("p50 {} ms, p99 {} ms", dash(p50), dash(p99))
    }

    fn line(&self) -> String {
        let [worker, postgres, broker] = self.cpu_us().map(|cpu| number(cpu, 0));
        let [ledger, publish, consume] = self.of_bounds().map(|share| number(share, 2));
        let mut line = format!("{:<16}  {}", self.measure.name(), self.result());
        if self.measure.per_call().is_some() {
            line += &format!("; {} times per-call", number(self.of_per_call(), 2));
        }
        if self.measure.has_bounds() {
            line +=
                &format!("; {ledger} of bound.ledger, {publish} of publish, {consume} of consume");
        }
        if self.value(|sample| sample.calls_per_s).is_some() {
            line += &format!(
                "; CPU {worker} + {postgres} + {broker} µs a call (worker, Postgres, broker), \
                 ceiling {}, {} of it; {} commits a call; {} MiB",
                number(self.ceiling(), 0),
                number(self.of_ceiling(), 2),
                number(self.value(|sample| sample.commits_per_call), 3),
                number(self.value(|sample| sample.memory_mib), 0),
            );
        }
        line
    }

    fn json(&self) -> Value {
        let spread = |value: fn(&Sample) -> Option<f64>| self.spread(value).map(Spread::json);
        let [worker, postgres, broker] = self.cpu_us();
        let [ledger, publish, consume] = self.of_bounds();
        json!({
            "figure": self.measure.name(),
            "calls": self.calls,
            "runs": self.samples.len(),
            "calls_per_s": spread(|sample| sample.calls_per_s),
            "p50_ms": spread(|sample| sample.p50_ms),
            "p99_ms": spread(|sample| sample.p99_ms),
            "to_reply_ms": spread(|sample| sample.to_reply_ms),
            "times_per_call": self.of_per_call(),
            "of_bound": { "ledger": ledger, "publish": publish, "consume": consume },
            "cpu_us_per_call": { "worker": worker, "postgres": postgres, "broker": broker },
            "ceiling_calls_per_s": self.ceiling(),
            "of_ceiling": self.of_ceiling(),
            "commits_per_call": self.value(|sample| sample.commits_per_call),
            "worker_memory_mib": self.value(|sample| sample.memory_mib),
        })
    }

    fn row(&self) -> String {
        let three = |values: [Option<f64>; 3], digits, between: &str| {
            if values.iter().all(Option::is_none) {
                return "-".to_owned();
            }
            values.map(|value| number(value, digits)).join(between)
        };
        format!(
            "| `{}` | {} | {} | {} | {} | {} | {} | {} | {} |\n",
            self.measure.name(),
            self.result(),
            self.samples.len(),
            number(self.of_per_call(), 2),
            three(self.of_bounds(), 2, ", "),
            three(self.cpu_us(), 0, " + "),
            number(self.of_ceiling(), 2),
            number(self.value(|sample| sample.commits_per_call), 3),
            number(self.value(|sample| sample.memory_mib), 0),
        )
    }
}

/// What is not known is a dash, and never made up.
fn number(value: Option<f64>, digits: usize) -> String {
    dash(value.map(|value| format!("{value:.digits$}")))
}

fn dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

#[cfg(test)]
mod tests;
