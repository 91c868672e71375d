//! What is made of samples, and what is not.

use super::*;

fn machine() -> Machine {
    Machine {
        date: jiff::Timestamp::UNIX_EPOCH,
        cpu: Some("A CPU".to_owned()),
        cores: 2,
        memory_bytes: Some(8 << 30),
        postgres: "15.1".to_owned(),
        rabbitmq: Some("3.10.8".to_owned()),
    }
}

fn rate(calls_per_s: f64) -> Sample {
    Sample { calls_per_s: Some(calls_per_s), ..Sample::default() }
}

#[test]
fn percentiles_are_values_that_were_seen() {
    let values: Vec<f64> = (1..=200).map(f64::from).collect();
    assert_eq!(percentile(&values, 50), Some(100.0));
    assert_eq!(percentile(&values, 99), Some(198.0));
    assert_eq!(percentile(&values[..1], 99), Some(1.0));
    assert_eq!(percentile(&[], 50), None);
}

#[test]
fn a_spread_leaves_out_what_could_not_be_seen() {
    let samples = [rate(3.0), Sample::default(), rate(1.0), rate(2.0), rate(4.0)];
    let spread = Spread::of(&samples, |sample| sample.calls_per_s).unwrap();
    assert_eq!(spread, Spread { median: 2.5, min: 1.0, max: 4.0 });
    assert_eq!(spread.show(1), "2.5 (1.0 to 4.0)");
    assert_eq!(Spread::of(&samples, |sample| sample.p50_ms), None);
}

#[test]
fn figures_are_set_beside_each_other() {
    let mut report = Report::new(machine());
    report.add(Measure::BoundLedger, 10, rate(4_000.0));
    report.add(Measure::UniquePerCall, 10, rate(500.0));
    let cpu = Sample {
        worker_cpu_us: Some(300.0),
        postgres_cpu_us: Some(500.0),
        broker_cpu_us: Some(200.0),
        commits_per_call: Some(0.25),
        memory_mib: Some(30.0),
        ..rate(1_000.0)
    };
    report.add(Measure::Unique, 10, cpu);
    let unique = report.json(Measure::Unique);
    assert_eq!(unique["times_per_call"], 2.0);
    assert_eq!(unique["of_bound"], json!({ "ledger": 0.25, "publish": null, "consume": null }));
    assert_eq!(
        (&unique["ceiling_calls_per_s"], &unique["of_ceiling"]),
        (&json!(2000.0), &json!(0.5))
    );
    assert_eq!(
        report.line(Measure::Unique),
        "unique            1000 calls/s; 2.00 times per-call; 0.25 of bound.ledger, - of publish, \
         - of consume; CPU 300 + 500 + 200 µs a call (worker, Postgres, broker), ceiling 2000, \
         0.50 of it; 0.250 commits a call; 30 MiB"
    );
}

#[test]
fn one_unknown_price_leaves_no_ceiling() {
    let mut report = Report::new(machine());
    report.add(Measure::Unique, 10, Sample { worker_cpu_us: Some(300.0), ..rate(1_000.0) });
    let unique = report.json(Measure::Unique);
    assert_eq!(
        (&unique["ceiling_calls_per_s"], &unique["of_ceiling"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(
        unique["cpu_us_per_call"],
        json!({ "worker": 300.0, "postgres": null, "broker": null })
    );
}

#[test]
fn the_table_says_where_it_was_measured() {
    let mut report = Report::new(machine());
    let sample = |p50_ms| Sample { p50_ms: Some(p50_ms), p99_ms: Some(9.0), ..Sample::default() };
    for p50 in [3.0, 2.0] {
        report.add(Measure::Latency, 10, sample(p50));
    }
    report.add(Measure::LatencyPerCall, 10, sample(5.0));
    let table = report.table();
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("1970-01-01: callonce ") && lines[0].contains("2 cores (A CPU)"));
    assert!(lines[0].ends_with("8 GiB of memory, PostgreSQL 15.1, RabbitMQ 3.10.8"), "{table}");
    let columns = |line: &str| line.matches('|').count();
    assert!(lines[2..].iter().all(|line| columns(line) == 10), "{table}");
    assert_eq!(
        lines[5],
        "| `latency` | p50 2.50 (2.00 to 3.00) ms, p99 9.00 ms | 2 | 2.00 | - | - | - | - | - |"
    );
}
