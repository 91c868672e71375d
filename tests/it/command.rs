//! Tools that are child processes, however they behave.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::json;

use crate::support::{Tool, Worker, World, eventually, job, key_of, key_of_text};

/// A tool whose program is a script of the shell, run in the test's folder. Only the test's own
/// deadline ends what should have been ended before.
fn tool(world: &World, name: &str, effect: &'static str, script: &str) -> Tool {
    tool_within("10m", world, name, effect, script)
}

fn tool_within(
    timeout: &str,
    world: &World,
    name: &str,
    effect: &'static str,
    script: &str,
) -> Tool {
    let path = world.folder().join(format!("{name}.sh"));
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("the folder can be written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    Tool::command(name, effect, &path).with("timeout", &format!("{timeout:?}"))
}

fn unkeyed(world: &World, script: &str) -> Tool {
    tool(world, "make_label", "unkeyed_write", script)
}

/// A file of the test's folder; empty while it is not there.
fn file(world: &World, name: &str) -> String {
    fs::read_to_string(world.folder().join(name)).unwrap_or_default()
}

async fn wait_for_file(world: &World, name: &str, lines: usize) {
    eventually(&format!("{lines} lines in {name}"), async || {
        file(world, name).lines().count() >= lines
    })
    .await;
}

/// The processes that run in the test's folder, the zombies among them too, as far as they are known
/// by their parent.
fn processes(world: &World) -> Vec<u32> {
    let folder = world.folder().canonicalize().expect("it is there");
    let all = fs::read_dir("/proc").expect("this is Linux").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| {
        let at: PathBuf = fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
        at == folder
    })
    .collect()
}

/// The children of a process, with the state of each.
fn children(parent: u32) -> Vec<(u32, String)> {
    let all = fs::read_dir("/proc").expect("this is Linux").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?.to_owned();
        (fields.next()? == parent.to_string()).then_some((pid, state))
    })
    .collect()
}

/// Waits until nothing but these workers runs in the folder, and none of `pids` is left, not even as
/// a zombie.
async fn wait_until_alone(world: &World, workers: &[&Worker], pids: &str) {
    let workers: Vec<u32> = workers.iter().map(|worker| worker.id()).collect();
    eventually("every process of the tool is gone", async || {
        processes(world).iter().all(|pid| workers.contains(pid))
            && pids.lines().all(|pid| !fs::exists(format!("/proc/{pid}")).unwrap_or(true))
    })
    .await;
}

/// Starts processes that ignore SIGTERM and hold the outputs open: in the group, in a session of its
/// own, and one whose parent is gone. Each writes its number to `pids`.
const FAMILY: &str = "
trap '' TERM HUP
echo $$ >> pids
linger='trap \"\" TERM HUP; echo $$ >> pids; while :; do sleep 1; done'
sh -c \"$linger\" &
setsid sh -c \"$linger\" &
setsid sh -c \"setsid sh -c '$(echo \"$linger\" | sed \"s/'/'\\\\\\\\''/g\")' & exit 0\"
while [ $(wc -l < pids) -lt 4 ]; do sleep 0.01; done
";

#[tokio::test]
async fn a_command_gets_its_arguments_its_key_and_nothing_else() {
    let world = World::new().await;
    let script = "
        cat > args
        tr '\\0' '\\n' < /proc/$$/environ | sort > environ
        tr '\\0' ' ' < /proc/$$/cmdline > cmdline
        tr '\\0' ' ' < /proc/$PPID/cmdline > supervisor
        tr '\\0' '\\n' < /proc/$PPID/environ >> supervisor
        ps -o pgid= -p $$ > group
        echo $$ >> group
        pwd > pwd
        echo working >&2
        echo ' {\"label\": \"L-1\",  \"n\": 1.0} '";
    let dir = world.folder().join("inside");
    fs::create_dir(&dir).expect("the folder can be written");
    let tools = [unkeyed(&world, script)
        .executor("args", "[\"--format\", \"a b;$(x)\"]")
        .executor("env", "{ TOKEN = \"t-${LABEL_TOKEN}\", MODE = \"fast\" }")
        .executor("dir", &format!("{dir:?}"))];
    let mut worker = world.worker(&tools).env("LABEL_TOKEN", "s3cret").start().await;
    let producer = world.producer().await;

    let text = "{\"conversation_id\":\"c\",\"turn_index\":0,\"name\":\"make_label\",\
                \"args\":{\"b\" : 1.0,\"a\":\"\\u00fc ü; $(rm)\"}}";
    let id = producer.submit_text(text).await;
    let reply = producer.reply_for(&id).await;

    assert_eq!((reply.status(), reply.kind()), ("completed", ""), "{}", reply.text);
    assert_eq!(reply.content(), "{\"label\": \"L-1\",  \"n\": 1.0}");
    let inside = |name: &str| file(&world, &format!("inside/{name}"));
    assert_eq!(inside("args"), "{\"b\" : 1.0,\"a\":\"\\u00fc ü; $(rm)\"}");
    let key = key_of_text(text);
    assert_eq!(
        inside("environ"),
        format!("CALLONCE_IDEMPOTENCY_KEY={key}\nMODE=fast\nTOKEN=t-s3cret\n")
    );
    assert!(inside("cmdline").ends_with("make_label.sh --format a b;$(x) "));
    assert_eq!(inside("supervisor"), "callonce supervise ");
    let group: Vec<_> = inside("group").split_whitespace().map(str::to_owned).collect();
    assert_eq!(group[0], group[1], "it leads its group");
    assert_eq!(inside("pwd").trim(), dir.canonicalize().expect("it is there").to_string_lossy());
    worker.drain().await;
    assert_eq!(worker.times_said("the tool wrote to standard error"), 1);
    assert!(worker.logged("\"line\":\"working\""));
    assert!(!worker.logged("s3cret") && !worker.logged("$(rm)"));
}

/// Ended by a signal it may have acted; with a key it is run again, under the same one.
#[tokio::test]
async fn the_key_of_a_command_is_the_same_at_every_run() {
    let world = World::new().await;
    let script = "
        echo $CALLONCE_IDEMPOTENCY_KEY >> keys
        cat >> args; echo >> args
        [ $(wc -l < keys) -ge 3 ] || kill -KILL $$
        echo '{\"done\":true}'";
    let tools = [tool(&world, "send_payment", "keyed_write", script)];
    let mut worker = world.worker(&tools).start().await;
    let producer = world.producer().await;

    let call = job("send_payment", json!({"invoice": "INV-7"}));
    let reply = producer.call(&call).await;

    assert_eq!((reply.status(), &reply.json["attempt"]), ("completed", &json!(1)));
    let key = key_of(&call);
    assert_eq!(file(&world, "keys").lines().collect::<Vec<_>>(), [&*key, &*key, &*key]);
    assert_eq!(file(&world, "args").lines().collect::<Vec<_>>(), ["{\"invoice\":\"INV-7\"}"; 3]);
    worker.drain().await;
    assert!(worker.logged("the tool was ended by signal 9"));
}

#[tokio::test]
async fn a_program_that_cannot_be_started_is_not_sent_and_ends_as_not_run() {
    let world = World::new().await;
    let plain = world.folder().join("plain");
    fs::write(&plain, "no program").expect("the folder can be written");
    let tools = [
        Tool::command("missing", "unkeyed_write", &world.folder().join("none")).retry("50ms", 1),
        Tool::command("plain", "unkeyed_write", &plain).retry("50ms", 1),
    ];
    let mut worker = world.worker(&tools).start().await;
    let producer = world.producer().await;

    for (name, reason) in [("missing", "not found"), ("plain", "permission denied")] {
        let call = job(name, json!({}));
        let reply = producer.call(&call).await;
        assert_eq!((reply.status(), reply.kind()), ("not_run", "not_sent"));
        assert_eq!(reply.json["error"]["phase"], "connect");
        assert_eq!(reply.json["attempt"], 2);
        assert!(reply.text.contains(reason), "{}", reply.text);
        assert_eq!(world.state(&key_of(&call)).await, "not_run");
    }
    worker.drain().await;
    producer.wait_for_dead(2).await;
}

#[tokio::test]
async fn an_exit_code_says_what_the_registry_says() {
    let world = World::new().await;
    let script = "
        echo run >> runs
        case $(wc -l < runs) in
            1) echo busy; exit 75;;
            2) echo '{\"no\": \"such label\"}'; exit 3;;
            3) printf 'not a word'; exit 1;;
            4) exit 255;;
            *) echo 'Warning: not JSON'; exit 0;;
        esac";
    let tools = [unkeyed(&world, script).executor("not_run_exit", "[75]")];
    let mut worker = world.worker(&tools).start().await;
    let producer = world.producer().await;

    for (content, message) in [
        ("{\"no\": \"such label\"}", "the tool ended with exit code 3"),
        ("\"not a word\"", "the tool ended with exit code 1"),
        ("null", "the tool ended with exit code 255"),
    ] {
        let reply = producer.call(&job("make_label", json!({}))).await;
        assert_eq!((reply.status(), reply.kind()), ("completed", "tool_error"), "{}", reply.text);
        assert_eq!(reply.content(), content);
        assert_eq!(reply.json["error"]["message"], message);
    }
    let unclear = producer.call(&job("make_label", json!({}))).await;
    assert_eq!((unclear.status(), unclear.kind()), ("unknown", "ambiguous"));
    assert_eq!(file(&world, "runs").lines().count(), 5);
    worker.drain().await;
    assert!(worker.logged("the tool refused before any work, with exit code 75"));
}

#[tokio::test]
async fn a_command_without_a_key_that_was_ended_by_a_signal_is_unknown() {
    let world = World::new().await;
    let tools = [unkeyed(&world, "echo run >> runs; kill -TERM $$")];
    let mut worker = world.worker(&tools).start().await;
    let producer = world.producer().await;

    let call = job("make_label", json!({}));
    for _ in 0..2 {
        let reply = producer.call(&call).await;
        assert_eq!((reply.status(), reply.kind()), ("unknown", "ambiguous"));
        assert!(reply.text.contains("do not resubmit"), "{}", reply.text);
    }
    assert_eq!(file(&world, "runs"), "run\n");
    worker.drain().await;
    assert!(worker.logged("the tool was ended by signal 15"));
}

#[tokio::test]
async fn a_command_over_its_time_is_ended_with_all_that_it_has_started() {
    let world = World::new().await;
    let script = format!("{FAMILY}\nwhile :; do sleep 1; done");
    let tools = [tool_within("1s", &world, "make_label", "unkeyed_write", &script)];
    let mut worker = world.worker(&tools).start().await;
    let producer = world.producer().await;

    let reply = producer.call(&job("make_label", json!({}))).await;

    assert_eq!((reply.status(), reply.kind()), ("unknown", "ambiguous"));
    let pids = file(&world, "pids");
    assert!(pids.lines().count() >= 4, "{pids}");
    // Before the reply, not some time after it.
    assert_eq!(processes(&world), [worker.id()]);
    wait_until_alone(&world, &[&worker], &pids).await;
    worker.drain().await;
    assert!(worker.logged("the tool did not end within 1s"));
    assert!(!worker.logged("was lost"));
}

/// SIGTERM comes first, and is an end like another: the time was over.
#[tokio::test]
async fn a_command_over_its_time_may_clean_up() {
    let world = World::new().await;
    let script = "
        trap 'echo cleaned > cleaned; echo \"{}\"; exit 0' TERM
        echo begun > begun
        while :; do sleep 0.05; done";
    let tools = [tool_within("500ms", &world, "make_label", "unkeyed_write", script)];
    let mut worker = world.worker(&tools).start().await;
    let producer = world.producer().await;

    let reply = producer.call(&job("make_label", json!({}))).await;

    assert_eq!((reply.status(), reply.kind()), ("unknown", "ambiguous"));
    if file(&world, "begun").is_empty() {
        // A machine so busy that the shell had not come to its trap shows nothing here.
        eprintln!("the script had not begun within its time");
    } else {
        assert_eq!(file(&world, "cleaned"), "cleaned\n");
    }
    worker.drain().await;
}

#[tokio::test]
async fn what_a_command_leaves_behind_is_ended_with_it_and_delays_no_answer() {
    let world = World::new().await;
    let tools = [unkeyed(&world, &format!("{FAMILY}\necho '{{\"ok\":true}}'"))];
    let mut worker = world.worker(&tools).start().await;
    let producer = world.producer().await;

    let reply = producer.call(&job("make_label", json!({}))).await;

    assert_eq!((reply.status(), &*reply.content()), ("completed", "{\"ok\":true}"));
    wait_until_alone(&world, &[&worker], &file(&world, "pids")).await;
    worker.drain().await;
    assert!(!worker.logged("could not be ended"));
}

#[tokio::test]
async fn floods_on_both_outputs_are_read_to_their_end_and_kept_within_bounds() {
    const FLOOD: usize = 100 * 1024 * 1024;
    let world = World::new().await;
    let script = format!(
        "flood() {{ head -c {FLOOD} /dev/zero | tr '\\0' \"$1\"; }}
         flood e >&2
         printf '\"'; flood o; printf '\"'
         echo done > done"
    );
    let tools = [unkeyed(&world, &script)];
    let mut worker = world.worker(&tools).start().await;
    let producer = world.producer().await;

    let reply = producer.call(&job("make_label", json!({}))).await;

    assert_eq!(
        (reply.status(), &reply.json["warnings"][0]),
        ("completed", &json!("result_truncated"))
    );
    assert_eq!(reply.content().matches('o').count(), 1024 * 1024 - 1);
    assert_eq!(file(&world, "done"), "done\n");
    worker.drain().await;
    assert_eq!(worker.times_said("more that the tool wrote to standard error was left out"), 1);
    assert!(worker.logged(&format!("\"bytes\":{}", FLOOD - 1024)));
    assert!(worker.log().len() < 64 * 1024);
}

#[tokio::test]
async fn a_command_need_not_read_its_arguments() {
    let world = World::new().await;
    let script = "
        case $0 in *closes*) exec 0<&-;; esac
        case $0 in *late*) while [ ! -e let_go ]; do sleep 0.01; done; wc -c > late.bytes;; esac
        echo '{}'";
    let names = ["closes", "ignores", "late"];
    let tools = names.map(|name| tool(&world, name, "unkeyed_write", script));
    let mut worker = world.worker(&tools).start().await;
    let producer = world.producer().await;

    let args = json!({"text": "x".repeat(900 * 1024)});
    let late = producer.submit(&job("late", args.clone())).await;
    for name in ["closes", "ignores"] {
        let reply = producer.call(&job(name, args.clone())).await;
        assert_eq!((reply.status(), &*reply.content()), ("completed", "{}"), "{name}");
    }
    fs::write(world.folder().join("let_go"), "").expect("the folder can be written");
    assert_eq!(producer.reply_for(&late).await.status(), "completed");
    assert_eq!(file(&world, "late.bytes").trim(), args.to_string().len().to_string());
    worker.drain().await;
}

#[tokio::test]
async fn a_killed_worker_takes_its_commands_with_it_and_the_ledger_decides() {
    for (effect, status) in [("unkeyed_write", "unknown"), ("keyed_write", "completed")] {
        let world = World::new().await;
        let script = format!(
            "echo run >> runs
             if [ $(wc -l < runs) -ge 2 ]; then echo '{{}}'; exit 0; fi
             {FAMILY}
             while :; do sleep 1; done"
        );
        let tools = [tool(&world, "make_label", effect, &script).with("lease", "\"1s\"")];
        let mut first = world.worker(&tools).start().await;
        let producer = world.producer().await;

        let call = job("make_label", json!({}));
        let id = producer.submit(&call).await;
        wait_for_file(&world, "pids", 4).await;
        first.kill();
        wait_until_alone(&world, &[], &file(&world, "pids")).await;
        let mut second = world.worker(&tools).start().await;
        let reply = producer.reply_for(&id).await;

        assert_eq!(reply.status(), status, "{}", reply.text);
        let runs = if status == "completed" { 2 } else { 1 };
        assert_eq!(file(&world, "runs").lines().count(), runs);
        second.drain().await;
    }
}

#[tokio::test]
async fn a_worker_that_ends_at_once_ends_its_commands() {
    let world = World::new().await;
    let tools = [unkeyed(&world, &format!("{FAMILY}\nwhile :; do sleep 1; done"))];
    let mut worker = world.worker(&tools).start().await;
    let producer = world.producer().await;

    producer.submit(&job("make_label", json!({}))).await;
    wait_for_file(&world, "pids", 4).await;
    worker.signal(Signal::TERM);
    worker.wait_until_logged("drain").await;
    worker.terminate().await;

    wait_until_alone(&world, &[], &file(&world, "pids")).await;
}

/// Whoever stops a service may send SIGTERM to all of its processes.
#[tokio::test]
async fn a_drain_waits_for_a_command_whatever_its_supervisor_is_told() {
    let world = World::new().await;
    let script = "
        kill -TERM $PPID; kill -INT $PPID; kill -HUP $PPID
        echo begun > begun
        while [ ! -e let_go ]; do sleep 0.01; done
        echo '{\"ok\":true}'";
    let tools = [unkeyed(&world, script)];
    let mut worker = world.worker(&tools).start().await;
    let producer = world.producer().await;

    let id = producer.submit(&job("make_label", json!({}))).await;
    wait_for_file(&world, "begun", 1).await;
    worker.signal(Signal::TERM);
    worker.wait_until_logged("drain").await;
    fs::write(world.folder().join("let_go"), "").expect("the folder can be written");
    let status = worker.exit(crate::support::DEADLINE).await;

    assert_eq!(status.code(), Some(0));
    assert_eq!(producer.reply_for(&id).await.content(), "{\"ok\":true}");
}

/// Kills its supervisor, and stays. Its input comes after the worker was told which group it leads.
const LOSES: &str = "
trap '' TERM HUP
cat > input
echo $$ >> pids
kill -KILL $PPID
while :; do sleep 1; done
";

/// What becomes of the tool cannot be known then; its group is ended all the same.
#[tokio::test]
async fn a_command_whose_supervisor_is_lost_is_unknown() {
    let world = World::new().await;
    let tools = [unkeyed(&world, LOSES)];
    let mut worker = world.worker(&tools).start().await;
    let producer = world.producer().await;

    let reply = producer.call(&job("make_label", json!({}))).await;

    assert_eq!((reply.status(), reply.kind()), ("unknown", "ambiguous"));
    wait_until_alone(&world, &[&worker], &file(&world, "pids")).await;
    worker.drain().await;
    assert!(worker.logged("the supervisor was lost while the tool ran"));
}

/// A supervisor that its tool has stopped is woken when the worker gives the call up, and ends them both.
#[tokio::test]
async fn a_command_that_stops_its_supervisor_outlives_its_time_no_longer_than_the_worker_waits() {
    let world = World::new().await;
    let script = "
        trap '' TERM HUP
        echo $$ $PPID | tr ' ' '\\n' >> pids
        kill -STOP $PPID
        while :; do sleep 1; done";
    let tools = [tool_within("300ms", &world, "make_label", "unkeyed_write", script)];
    let mut worker = world.worker(&tools).start().await;
    let producer = world.producer().await;

    let reply = producer.call(&job("make_label", json!({}))).await;

    assert_eq!((reply.status(), reply.kind()), ("unknown", "ambiguous"));
    wait_until_alone(&world, &[&worker], &file(&world, "pids")).await;
    worker.drain().await;
}

#[tokio::test]
async fn a_worker_keeps_no_zombies() {
    let world = World::new().await;
    let tools = [
        tool(&world, "answers", "unkeyed_write", "echo '{}'"),
        tool(&world, "dies", "unkeyed_write", "kill -KILL $$"),
        tool(&world, "loses", "unkeyed_write", LOSES),
        tool_within("300ms", &world, "late", "unkeyed_write", "exec sleep 1000"),
        Tool::command("missing", "unkeyed_write", &world.folder().join("none")).retry("1ms", 0),
    ];
    let mut worker = world.worker(&tools).start().await;
    let producer = world.producer().await;

    let mut ids = Vec::new();
    for name in ["answers", "dies", "loses", "late", "missing"].repeat(4) {
        ids.push(producer.submit(&job(name, json!({}))).await);
    }
    for id in ids {
        producer.reply_for(&id).await;
    }

    eventually("the worker has no child", async || children(worker.id()).is_empty()).await;
    worker.drain().await;
}
