//! `tools verify`, against servers that keep their word and servers that do not.

use serde_json::{Value, json};

use crate::matrix::{Does as Job, Keys, Server};
use crate::support::{Does, Downstream, Ran, Tool, World, eventually};

/// Runs `tools verify start_job` with the tool's arguments in a file, without any service.
async fn verify(world: &World, tools: &[Tool], url: &str, more: &[&str]) -> Ran {
    let registry = world.registry(tools);
    let (args, other) = (world.folder().join("args.json"), world.folder().join("other.json"));
    std::fs::write(&args, "{\"id\": \"job-1\"}\n").expect("the folder can be written");
    std::fs::write(&other, "{\"id\": \"job-2\"}").expect("the folder can be written");
    let (registry, args) = (registry.to_string_lossy(), args.to_string_lossy());
    let named = ["tools", "verify", "start_job", "--tools", &*registry, "--args", &*args];
    let named = named.into_iter().chain(["--url", url, "--delay", "10ms"]);
    let words: Vec<&str> = named.chain(more.iter().copied()).collect();
    let mut command = world.command(&words);
    command.env_remove("DATABASE_URL").env_remove("AMQP_URL");
    crate::support::run(command, "").await
}

fn parsed(ran: &Ran) -> Vec<Value> {
    ran.lines().iter().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// The registry's own server gets nothing, in any test here.
async fn own() -> Downstream {
    Downstream::forgetful().await
}

#[tokio::test]
async fn a_server_that_keeps_keys_is_a_keyed_write() {
    let world = World::new().await;
    let (own, sandbox) = (own().await, Server::new(Keys::Honoured, Job::Work).await);
    for does in [Job::Work, Job::Work, Job::Stall, Job::Stall] {
        sandbox.jobs.next(does);
    }
    let probe = format!(
        "{{ url = \"{}\", state_field = \"/state\", completed = [\"done\"] }}",
        own.url("/jobs/{key}")
    );
    let tools = [Tool::unkeyed("start_job", &own).http("probe", &probe)];
    let url = sandbox.url("/jobs");
    let more = ["--json", "--other-args", "other.json"];
    let meanwhile = async {
        // Two and two: the job of the third request runs, and the fourth has had its answer.
        eventually("two requests at once", async || {
            let counts = sandbox.jobs.counts();
            (counts.posts, counts.running) == (4, 1)
        })
        .await;
        sandbox.jobs.release();
    };
    let (ran, ()) = tokio::join!(verify(&world, &tools, &url, &more), meanwhile);

    assert_eq!(ran.code, Some(0), "{ran:?}");
    let said = parsed(&ran);
    let found = |check: &str| {
        let seen = said.iter().find(|line| line["check"] == check).expect("it was tried");
        (seen["statuses"].clone(), seen["found"].clone(), seen["replay_header"].clone())
    };
    let replayed = (json!([200, 200]), json!("replayed"), json!("idempotent-replayed"));
    assert_eq!(found("in_a_row"), replayed);
    assert_eq!(found("at_once"), (json!([200, 409]), json!("refused"), Value::Null));
    assert_eq!(found("other_body"), replayed);
    assert_eq!(found("late"), replayed);
    // Asked of the sandbox's own records.
    assert_eq!((&said[0]["probe"], own.questions()), (&json!("completed"), 0));
    let advice = said.last().expect("the advice");
    assert_eq!(advice["collapses"], json!(true));
    assert_eq!(
        advice["registry"],
        json!({
            "effect": "keyed_write",
            "in_progress_status": [409],
            "replay_header": "idempotent-replayed",
        })
    );
    assert_eq!(
        advice["notes"],
        json!(["it does not compare bodies: another one gets the first answer"])
    );
    assert_eq!((sandbox.counts(), own.posts()), ((8, 4), 0));
    assert!(ran.log.contains("sends up to 8 real requests to http://127.0.0.1:"), "{}", ran.log);
}

#[tokio::test]
async fn a_server_that_ignores_keys_is_an_unkeyed_write() {
    let world = World::new().await;
    let (own, sandbox) = (own().await, Server::new(Keys::Ignored, Job::Work).await);
    let ran = verify(&world, &[Tool::keyed("start_job", &own)], &sandbox.url("/jobs"), &[]).await;

    assert_eq!(ran.code, Some(1), "{ran:?}");
    let lines = ran.lines();
    for (line, begins) in lines.iter().zip([
        "twice in a row: 200 and 200, the bodies differ, no replay header: another answer",
        "twice at the same moment: 200 and 200, the bodies differ, no replay header: another answer",
        "again after 10ms: 200 and 200, the bodies differ, no replay header: another answer",
        "collapses repeats: no",
        "registry: effect = \"unkeyed_write\"",
        "note: this downstream does not collapse repeats: mark it unkeyed_write",
        "note: another body under a used key was not tried: no --other-args",
    ]) {
        assert!(line.starts_with(begins), "{line}");
    }
    assert_eq!(lines.len(), 7, "{ran:?}");
    assert_eq!((sandbox.counts(), own.posts()), ((6, 6), 0));
}

/// Equal answers are no proof where all are equal.
#[tokio::test]
async fn answers_that_are_always_the_same_are_not_taken_for_a_collapse() {
    let world = World::new().await;
    let (own, sandbox) = (own().await, Server::new(Keys::Ignored, Job::OmitDone).await);
    let tools = [Tool::keyed("start_job", &own)];
    let ran = verify(&world, &tools, &sandbox.url("/jobs"), &["--json"]).await;

    assert_eq!(ran.code, Some(1), "{ran:?}");
    let said = parsed(&ran);
    assert_eq!(said[0]["found"], json!("same_answer"));
    let advice = said.last().expect("the advice");
    assert_eq!((&advice["collapses"], &advice["registry"]), (&Value::Null, &json!({})));
    let notes = advice["notes"].to_string();
    assert!(notes.contains("do not tell") && notes.contains("the same under every key"), "{notes}");
    assert_eq!(sandbox.counts(), (6, 6));
}

/// The requests are the tool's own but for their address and their keys.
#[tokio::test]
async fn requests_carry_the_registrys_headers_and_fresh_keys() {
    let world = World::new().await;
    let (own, sandbox) = (own().await, Downstream::collapsing().await);
    sandbox.script([Does::Act, Does::Act, Does::Act, Does::Act, Does::Act]);
    sandbox.script([Does::Answer(422, "{}".to_owned())]);
    let tools = [Tool::keyed("start_job", &own)
        .with("key_format", "\"uuid\"")
        .http("headers", "{ authorization = \"Bearer sandbox\" }")];
    let more = ["--json", "--other-args", "other.json"];
    let ran = verify(&world, &tools, &sandbox.url("/sandbox"), &more).await;

    assert_eq!(ran.code, Some(0), "{ran:?}");
    let said = parsed(&ran);
    assert_eq!(said[0]["bodies_equal"], json!(true));
    let advice = said.last().expect("the advice");
    assert_eq!(advice["registry"], json!({ "effect": "keyed_write", "key_reused_status": [422] }));
    assert!(ran.log.contains("headers: authorization") && !ran.log.contains("Bearer"));
    let posts = sandbox.all();
    let mut keys: Vec<&str> = posts.iter().map(|post| post.key()).collect();
    assert!(keys.iter().all(|key| uuid::Uuid::try_parse(key).is_ok()), "{keys:?}");
    keys.sort_unstable();
    keys.dedup();
    assert_eq!((posts.len(), keys.len(), own.posts()), (8, 4, 0));
    for post in &posts {
        assert_eq!(
            (&*post.path, post.header("authorization")),
            ("/sandbox", Some("Bearer sandbox"))
        );
        assert!([r#"{"id": "job-1"}"#, r#"{"id": "job-2"}"#].contains(&&*post.body));
    }
    assert_eq!(posts.iter().filter(|post| post.body.contains("job-2")).count(), 1);
}

/// Without a success there is nothing to repeat, and no more is sent.
#[tokio::test]
async fn a_first_request_without_success_ends_the_trial() {
    let world = World::new().await;
    let (own, sandbox) = (own().await, Downstream::collapsing().await);
    sandbox.otherwise(Does::Answer(401, "{}".to_owned()));
    let tools = [Tool::keyed("start_job", &own)];
    let ran = verify(&world, &tools, &sandbox.url("/calls"), &[]).await;
    assert_eq!((ran.code, sandbox.counts()), (Some(1), (1, 0)), "{ran:?}");
    assert!(ran.out.contains("401 and no answer (not sent)"), "{}", ran.out);
    assert!(ran.out.contains("collapses repeats: not known"), "{}", ran.out);
}

#[tokio::test]
async fn what_cannot_be_tried_is_refused_before_anything_is_sent() {
    let world = World::new().await;
    let (own, sandbox) = (own().await, Downstream::collapsing().await);
    let cat = std::path::Path::new("/bin/cat");
    let schema = "{ type = \"object\", required = [\"amount\"] }";
    for (tool, url, why) in [
        (Tool::read("start_job", &own), sandbox.url("/calls"), "is a read"),
        (Tool::keyed("start_job", &own), own.url("/calls"), "the registry's own address"),
        (Tool::command("start_job", "keyed_write", cat), sandbox.url("/calls"), "no address"),
        (Tool::keyed("start_job", &own), "ftp://127.0.0.1/".to_owned(), "neither http nor https"),
        (Tool::keyed("other", &own), sandbox.url("/calls"), "no tool has the name \"start_job\""),
        (Tool::keyed("start_job", &own).schema(schema), sandbox.url("/calls"), "args.json: \"\""),
    ] {
        let ran = verify(&world, &[tool], &url, &[]).await;
        assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{ran:?}");
        assert!(ran.log.contains(why), "{}", ran.log);
        assert!(!ran.log.contains("real requests"), "{}", ran.log);
    }
    let ran = world.run(&["tools", "verify", "start_job", "--args", "args.json"], "").await;
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert_eq!((own.posts(), sandbox.posts()), (0, 0));
}
