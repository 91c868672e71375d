//! A producer in Python: the key from five lines of its standard library, a real pika.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{Downstream, Tool, World, job, key_of};

const PRODUCER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/producer.py");

fn done(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?} failed:\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// A virtual environment with pika, made once and kept with the build.
fn python_with_pika() -> PathBuf {
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python-with-pika-1");
    let python = |folder: &Path| folder.join("bin/python");
    if !kept.exists() {
        let fresh = kept.with_extension(Uuid::new_v4().simple().to_string());
        done(Command::new("python3").args(["-m", "venv"]).arg(&fresh));
        done(Command::new(python(&fresh)).args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "pika>=1.3,<2",
        ]));
        // Another test run may have been quicker; then its folder stands.
        if std::fs::rename(&fresh, &kept).is_err() {
            std::fs::remove_dir_all(&fresh).expect("the folder just made");
        }
    }
    python(&kept)
}

#[tokio::test]
async fn a_job_from_pika_has_the_key_that_python_derives_and_gets_its_reply() {
    let python = tokio::task::spawn_blocking(python_with_pika).await.expect("no panic");
    let world = World::new().await;
    let downstream = Downstream::collapsing().await;
    let mut worker = world.worker(&[Tool::keyed("send_payment", &downstream)]).start().await;

    // What Python and Rust print differently, if they are let.
    let args = json!({"invoice": "Rechnung №7 😀\u{7f}", "amount": 1e16, "rate": 1e-7, "n": [0.1, -0.0, 100.0], "a": {"z": null, "ä": true}});
    let call = job("send_payment", args);
    let submit = || {
        let mut command = Command::new(&python);
        command
            .arg(PRODUCER)
            .arg(call["conversation_id"].as_str().expect("a text"))
            .arg(call["turn_index"].to_string())
            .arg("send_payment")
            .arg(call["args"].to_string())
            .env("AMQP_URL", &world.amqp_url)
            .env("CALLONCE_PREFIX", &world.prefix);
        tokio::task::spawn_blocking(move || done(&mut command))
    };
    let (first, second) = (submit().await.expect("no panic"), submit().await.expect("no panic"));

    let mut replies = Vec::new();
    for output in [&first, &second] {
        let key = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        assert_eq!(key, key_of(&call), "the key that Python derives");
        let reply: Value = serde_json::from_slice(&output.stdout).expect("a reply");
        assert_eq!((&reply["key"], &reply["status"]), (&json!(key), &json!("completed")));
        replies.push(reply);
    }
    assert_eq!(replies[0]["content"], replies[1]["content"]);
    assert_eq!((&replies[0]["replayed"], &replies[1]["replayed"]), (&json!(false), &json!(true)));
    assert_eq!(downstream.counts(), (1, 1));
    assert_eq!(downstream.all()[0].key(), key_of(&call));
    worker.drain().await;
    let producer = world.producer().await;
    assert_eq!(producer.ready("jobs").await, 0);
}
