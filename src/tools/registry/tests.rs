//! A registry is read whole: what is good in it, and everything that is wrong with it at once.

mod command;
mod idle;

use std::collections::BTreeMap;

use super::*;
use crate::call::key::KeyFormat;
use crate::outcome::{EffectClass, Verdict};
use crate::tools::{KeyPlace, ProbePolicy, RetryBudget, SendGate, ToolCall, Transport};

const SCHEMA: &str = "input_schema = { type = \"object\" }";

/// The least that a tool is.
const LEAST: &str = "[tools.a]
effect = \"keyed_write\"
input_schema = { type = \"object\" }
[tools.a.http]
url = \"http://127.0.0.1:1/a\"
";

fn variables(values: &[(&str, &str)], required: bool) -> Variables {
    let values: BTreeMap<String, String> =
        values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Variables::from_lookup(move |name| values.get(name).cloned(), required)
}

/// Reads a text as if it were a file beside this one.
fn read_with(text: &str, variables: Variables) -> Result<Registry, RegistryError> {
    Registry::read(Path::new("reg/tools.toml"), text, variables, 1024)
}

fn read(text: &str) -> Result<Registry, RegistryError> {
    read_with(text, variables(&[], true))
}

/// The problems as `line: message`.
fn problems(text: &str) -> Vec<String> {
    let error = read(text).expect_err(text);
    let problems = error.problems();
    assert!(problems.iter().all(|problem| problem.path == Path::new("reg/tools.toml")));
    problems.iter().map(|problem| format!("{}: {}", problem.line, problem.message)).collect()
}

#[track_caller]
fn refused(text: &str, line: usize, expected: &str) {
    let found = problems(text);
    let hit = found
        .iter()
        .any(|problem| problem.starts_with(&format!("{line}: ")) && problem.contains(expected));
    assert!(hit, "no problem \"{expected}\" in line {line} of\n{text}\nfound: {found:#?}");
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].contains("; expected "), "{found:?} does not say what was expected");
}

/// A tool with one more line in its own table (line 4), and one in its `http` table (line 7).
fn with(field: &str, http_field: &str) -> String {
    format!(
        "[tools.a]\neffect = \"keyed_write\"\n{SCHEMA}\n{field}\n[tools.a.http]\n\
         url = \"http://127.0.0.1:1/a\"\n{http_field}\n"
    )
}

#[test]
fn what_is_not_said_has_the_default_of_the_design() {
    let registry = read(LEAST).unwrap();
    let tool = registry.get("a").unwrap();
    assert_eq!(tool.name().as_str(), "a");
    assert_eq!(tool.description(), None);
    assert_eq!(tool.effect(), EffectClass::KeyedWrite);
    assert_eq!(tool.timeout(), Duration::from_secs(10));
    assert_eq!(tool.lease(), Duration::from_secs(30));
    assert_eq!(tool.max_concurrency(), 32);
    let expected = RetryBudget {
        initial: Duration::from_millis(200),
        max_interval: Duration::from_secs(10),
        max_elapsed: Duration::from_secs(30),
        rounds: 3,
    };
    assert_eq!(*tool.retry(), expected);
    assert_eq!(tool.key_format(), KeyFormat::Hex32);
    assert_eq!(tool.key_memory(), None);
    assert!(tool.uses_ledger());
    assert_eq!(tool.key_place(), KeyPlace::Header("idempotency-key"));
    assert_eq!(tool.not_run_status(), [503, 429, 425]);
    assert_eq!(tool.transport(), Some(Transport::HttpOnLoopback));
    let shown = format!("{tool:?}");
    assert!(shown.contains("connect_timeout: 3s"), "{shown}");
    for expected in [
        "in_progress: [], duplicate: [], replayed: [], key_reused: []",
        "replay_header: None",
        "answer: Json",
        "stream: StreamSettings { declared: false, terminal_event: \"done\", error_event: \"error\", \
         idle_timeout: 30s, missing_terminal: Completed }",
    ] {
        assert!(shown.contains(expected), "{expected} is not in {shown}");
    }
}

#[test]
fn the_defaults_written_out_change_nothing() {
    let field = "timeout = \"10s\"\nconnect_timeout = \"3s\"\nlease = \"30s\"\n\
                 max_concurrency = 32\nledger = true\nkey_format = \"hex32\"\n\
                 retry = { initial = \"200ms\", max_interval = \"10s\", max_elapsed = \"30s\", rounds = 3 }";
    let http = "headers = {}\nkey_header = \"Idempotency-Key\"\nnot_run_status = [503, 429, 425]\n\
                in_progress_status = []\nduplicate_status = []\nreplayed_status = []\nkey_reused_status = []\nanswer = \"json\"";
    let written = read(&with(field, http)).unwrap();
    let least = read(LEAST).unwrap();
    let (written, least) = (written.get("a").unwrap(), least.get("a").unwrap());
    assert_eq!(format!("{written:?}"), format!("{least:?}"));
    assert_eq!(written.sent_as(), least.sent_as());
}

#[test]
fn what_is_said_holds() {
    let field = "description = \"d\"\ntimeout = \"2m\"\nconnect_timeout = \"1m\"\nlease = \"1s\"\n\
                 max_concurrency = 1\nkey_format = \"uuid\"\nkey_memory = \"24h\"\nledger = false\n\
                 retry.rounds = 0\nretry.initial = \"1s\"";
    let http = "key_header = \"X-Request-Id\"\nnot_run_status = []\nin_progress_status = [409]\n\
                duplicate_status = [412]\nreplayed_status = [412, 422]\n\
                key_reused_status = [421]\nanswer = \"bytes\"\nreplay_header = \"X-Replayed\"\n\
                stream = { terminal_event = \"end\", error_event = \"oops\", idle_timeout = \"5s\", \
                missing_terminal = \"unknown\" }";
    let registry = read(&with(field, http)).unwrap();
    let tool = registry.get("a").unwrap();
    assert_eq!(tool.description(), Some("d"));
    assert_eq!(tool.timeout(), Duration::from_secs(120));
    assert_eq!(tool.lease(), Duration::from_secs(1));
    assert_eq!(tool.max_concurrency(), 1);
    assert_eq!(tool.key_format(), KeyFormat::Uuid);
    assert_eq!(tool.key_memory(), Some(Duration::from_secs(24 * 60 * 60)));
    assert!(!tool.uses_ledger());
    assert_eq!((tool.retry().rounds, tool.retry().initial), (0, Duration::from_secs(1)));
    assert_eq!(tool.key_place(), KeyPlace::Header("x-request-id"));
    assert_eq!(tool.not_run_status(), [0_u16; 0]);
    let shown = format!("{tool:?}");
    for expected in [
        "in_progress: [409], duplicate: [412], replayed: [412, 422], key_reused: [421]",
        "replay_header: Some(\"x-replayed\")",
        "answer: Bytes",
        "stream: StreamSettings { declared: true, terminal_event: \"end\", error_event: \"oops\", \
         idle_timeout: 5s, missing_terminal: Unknown }",
    ] {
        assert!(shown.contains(expected), "{expected} is not in {shown}");
    }
}

#[test]
fn a_stream_that_is_declared_has_the_defaults_of_the_design() {
    let shown = |http: &str| format!("{:?}", read(&with("", http)).unwrap().get("a").unwrap());
    let declared = shown("stream = {}");
    let written = "stream = { terminal_event = \"done\", error_event = \"error\", \
                   idle_timeout = \"30s\", missing_terminal = \"completed\" }";
    assert_eq!(declared, shown(written));
    assert_eq!(declared.replace("declared: true", "declared: false"), shown(""));
}

#[test]
fn a_key_field_takes_the_place_of_the_header() {
    let registry = read(&with("", "key_field = \"request_id\"")).unwrap();
    let tool = registry.get("a").unwrap();
    assert_eq!(tool.key_place(), KeyPlace::Field("request_id"));
    let header = read(&with("", "key_header = \"request_id\"")).unwrap();
    assert_ne!(tool.sent_as(), header.get("a").unwrap().sent_as());
    // What was the key's header is now one like any other.
    let free = "key_field = \"k\"\nheaders = { Idempotency-Key = \"x\" }";
    assert!(read(&with("", free)).is_ok());
}

const PROBE: &str = "probe = { url = \"http://127.0.0.1:1/a/{key}\", state_field = \"/s\", \
                     completed = [\"paid\"] }";

#[test]
fn a_probe_has_the_defaults_of_the_design() {
    let registry = read(&with("", PROBE)).unwrap();
    let tool = registry.get("a").unwrap();
    let expected = ProbePolicy {
        settle_delay: Duration::from_secs(2),
        deadline: Duration::from_secs(60),
        not_found_is_not_run: false,
    };
    assert_eq!(tool.probe(), Some(&expected));
    assert_eq!(tool.longest_probe(), Duration::from_secs(70));
    let bare = read(LEAST).unwrap();
    assert_eq!(bare.get("a").unwrap().probe(), None);
    assert_eq!(bare.get("a").unwrap().longest_probe(), Duration::ZERO);
    // Where one asks is no part of where one sends.
    assert_eq!(tool.sent_as(), bare.get("a").unwrap().sent_as());
}

#[test]
fn a_probe_that_is_wrong_is_refused_with_its_line() {
    for (found, wanted, expected) in [
        ("/a/{key}", "/a", "`url` has not exactly one `{key}`"),
        ("/a/{key}", "/{key}/{key}", "`url` has not exactly one `{key}`"),
        ("1:1/a/{key}", "1:1/{key}/../x", "has its `{key}` neither in the path nor in the query"),
        ("http://127.0.0.1:1/a/{key}", "http://{key}.test/", "has its `{key}` neither"),
        ("1:1/a/{key}", "1:2/a/{key}", "names another server than the tool's"),
        ("http:", "gopher:", "`url` is no such address"),
        ("\"/s\"", "\"s\"", "`state_field` is no JSON Pointer"),
        ("state_field = \"/s\",", "", "no `state_field`"),
        ("completed = [\"paid\"]", "failed = []", "no `completed`"),
        ("[\"paid\"]", "[]", "`completed` is empty"),
        ("[\"paid\"]", "[\"paid\", 1]", "`completed` holds a whole number; expected text"),
        ("[\"paid\"]", "[\"paid\"], running = [\"paid\"]", "\"paid\" is there twice"),
        ("[\"paid\"]", "[\"paid\"], not_found = \"gone\"", "unknown not_found \"gone\""),
        ("[\"paid\"]", "[\"paid\"], settle_delay = 2", "`settle_delay` is a whole number"),
        ("[\"paid\"]", "[\"paid\"], retries = 2", "unknown field `retries`"),
    ] {
        let text = PROBE.replace(found, wanted);
        assert_ne!(text, PROBE);
        refused(&with("", &text), 7, expected);
    }
    let asks_in_vain = with("", PROBE).replace("keyed_write", "read");
    refused(&asks_in_vain, 7, "a read is asked again as it is");
}

#[test]
fn approval_needs_a_write_that_is_claimed() {
    let registry = read(&with("approval = \"required\"", "")).unwrap();
    assert!(registry.get("a").unwrap().needs_approval());
    assert!(!read(LEAST).unwrap().get("a").unwrap().needs_approval());
    let text = with("approval = \"required\"", "");
    refused(&text.replace("keyed_write", "read"), 4, "`approval` needs the ledger");
    refused(&with("approval = \"required\"\nledger = false", ""), 4, "`approval` needs the ledger");
    refused(&with("approval = \"asked\"", ""), 4, "unknown approval \"asked\"");
}

#[test]
fn a_read_never_uses_the_ledger() {
    let registry = read(&LEAST.replace("keyed_write", "read")).unwrap();
    assert!(!registry.get("a").unwrap().uses_ledger());
    let registry = read(&LEAST.replace("keyed_write", "unkeyed_write")).unwrap();
    assert!(registry.get("a").unwrap().uses_ledger());
}

#[test]
fn a_name_is_found_exactly_as_it_is_written() {
    let names = ["send.payment", "send payment", "Zahlung_ß", "a/b?c#d", "http://x", "\\u00e9"];
    let text: String =
        names.iter().map(|name| LEAST.replace("tools.a", &format!("tools.'{name}'"))).collect();
    let registry = read(&text).unwrap();
    for name in names {
        assert_eq!(registry.get(name).map(|tool| tool.name().as_str()), Some(name));
    }
    for other in ["send_payment", "SEND.PAYMENT", " send.payment", "é", ""] {
        assert!(registry.get(other).is_none(), "{other}");
    }
    assert_eq!(registry.iter().count(), names.len());
}

#[test]
fn a_name_that_no_key_can_hold_is_refused() {
    refused(&LEAST.replace("tools.a", "tools.\"a|b\""), 1, "holds a '|'");
    refused(&LEAST.replace("tools.a", "tools.\"\""), 1, "is empty");
    refused(&LEAST.replace("tools.a", "tools.\"a\\nb\""), 1, "control character");
    let long = format!("tools.{}", "a".repeat(257));
    refused(&LEAST.replace("tools.a", &long), 1, "257 bytes");
}

#[test]
fn what_a_tool_must_say_is_asked_for() {
    refused(&LEAST.replace("effect = \"keyed_write\"\n", ""), 1, "no `effect`");
    refused(&LEAST.replace(&format!("{SCHEMA}\n"), ""), 1, "no schema");
    refused(&format!("[tools.a]\neffect = \"read\"\n{SCHEMA}\n"), 1, "no executor");
    refused(&LEAST.replace("url = \"http://127.0.0.1:1/a\"", ""), 4, "no `url`");
}

#[test]
fn a_field_that_is_wrong_is_refused_with_its_line() {
    for (field, expected) in [
        ("efect = 1", "unknown field `efect`"),
        ("timeout = 10", "`timeout` is a whole number; expected text"),
        ("timeout = \"10\"", "`timeout` is no length of time"),
        ("timeout = \"0s\"", "`timeout` is not above zero"),
        ("timeout = \"3s\"", "`connect_timeout` (3s) is not shorter than `timeout` (3s)"),
        ("connect_timeout = \"10s\"", "`connect_timeout` (10s) is not shorter"),
        ("lease = \"999ms\"", "`lease` is too short; expected at least 1s"),
        ("max_concurrency = 0", "`max_concurrency` is 0"),
        ("max_concurrency = -1", "expected whole numbers from 0"),
        ("max_concurrency = 4294967296", "expected whole numbers from 0"),
        ("max_concurrency = 1.5", "`max_concurrency` is a number"),
        ("ledger = \"no\"", "`ledger` is text; expected true or false"),
        ("key_format = \"hex16\"", "unknown key_format \"hex16\""),
        ("key_memory = \"for ever\"", "`key_memory` is no length of time"),
        ("description = 1", "`description` is a whole number; expected text"),
        ("retry = 3", "`retry` is a whole number; expected a table"),
        ("retry = { round = 3 }", "tools.a.retry: unknown field `round`"),
        ("retry = { initial = \"11s\" }", "`initial` (11s) is longer than `max_interval` (10s)"),
        ("retry = { rounds = \"3\" }", "`rounds` is text"),
        ("input_schema_file = \"x.json\"", "two schemas"),
        ("mcp = { program = \"x\" }", "more than one executor"),
        ("approval = true", "`approval` is true or false; expected text"),
    ] {
        let text = with(field, "");
        if field.starts_with("mcp") {
            let found = problems(&text);
            assert_eq!(found.len(), 2, "{found:?}");
            assert!(found.iter().any(|problem| problem.contains(expected)), "{found:?}");
            assert!(
                found.iter().any(|problem| problem.starts_with("4: tools.a: `mcp` is not built")),
                "{found:?}"
            );
        } else {
            refused(&text, 4, expected);
        }
    }
}

#[test]
fn an_http_field_that_is_wrong_is_refused_with_its_line() {
    for (field, expected) in [
        ("method = \"PUT\"", "tools.a.http: unknown field `method`"),
        ("stream = true", "`stream` is true or false; expected a table"),
        ("stream = { terminal = \"x\" }", "tools.a.http.stream: unknown field `terminal`"),
        ("stream = { terminal_event = \"\" }", "`terminal_event` is empty"),
        ("stream = { error_event = \"a\\nb\" }", "`error_event` holds a control character"),
        ("stream = { terminal_event = \"error\" }", "`terminal_event` and `error_event` are one"),
        ("stream = { idle_timeout = \"0s\" }", "`idle_timeout` is not above zero"),
        ("stream = { missing_terminal = \"ok\" }", "unknown missing_terminal \"ok\""),
        ("key_field = \"\"", "`key_field` is empty"),
        ("key_field = \"\\u0000\"", "`key_field` holds a control character"),
        ("replay_header = \"a b\"", "`replay_header` is no header name"),
        ("answer = \"xml\"", "unknown answer \"xml\"; expected \"json\", \"text\" or \"bytes\""),
        ("key_reused_status = [408]", "408 cannot be in `key_reused_status`"),
        ("key_reused_status = [500]", "500 cannot be in `key_reused_status`"),
        ("key_reused_status = [429]", "429 is in not_run_status and key_reused_status"),
        ("key_header = \"bad header\"", "`key_header` is no header name"),
        ("key_header = \"Content-Length\"", "`key_header` is a header of the request itself"),
        ("headers = { \"bad header\" = \"x\" }", "`bad header` is no header name"),
        ("headers = { x = 1 }", "`x` is no text"),
        ("headers = { x = \"a\\nb\" }", "`x` has no legal header value"),
        ("headers = { Idempotency-Key = \"x\" }", "`Idempotency-Key` carries the key"),
        ("headers = { Transfer-Encoding = \"x\" }", "is a header of the request itself"),
        ("headers = { A = \"x\", a = \"y\" }", "`a` is there twice"),
        ("headers = { A = \"${B\" }", "begins no variable; expected `${NAME}`"),
        ("headers = { A = \"${1}\" }", "begins no variable"),
        ("not_run_status = 503", "`not_run_status` is a whole number; expected a list"),
        ("not_run_status = [\"503\"]", "`not_run_status` holds text"),
        ("not_run_status = [200]", "200 cannot be in `not_run_status`; expected 400 to 599"),
        ("not_run_status = [99]", "99 cannot be"),
        ("in_progress_status = [600]", "600 cannot be in `in_progress_status`"),
        ("in_progress_status = [503]", "503 is in not_run_status and in_progress_status"),
        ("replayed_status = [500]", "500 cannot be in `replayed_status`"),
        ("replayed_status = [408]", "408 cannot be in `replayed_status`"),
        ("replayed_status = [200]", "200 cannot be in `replayed_status`"),
        ("duplicate_status = [70000]", "70000 cannot be in `duplicate_status`"),
    ] {
        refused(&with("", field), 7, expected);
    }
    let long = format!("key_field = \"{}\"", "k".repeat(257));
    refused(&with("", &long), 7, "`key_field` is too long");
    refused(&with("", "key_header = \"A\"\nkey_field = \"k\""), 8, "two places for the key");
    for other in ["in_progress", "duplicate", "replayed"] {
        let lists = format!("{other}_status = [422]\nkey_reused_status = [422]");
        refused(&with("", &lists), 8, &format!("422 is in {other}_status and key_reused_status"));
    }
}

#[test]
fn a_url_that_cannot_be_called_is_refused_without_a_word_of_it() {
    for (url, expected) in [
        ("ftp://SECRET/", "no such address"),
        ("/SECRET", "no such address"),
        ("http://", "is no URL"),
        ("http://SECRET:x/", "is no URL"),
        ("https://SECRET:99999/", "is no URL"),
        ("http://user:SECRET@h/", "holds a user name or a password"),
        ("http://h/#SECRET", "has a fragment"),
        ("${SCHEME}://h/", "is neither http nor https"),
    ] {
        let text = LEAST.replace("http://127.0.0.1:1/a", url);
        let error = read_with(&text, variables(&[("SCHEME", "ftp")], true)).unwrap_err();
        let said = error.to_string();
        assert!(said.starts_with("reg/tools.toml:5: tools.a.http: `url` "), "{said}");
        assert!(said.contains(expected) && !said.contains("SECRET"), "{said}");
    }
}

#[test]
fn a_write_that_nothing_guards_is_refused() {
    let text = with("ledger = false", "").replace("keyed_write", "unkeyed_write");
    refused(&text, 4, "`ledger = false` on an unkeyed_write");
    assert!(read(&with("ledger = false", "")).is_ok());
}

#[test]
fn every_problem_is_reported_at_once_in_the_order_of_the_lines() {
    let text = "answer = 42
[tools.a]
effect = \"write\"
timeout = \"soon\"
[tools.a.http]
url = \"gopher://x\"
probe = {}
[tools.\"b|c\"]
effect = \"read\"
input_schema = { type = \"objct\" }
[tools.b.http]
url = \"http://127.0.0.1:1/\"
[tools.d]
mcp = {}
approval = true
";
    let found = problems(text);
    let lines: Vec<_> = found.iter().map(|problem| problem.split(':').next().unwrap()).collect();
    assert_eq!(
        lines,
        [
            "1", "2", "3", "4", "6", "7", "7", "7", "8", "8", "10", "11", "11", "13", "13", "14",
            "15"
        ]
    );
    for expected in [
        "1: unknown field `answer`; expected one of: tools",
        "3: tools.a: unknown effect \"write\"",
        "8: tools.b|c: no executor",
        "10: tools.b|c: the schema is not valid",
        "11: tools.b: no `effect`",
        "11: tools.b: no schema",
        "14: tools.d: `mcp` is not built yet",
    ] {
        assert!(found.iter().any(|problem| problem.contains(expected)), "{expected}: {found:#?}");
    }
}

#[test]
fn what_is_no_toml_is_refused_with_its_line() {
    for (text, line) in [
        ("[tools.a]\neffect = \n", 2),
        ("[tools.a]\n[tools.b]\n[tools.a]\n", 3),
        ("[tools.a]\neffect = \"read\"\neffect = \"read\"\n", 3),
    ] {
        let found = problems(text);
        assert!(found[0].starts_with(&format!("{line}: no valid TOML")), "{found:?}");
    }
    assert_eq!(read("").unwrap().iter().count(), 0);
}

#[test]
fn a_schema_refers_only_to_itself() {
    let schema = |schema: &str| LEAST.replace("{ type = \"object\" }", schema);
    assert!(read(&schema("{ \"$ref\" = \"#/$defs/a\", \"$defs\" = { a = {} } }")).is_ok());
    for reference in
        ["https://example.com/schema.json", "other.json", "file:///etc/passwd", "#/$defs/missing"]
    {
        refused(
            &schema(&format!("{{ \"$ref\" = \"{reference}\" }}")),
            3,
            "the schema is not valid",
        );
    }
    refused(&schema("{ type = \"objct\" }"), 3, "the schema is not valid");
    refused(&schema("{ const = 1979-05-27 }"), 3, "holds a date");
    refused(&schema("{ const = inf }"), 3, "a number that JSON does not have");
    refused(&schema("\"x\""), 3, "the schema is no table");
}

#[test]
fn a_schema_may_stand_in_a_file_of_its_own() {
    let folder = std::env::temp_dir().join(format!("callonce-schemas-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("schemas")).unwrap();
    let path = folder.join("tools.toml");
    let text = LEAST.replace(SCHEMA, "input_schema_file = \"schemas/a.json\"");
    std::fs::write(&path, text).unwrap();
    let load = || Registry::load(&path, variables(&[], true));

    let said = load().unwrap_err().to_string();
    assert!(said.contains("tools.toml:3: tools.a: ") && said.contains("cannot be read"), "{said}");
    std::fs::write(folder.join("schemas/a.json"), "{\"required\":[\"x\"],}").unwrap();
    let said = load().unwrap_err().to_string();
    assert!(said.contains("a.json: no JSON: ") && said.contains("line 1"), "{said}");
    std::fs::write(folder.join("schemas/a.json"), "{\"required\":[\"x\"]}").unwrap();
    let registry = load().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(registry.get("a").unwrap().validate(b"{}").is_err());
    assert!(registry.get("a").unwrap().validate(b"{\"x\":1}").is_ok());

    let error = load().unwrap_err();
    assert!(matches!(error, RegistryError::Unreadable { .. }) && error.problems().is_empty());
}

#[test]
fn violations_name_the_place_and_hold_no_value() {
    let schema = "{ type = \"object\", required = [\"amount\"], additionalProperties = false, \
                  properties = { amount = { type = \"string\", pattern = \"^[0-9]+$\" }, \
                  who = { enum = [\"a\", \"b\"] }, many = { items = { type = \"integer\", maximum = 5 } } } }";
    let registry = read(&LEAST.replace("{ type = \"object\" }", schema)).unwrap();
    let tool = registry.get("a").unwrap();
    assert_eq!(tool.validate(br#"{"amount": "12", "who": "a", "many": [1]}"#), Ok(()));
    let args = br#"{"amount": "SECRET", "who": "SECRET", "many": [1, 77777, "SECRET"], "extra": "SECRET"}"#;
    let violations = tool.validate(args).unwrap_err();
    let mut pointers: Vec<_> =
        violations.iter().map(|violation| violation.pointer.as_str()).collect();
    pointers.sort_unstable();
    assert_eq!(pointers, ["", "/amount", "/many/1", "/many/2", "/who"]);
    for violation in &violations {
        let message = &violation.message;
        assert!(!message.contains("SECRET") && !message.contains("77777"), "{violation:?}");
    }
    let missing = tool.validate(b"{}").unwrap_err();
    assert!(missing[0].message.contains("amount"), "{missing:?}");
    assert_eq!(tool.validate(b"[]").unwrap_err()[0].pointer, "");
    assert!(tool.validate(b"no json").is_err());
}

#[test]
fn violations_are_bounded() {
    let schema = "{ additionalProperties = { type = \"string\" } }";
    let registry = read(&LEAST.replace("{ type = \"object\" }", schema)).unwrap();
    let members: Vec<_> = (0..1000).map(|n| format!("\"{}{n}\":{n}", "é".repeat(500))).collect();
    let args = format!("{{{}}}", members.join(","));
    let violations = registry.get("a").unwrap().validate(args.as_bytes()).unwrap_err();
    assert_eq!(violations.len(), VIOLATIONS_MAX);
    for violation in violations {
        assert!(violation.pointer.len() < 310 && violation.message.len() < 310, "{violation:?}");
    }
}

const SECRETS: &str = "[tools.a]
effect = \"keyed_write\"
input_schema = {}
[tools.a.http]
url = \"${BASE}/a?token=${TOKEN}\"
headers = { authorization = \"Bearer ${TOKEN}\", accept = \"${ACCEPT}\" }
";

#[test]
fn a_worker_needs_every_variable() {
    let error = read_with(SECRETS, variables(&[("ACCEPT", "")], true)).unwrap_err();
    let lines: Vec<_> = error.problems().iter().map(|problem| problem.line).collect();
    assert_eq!(lines, [5, 5, 6, 6], "{error}");
    for name in ["`BASE`", "`TOKEN`", "`ACCEPT`"] {
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn a_look_at_the_file_names_missing_variables_and_needs_none() {
    let registry = read_with(SECRETS, variables(&[("TOKEN", "x")], false)).unwrap();
    let missing: Vec<_> = registry.missing_variables().iter().map(ToString::to_string).collect();
    assert_eq!(
        missing,
        [
            "reg/tools.toml:5: the variable `BASE` is not set",
            "reg/tools.toml:6: the variable `ACCEPT` is not set"
        ]
    );
    assert_eq!(registry.get("a").unwrap().transport(), None);
}

#[test]
fn values_of_variables_are_never_shown() {
    let set = [("BASE", "http://SECRET.test"), ("TOKEN", "SECRET"), ("ACCEPT", "SECRET")];
    let registry = read_with(SECRETS, variables(&set, true)).unwrap();
    assert!(registry.missing_variables().is_empty());
    let shown = format!("{registry:?}");
    assert!(shown.contains("authorization") && !shown.contains("SECRET"), "{shown}");
    for broken in [
        [("BASE", "SECRET"), ("TOKEN", "x"), ("ACCEPT", "x")],
        [("BASE", "http://h"), ("TOKEN", "SECRET\nSECRET"), ("ACCEPT", "x")],
        [("BASE", "http://h"), ("TOKEN", "x"), ("ACCEPT", "SECRET\0")],
    ] {
        let error = read_with(SECRETS, variables(&broken, true)).unwrap_err();
        let said = format!("{error} {error:?}");
        assert!(!said.contains("SECRET"), "{said}");
    }
}

#[test]
fn a_downstream_alone_must_remember_longer_than_a_call_can_come_back() {
    let day = Duration::from_secs(24 * 60 * 60);
    for (field, fits) in [
        ("ledger = false\nkey_memory = \"1h\"", false),
        ("ledger = false\nkey_memory = \"24h\"", true),
        ("ledger = false", true),
        ("key_memory = \"1h\"", true),
    ] {
        let checked = read(&with(field, "")).unwrap().check_way_back(day);
        assert_eq!(checked.is_ok(), fits, "{field}");
        if let Err(error) = checked {
            let said = error.to_string();
            assert!(said.starts_with("reg/tools.toml:1: tools.a: "), "{said}");
            assert!(said.contains("1h") && said.contains("24h; expected"), "{said}");
        }
    }
}

#[test]
fn the_registry_of_the_demo_is_valid() {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/config/tools.toml"));
    let set = [("PAYMENTS_URL", "http://127.0.0.1:8080"), ("PAYMENTS_TOKEN", "t")];
    let registry = Registry::load(path, variables(&set, true)).unwrap();
    let classes: Vec<_> =
        registry.iter().map(|tool| (tool.name().as_str(), tool.effect())).collect();
    assert_eq!(
        classes,
        [
            ("create_ticket", EffectClass::UnkeyedWrite),
            ("search_orders", EffectClass::Read),
            ("send_payment", EffectClass::KeyedWrite),
        ]
    );
    let pay = registry.get("send_payment").unwrap();
    assert_eq!(pay.lease(), Duration::from_secs(2));
    assert!(pay.validate(br#"{"invoice": "INV-7", "amount": "120.00"}"#).is_ok());
    assert!(pay.validate(br#"{"invoice": "INV-7", "amount": 120}"#).is_err());
    let looked_at = Registry::load(path, variables(&[], false)).unwrap();
    assert_eq!(looked_at.missing_variables().len(), 4);
}

/// The shape that the worker needs: a tool is shared, and its call is a future that may move.
#[tokio::test]
async fn a_tool_is_called_from_any_task() {
    let registry = read(LEAST).unwrap();
    let tool = Arc::clone(registry.get("a").unwrap());
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move {
        let call = ToolCall { key: "k".into(), args: "{}".into(), traceparent: None };
        tool.call(call, SendGate::new(|| false)).await
    });
    let verdict = tasks.join_next().await.unwrap().unwrap();
    assert!(matches!(verdict, Verdict::NotSent(_)), "{verdict:?}");
}
