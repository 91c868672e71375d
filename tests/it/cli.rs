//! The command line, as people and scripts use it.

use serde_json::{Value, json};

use crate::support::{Does, Downstream, Ran, Tool, World, job, key_of};

fn parsed(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))
}

fn clean(ran: &Ran) -> &Ran {
    assert_eq!((ran.code, ran.log.as_str()), (Some(0), ""), "{ran:?}");
    ran
}

#[tokio::test]
async fn submit_goes_on_past_a_bad_line_and_names_it() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let mut worker = world.worker(&[Tool::keyed("send_payment", &downstream)]).start().await;

    let (one, two) = (job("send_payment", json!({"n": 1})), job("send_payment", json!({"n": 2})));
    let lines = format!("{one}\n{{\"name\": \"send_payment\"}}\n\n{two}");
    let ran = world.run(&["submit"], &lines).await;

    assert_eq!(ran.code, Some(1));
    assert_eq!(ran.lines(), [key_of(&one), key_of(&two)]);
    assert_eq!(ran.log.trim_end(), "line 2: conversation_id is missing");
    downstream.wait_for_posts(2).await;
    worker.drain().await;
    assert_eq!(downstream.counts(), (2, 2));
    assert_eq!(world.rows().await, 2);
}

#[tokio::test]
async fn submit_and_wait_prints_each_reply() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let mut worker = world.worker(&[Tool::keyed("send_payment", &downstream)]).start().await;

    let (one, two) = (job("send_payment", json!({"n": 1})), job("send_payment", json!({"n": 2})));
    let file = world.folder().join("jobs.jsonl");
    // The same call twice, beside another one.
    std::fs::write(&file, format!("{one}\n{two}\n{one}\n")).expect("the folder can be written");
    let ran = world.run(&["submit", "--wait", &file.to_string_lossy()], "").await;

    clean(&ran);
    let replies: Vec<Value> = ran.lines().into_iter().map(parsed).collect();
    assert_eq!(replies.len(), 3);
    assert!(replies.iter().all(|reply| reply["status"] == "completed"));
    let of_one: Vec<_> = replies.iter().filter(|reply| reply["key"] == key_of(&one)).collect();
    assert_eq!(of_one.len(), 2);
    assert_eq!(of_one[0]["content"], of_one[1]["content"]);
    assert_eq!(downstream.counts(), (2, 2));
    worker.drain().await;
}

#[tokio::test]
async fn submit_before_any_worker_says_what_is_missing() {
    let world = World::new().await;
    let ran = world.run(&["submit"], &job("send_payment", json!({})).to_string()).await;
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""));
    assert!(ran.log.starts_with("line 1: ") && ran.log.contains("start a worker"), "{}", ran.log);
}

/// A-056: the known answers, without any service.
#[tokio::test]
async fn key_prints_the_known_keys_without_any_service() {
    let world = World::new().await;
    let line = |amount: &str| {
        format!(
            r#"{{"conversation_id":"conv_42","turn_index":7,"name":"send_payment","args":{{"note":"é", "invoice":"INV-1","amount":{amount}}}}}"#
        )
    };
    let lines = format!("{}\nno job\n{}\n", line("1"), line("1.0"));
    let mut command = world.command(&["key"]);
    command.env_remove("DATABASE_URL").env_remove("AMQP_URL");
    let ran = crate::support::run(command, &lines).await;

    assert_eq!(ran.code, Some(1));
    assert_eq!(
        ran.lines(),
        ["0eb243dbd96aaf3995360445bec52dff", "272f4286af598a7a1acb6f644b8be822"]
    );
    assert!(ran.log.starts_with("line 2: ") && ran.log.lines().count() == 1, "{}", ran.log);

    let canonical = world.run(&["key", "--canonical"], &line("1E5")).await;
    assert_eq!(
        clean(&canonical).lines(),
        [r#"{"amount":100000.0,"invoice":"INV-1","note":"\u00e9"}"#]
    );
}

#[tokio::test]
async fn ledger_show_and_list_tell_what_became_of_a_call() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    downstream.script([Does::Act, Does::ActAndClose]);
    let tools =
        [Tool::keyed("send_payment", &downstream), Tool::unkeyed("create_ticket", &downstream)];
    let mut worker = world.worker(&tools).set("worker_name", "worker-1").start().await;
    let producer = world.producer().await;
    let mut payment = job("send_payment", json!({"invoice": "INV-7"}));
    payment["meta"] = json!({"user": "u-1"});
    payment["response_id"] = json!("msg_1");
    let ticket = job("create_ticket", json!({"subject": "printer"}));
    producer.call(&payment).await;
    producer.call(&ticket).await;
    worker.drain().await;

    let shown = world.run(&["ledger", "show", &key_of(&payment), "--json"], "").await;
    let shown = parsed(&clean(&shown).out);
    assert_eq!(shown["key"], key_of(&payment));
    for field in ["conversation_id", "turn_index", "name", "ordinal", "args", "meta", "response_id"]
    {
        assert_eq!(shown[field], payment[field], "{field}");
    }
    assert_eq!((&shown["state"], &shown["effect"]), (&json!("completed"), &json!("keyed_write")));
    assert_eq!((&shown["attempt"], &shown["worker"]), (&json!(1), &json!("worker-1")));
    assert_eq!(shown["outcome"]["content"], json!({"id": "pay_1", "ok": true}));
    assert_eq!((&shown["outcome"]["is_error"], &shown["history"]), (&json!(false), &json!([])));

    let shown = world.run(&["ledger", "show", "--json", &key_of(&ticket)], "").await;
    let shown = parsed(&clean(&shown).out);
    assert_eq!(
        (&shown["state"], &shown["outcome"]["error"]["kind"]),
        (&json!("unknown"), &json!("ambiguous"))
    );
    assert_eq!(shown["history"][0]["event"], "requests");
    assert_eq!(
        shown["history"][0]["detail"],
        json!([{"branch": "lost", "phase": "await_response", "message": "the connection was lost before any answer", "times": 1}])
    );
    assert_eq!(shown["history"][1]["event"], "became_unknown");
    assert_eq!(shown["job"]["args"], ticket["args"]);
    let people = world.run(&["ledger", "show", &key_of(&ticket)], "").await;
    assert!(clean(&people).out.contains("unknown") && people.out.contains("create_ticket"));

    let listed = world.run(&["ledger", "list", "--json"], "").await;
    let keys: Vec<Value> =
        clean(&listed).lines().into_iter().map(|line| parsed(line)["key"].clone()).collect();
    assert_eq!(keys, [key_of(&ticket), key_of(&payment)], "those last claimed first");
    let listed = world.run(&["ledger", "list", "--state", "unknown", "--json"], "").await;
    assert_eq!(clean(&listed).lines().len(), 1);
    assert_eq!(parsed(&listed.out)["key"], key_of(&ticket));

    let missing = world.run(&["ledger", "show", &"0".repeat(32)], "").await;
    assert_eq!((missing.code, missing.out.as_str()), (Some(1), ""));
    assert!(missing.log.contains("no call in the ledger has the key"), "{}", missing.log);
    let wrong = world.run(&["ledger", "show", "no-key"], "").await;
    assert_eq!(wrong.code, Some(2));
}

#[tokio::test]
async fn dead_list_shows_reasons_and_takes_nothing_out() {
    let world = World::new().await;
    let mut downstream = Downstream::refusing(false).await;
    let tools = [Tool::keyed("send_payment", &downstream).retry("50ms", 0)];
    let mut worker = world.worker(&tools).set("retry_delays", "50ms").start().await;
    let producer = world.producer().await;
    let (refused, unknown) = (job("send_payment", json!({})), job("no_such_tool", json!({})));
    producer.call(&refused).await;
    producer.call(&unknown).await;
    let id = producer.submit_text("{\"secret\": 4711").await;
    producer.reply_for(&id).await;
    worker.drain().await;

    let ran = world.run(&["dead", "list", "--json"], "").await;
    let dead: Vec<Value> = clean(&ran).lines().into_iter().map(parsed).collect();
    let reasons: Vec<_> = dead.iter().map(|dead| dead["reason"].clone()).collect();
    assert_eq!(reasons, ["not_sent", "unknown_tool", "bad_job"]);
    assert_eq!(
        (&dead[0]["key"], &dead[0]["tool"]),
        (&json!(key_of(&refused)), &json!("send_payment"))
    );
    assert!(dead.iter().all(|dead| dead["answered"] == "not_run" && dead["died_at"].is_string()));
    let ran = world.run(&["dead", "list", "--reason", "bad_job"], "").await;
    assert_eq!(clean(&ran).lines().len(), 2, "a head and one job");
    assert!(!ran.out.contains("4711"));
    let ran = world.run(&["dead", "list", "--tool", "no_such_tool", "--json"], "").await;
    assert_eq!(parsed(&clean(&ran).out)["key"], key_of(&unknown));
    producer.wait_until_ready("dead", 3).await;
    downstream.listen();
    assert_eq!(downstream.counts(), (0, 0));
}

/// Ten workers start at once after a deploy.
#[tokio::test]
async fn ten_processes_that_migrate_at_once_apply_each_migration_once() {
    let world = World::new().await;
    let ran = futures_util::future::join_all((0..10).map(|_| world.run(&["migrate"], ""))).await;

    let applied: Vec<&str> = ran
        .iter()
        .flat_map(|ran| clean(ran).lines())
        .filter(|line| line.starts_with("applied "))
        .collect();
    assert_eq!(applied.len(), count_migrations(), "{applied:?}");
    assert_eq!(ran.iter().filter(|ran| ran.out.trim() == "up to date").count(), 9);
    let again = world.run(&["migrate"], "").await;
    assert_eq!(clean(&again).out.trim(), "up to date");
    assert_eq!(world.rows().await, 0);
}

fn count_migrations() -> usize {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations");
    std::fs::read_dir(folder).expect("the migrations are there").count()
}

/// A worker never runs on a schema that it does not know.
#[tokio::test]
async fn a_worker_without_the_schema_says_what_to_run() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let registry = world.registry(&[Tool::keyed("send_payment", &downstream)]);
    let ran = world.run(&["worker", "--tools", &registry.to_string_lossy()], "").await;
    assert_eq!(ran.code, Some(1));
    assert!(ran.log.contains("callonce migrate"), "{}", ran.log);
}

#[tokio::test]
async fn a_refused_login_to_the_ledger_ends_the_worker_and_is_not_logged() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let mut url = url::Url::parse(&world.database_url).expect("a URL");
    url.set_password(Some("sesame-open")).expect("a password");

    let builder = world.worker(&[Tool::keyed("send_payment", &downstream)]);
    let mut worker = builder.env("DATABASE_URL", url.as_str()).spawn();
    let status = worker.exit(std::time::Duration::from_secs(15)).await;

    assert_eq!(status.code(), Some(1), "{}", worker.log());
    assert!(worker.logged("the ledger cannot be used"), "{}", worker.log());
    assert!(!worker.logged("sesame-open"));
}

/// Everything that is wrong is said at once, with its source.
#[tokio::test]
async fn a_worker_with_wrong_settings_names_them_all() {
    let world = World::new().await;
    let downstream = Downstream::forgetful().await;
    let registry = world.registry(&[Tool::keyed("send_payment", &downstream)]);
    let registry = registry.to_string_lossy();
    let args = ["worker", "--tools", &*registry, "--prefetch", "0x", "--hold-max", "soon"];
    let ran = world.run(&args, "").await;
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""));
    assert!(ran.log.contains("--prefetch") && ran.log.contains("--hold-max"), "{}", ran.log);
    let wrong = world.run(&["worker", "--no-such-flag"], "").await;
    assert_eq!(wrong.code, Some(2));
}
