//! What the commands print, and where.

use std::path::PathBuf;

use super::*;

fn demo() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/config/tools.toml"))
}

/// A registry in a file of its own, which goes with it.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("callonce-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

fn audit(path: &Path, json: bool, out: &mut Vec<u8>, log: &mut Vec<u8>) -> io::Result<bool> {
    super::audit(path, json, &[], out, log)
}

type Command = fn(&Path, bool, &mut Vec<u8>, &mut Vec<u8>) -> io::Result<bool>;

fn run(command: Command, path: &Path, json: bool) -> (bool, String, String) {
    let (mut out, mut log) = (Vec::new(), Vec::new());
    let valid = command(path, json, &mut out, &mut log).unwrap();
    (valid, String::from_utf8(out).unwrap(), String::from_utf8(log).unwrap())
}

fn tool(name: &str, effect: &str, field: &str, url: &str, http_field: &str) -> String {
    format!(
        "[tools.{name}]\neffect = \"{effect}\"\ninput_schema = {{}}\n{field}\n\
         [tools.{name}.http]\nurl = \"{url}\"\n{http_field}\n"
    )
}

#[test]
fn a_valid_registry_is_ok_and_missing_variables_are_warnings() {
    let (valid, out, log) = run(check, &demo(), false);
    assert!(valid);
    assert_eq!(out, "ok: 3 tools\n");
    // Whatever the environment of the test holds, no more than these is named.
    assert!(log.lines().all(|line| line.starts_with("warning: ") && line.contains("PAYMENTS_")));
    let (valid, out, _) = run(check, &demo(), true);
    let said: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!(valid && out.ends_with("}\n") && out.lines().count() == 1);
    assert_eq!((&said["ok"], &said["tools"]), (&true.into(), &3.into()));
}

#[test]
fn problems_go_to_the_log_and_nothing_is_ok() {
    let file = File::new("broken.toml", "[tools.a]\neffect = \"x\"\n");
    for command in [check as Command, audit as Command] {
        let (valid, out, log) = run(command, &file.0, false);
        assert!(!valid);
        assert_eq!(out, "");
        assert_eq!(log.lines().count(), 3, "{log}");
        assert!(log.contains("broken.toml:2: tools.a: unknown effect \"x\""), "{log}");
    }
    let (valid, out, _) = run(check, &file.0, true);
    let said: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!(!valid);
    assert_eq!(said["ok"], false);
    assert_eq!(said["problems"].as_array().unwrap().len(), 3);
    let (valid, _, log) = run(check, Path::new("/nonexistent/tools.toml"), false);
    assert!(!valid && log.starts_with("/nonexistent/tools.toml: cannot be read"), "{log}");
}

#[test]
fn the_audit_says_which_tool_can_double_fire_and_why() {
    let text = [
        tool("keyed", "keyed_write", "key_memory = \"24h\"", "http://127.0.0.1:1/", ""),
        tool("bare", "keyed_write", "ledger = false", "http://127.0.0.1:1/", "key_field = \"k\""),
        tool("trusting", "unkeyed_write", "", "http://127.0.0.1:1/", ""),
        tool("strict", "unkeyed_write", "", "https://api.test/", "not_run_status = []"),
        tool("look", "read", "", "http://api.test/", ""),
    ]
    .concat();
    let file = File::new("audit.toml", &text);
    let (valid, out, log) = run(audit, &file.0, false);
    assert!(valid && log.is_empty(), "{log}");
    let row = |name: &str| {
        let row = out.lines().find(|line| line.starts_with(name)).unwrap();
        row.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<_>>()
    };
    assert_eq!(row("TOOL"), ["TOOL", "CLASS", "GUARDS", "CAN DOUBLE-FIRE"]);
    let keyed = row("keyed");
    assert_eq!(keyed[1], "keyed_write");
    assert_eq!(keyed[2], "ledger + key (idempotency-key, hex32, remembered 24h)");
    assert!(keyed[3].starts_with("no: ") && keyed[3].contains("24h"), "{keyed:?}");
    assert_eq!(row("bare")[2], "key alone (body field k, hex32, remembered for ever)");
    assert!(row("bare")[3].starts_with("depends on the downstream: `ledger = false`"));
    assert!(row("trusting")[3].starts_with("yes: "));
    assert!(row("trusting")[3].contains("503, 429 or 425"));
    assert!(row("strict")[3].starts_with("no: "));
    assert!(row("look")[3].starts_with("yes, harmlessly: "));
    let notes: Vec<_> = out.lines().filter(|line| line.starts_with("note: ")).collect();
    assert_eq!(notes.len(), 3, "{notes:?}");
    assert!(notes.iter().any(|note| note.starts_with("note: trusting: 503 is taken")));
    assert!(notes.iter().any(|note| note.starts_with("note: bare: `ledger = false`")));
    assert!(notes.iter().any(|note| note.starts_with("note: look: plain http off this machine")));
    let (_, json, _) = run(audit, &file.0, true);
    let bare = json.lines().find(|line| line.contains("\"bare\"")).unwrap();
    assert!(bare.contains(r#""key":{"field":"k","format":"hex32","memory":null}"#), "{bare}");
    // Aligned: the last column begins at one place.
    let starts: Vec<_> = ["CAN DOUBLE", "no: a req", "depends", "yes: if", "no: it", "yes, harm"]
        .iter()
        .map(|cell| out.lines().find_map(|line| line.find(cell)).unwrap())
        .collect();
    assert!(starts.windows(2).all(|pair| pair[0] == pair[1]), "{starts:?}");
}

#[test]
fn the_audit_of_a_command_speaks_of_exit_codes() {
    let command = |name: &str, field: &str| {
        format!(
            "[tools.{name}]\neffect = \"unkeyed_write\"\ninput_schema = {{}}\n\
             [tools.{name}.command]\nprogram = \"/bin/a\"\n{field}\n"
        )
    };
    let text = [command("strict", ""), command("trusting", "not_run_exit = [3, 75]")].concat();
    let file = File::new("commands.toml", &text);
    let (valid, out, _) = run(audit, &file.0, false);
    assert!(valid);
    let row = |name: &str| out.lines().find(|line| line.starts_with(name)).unwrap();
    assert!(row("strict").contains("not relied on (CALLONCE_IDEMPOTENCY_KEY, hex32)"), "{out}");
    assert!(row("strict").contains("no: it is started again only where no request has left"));
    assert!(row("trusting").contains("yes: if it exits with 3 or 75 after acting"), "{out}");
    let (_, out, _) = run(audit, &file.0, true);
    let trusting: serde_json::Value = serde_json::from_str(out.lines().nth(1).unwrap()).unwrap();
    assert_eq!(trusting["not_run_exit"], serde_json::json!([3, 75]));
    assert_eq!(trusting["key"]["variable"], "CALLONCE_IDEMPOTENCY_KEY");
    assert_eq!(trusting["key"]["header"], serde_json::Value::Null);
}

#[test]
fn the_audit_as_json_is_one_object_a_line() {
    let (valid, out, _) = run(audit, &demo(), true);
    assert!(valid);
    let lines: Vec<serde_json::Value> =
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<_> = lines.iter().map(|line| line["tool"].as_str().unwrap()).collect();
    assert_eq!(names, ["create_ticket", "search_orders", "send_payment"]);
    let ticket = &lines[0];
    assert_eq!(ticket["class"], "unkeyed_write");
    assert_eq!(ticket["can_double_fire"], "yes");
    assert_eq!(ticket["not_run_status"], serde_json::json!([429]));
    let payment = &lines[2];
    assert_eq!(payment["can_double_fire"], "no");
    assert_eq!(
        payment["key"],
        serde_json::json!({"header": "idempotency-key", "format": "hex32", "memory": "24h"})
    );
}

#[test]
fn an_idle_tool_is_said_to_do_nothing() {
    let tools: String = ["read", "keyed_write", "unkeyed_write"]
        .map(|effect| {
            format!(
                "[tools.{effect}]\neffect = \"{effect}\"\ninput_schema = {{}}\nidle = {{ wait = \"0s\" }}\n"
            )
        })
        .concat();
    let file = File::new("idle.toml", &tools);
    let (valid, out, _) = run(audit, &file.0, false);
    assert!(valid);
    let lines: Vec<&str> = out.lines().collect();
    for (line, guard) in lines[1..4].iter().zip(["ledger", "none needed", "ledger"]) {
        let said: Vec<&str> = line.split("  ").filter(|cell| !cell.is_empty()).collect();
        assert_eq!(said[2].trim(), guard, "{line}");
        assert!(line.ends_with("yes, harmlessly: an idle tool does nothing"), "{line}");
    }
    let notes = lines[4..].iter().filter(|line| line.contains("it does nothing"));
    assert_eq!((notes.count(), lines.len()), (3, 7));
    let (_, out, _) = run(audit, &file.0, true);
    assert!(out.lines().all(|line| line.contains(r#""key":{"format":"hex32","memory":null}"#)));
}
