//! `bench`: that its figures are of the calls that it says, and that nothing of it stays. How fast
//! anything is, is not asserted.

use serde_json::{Value, json};

use crate::support::{Ran, World, eventually, queue_exists};

/// The schema and the queues' prefix, as they are announced.
fn own_names(log: &str) -> (String, String) {
    let line = log.lines().find_map(|line| line.strip_prefix("measuring in the schema "));
    let line = line.unwrap_or_else(|| panic!("no names in {log}"));
    let (schema, prefix) = line.split_once(" and the queues ").expect("both names");
    (schema.to_owned(), prefix.trim_end_matches(".*").to_owned())
}

async fn nothing_is_left(world: &World, log: &str) {
    let (schema, prefix) = own_names(log);
    assert!(prefix.starts_with(&format!("{}-bench-", world.prefix)), "{prefix}");
    let schemas = format!("SELECT count(*) FROM pg_namespace WHERE nspname = '{schema}'");
    assert_eq!(world.count(&schemas).await, 0, "{schema} is left");
    let queues = [".jobs", ".dead", ".retry.5000", ".retry.30000", ".retry.120000", "-replies"];
    for queue in queues.map(|name| format!("{prefix}{name}")) {
        assert!(!queue_exists(&world.amqp_url, &queue).await, "{queue} is left");
    }
    let folder = std::env::temp_dir().join(prefix.replace(&world.prefix, "callonce"));
    assert!(!folder.exists(), "{} is left", folder.display());
}

fn figures(ran: &Ran) -> Vec<Value> {
    ran.lines().iter().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[tokio::test]
async fn a_benchmark_counts_its_own_calls_and_leaves_nothing_behind() {
    let world = World::new().await;
    let measures = "unique,unique.per_call,replayed,repeated,http,latency,start";
    let args = ["bench", "--jobs", "500", "--short", "--only", measures, "--json"];
    let ran = world.run(&[&args[..], &["--table", "bench.md"]].concat(), "").await;

    assert_eq!(ran.code, Some(0), "{ran:?}");
    let figures = figures(&ran);
    assert!(figures[0]["machine"]["postgres"].is_string(), "{ran:?}");
    let found: Vec<(&Value, &Value)> =
        figures[1..].iter().map(|figure| (&figure["figure"], &figure["calls"])).collect();
    let expected = [
        ("unique.per_call", 100),
        ("unique", 500),
        ("replayed", 500),
        ("repeated", 500),
        ("http", 500),
        ("latency", 200),
        ("start", 1),
    ];
    let expected = expected.map(|(name, calls)| (json!(name), json!(calls)));
    assert_eq!(found, expected.iter().map(|(name, calls)| (name, calls)).collect::<Vec<_>>());
    for figure in &figures[1..6] {
        let (rate, commits) = (&figure["calls_per_s"]["median"], &figure["commits_per_call"]);
        assert!(rate.as_f64().expect("it was seen") > 0.0, "{figure}");
        assert!(commits.as_f64().expect("it was seen") > 0.0, "{figure}");
        // Nobody has named the broker's process, and nothing is made up.
        assert_eq!(
            (&figure["cpu_us_per_call"]["broker"], &figure["ceiling_calls_per_s"]),
            (&Value::Null, &Value::Null)
        );
    }
    assert!(figures[2]["times_per_call"].is_number() && figures[6]["p99_ms"]["max"].is_number());
    assert!(figures[7]["to_reply_ms"]["median"].is_number());

    let table = std::fs::read_to_string(world.folder().join("bench.md")).expect("the table");
    assert_eq!(table.lines().filter(|line| line.starts_with("| `")).count(), 7, "{table}");
    nothing_is_left(&world, &ran.log).await;
}

#[tokio::test]
async fn a_ledger_is_filled_before_calls_are_measured() {
    let world = World::new().await;
    let args = ["bench", "growth", "--rows", "0,60000", "--jobs", "100", "--json"];
    let ran = world.run(&args, "").await;

    assert_eq!(ran.code, Some(0), "{ran:?}");
    let figures = figures(&ran);
    assert_eq!((&figures[1]["rows"], &figures[2]["rows"]), (&json!(0), &json!(60_000)));
    assert_eq!(figures[2]["measured"]["calls"], json!(100));
    nothing_is_left(&world, &ran.log).await;
}

#[tokio::test]
async fn a_figure_that_misses_its_mark_is_an_error_and_leaves_nothing_behind() {
    let world = World::new().await;
    let args = ["bench", "--jobs", "50", "--only", "unique,unique.per_call"];
    let ran = world.run(&[&args[..], &["--at-least-per-call", "1000000"]].concat(), "").await;

    assert_eq!((ran.code, ran.lines().len()), (Some(1), 3), "{ran:?}");
    assert!(ran.log.contains("expected at least 1000000"), "{}", ran.log);
    nothing_is_left(&world, &ran.log).await;

    let ran = world.run(&["bench", "--only", "unique", "--at-least-per-call", "3"], "").await;
    assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{ran:?}");
}

#[tokio::test]
async fn a_benchmark_that_is_interrupted_leaves_nothing_behind() {
    use std::io::{BufRead as _, BufReader, Read as _};
    use std::process::Stdio;

    let world = World::new().await;
    let mut command = world.command(&["bench", "--only", "wait_1,latency"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary was built");
    let mut stderr = BufReader::new(child.stderr.take().expect("it is piped"));
    let mut log = String::new();
    stderr.read_line(&mut log).expect("it says where it measures");
    let (_, prefix) = own_names(&log);
    eventually("queues", async || queue_exists(&world.amqp_url, &format!("{prefix}.jobs")).await)
        .await;

    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    let mut status = None;
    eventually("its end", async || {
        status = child.try_wait().expect("it can be waited for");
        status.is_some()
    })
    .await;
    stderr.read_to_string(&mut log).expect("UTF-8");
    assert_eq!(status.and_then(|status| status.code()), Some(1), "{log}");
    assert!(log.contains("callonce: interrupted"), "{log}");
    nothing_is_left(&world, &log).await;
}

#[tokio::test]
async fn a_server_that_is_not_there_is_said_and_no_secret_is() {
    let world = World::new().await;
    let nowhere = ["postgres://u:sesame@127.0.0.1:1/d", "amqp://u:sesame@127.0.0.1:1/%2f"];
    for (flag, url, expected) in [
        ("--database-url", "mysql://u:sesame@h/d", "must begin with postgres://"),
        ("--amqp-url", "http://u:sesame@h", "the broker URL must read amqp://"),
        ("--database-url", nowhere[0], "the ledger cannot be used: no connection"),
        ("--amqp-url", nowhere[1], "the broker cannot be used: connecting failed"),
    ] {
        let ran = world.run(&["bench", "--short", flag, url], "").await;
        assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{ran:?}");
        assert!(ran.log.contains(expected), "{}", ran.log);
        assert!(!ran.log.contains("sesame") && !ran.log.contains("measuring"), "{}", ran.log);
    }
}

/// Whoever may not create a schema is told what to ask for.
#[tokio::test]
async fn a_role_that_may_not_create_a_schema_is_told_the_missing_right() {
    let world = World::new().await;
    let role = format!("r_{}", uuid::Uuid::new_v4().simple());
    world.sql(&format!("CREATE ROLE {role} LOGIN PASSWORD 'sesame'")).await;
    let mut url = url::Url::parse(&world.database_url).expect("a URL");
    url.set_username(&role).expect("a host");
    url.set_password(Some("sesame")).expect("a host");
    let ran = world.run(&["bench", "--short", "--database-url", url.as_str()], "").await;
    world.sql(&format!("DROP ROLE {role}")).await;

    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{ran:?}");
    assert!(ran.log.contains(&format!("the role {role} may not create a schema")), "{}", ran.log);
    assert!(ran.log.contains("expected: GRANT CREATE ON DATABASE "), "{}", ran.log);
    nothing_is_left(&world, &ran.log).await;
}
