//! Tools that are programs on this machine.

use super::*;

/// A command with more fields: one of the tool (line 4), and some of its `command` table (from line
/// 7).
fn with(field: &str, command: &str) -> String {
    format!(
        "[tools.a]\neffect = \"unkeyed_write\"\n{SCHEMA}\n{field}\n[tools.a.command]\n\
         program = \"/bin/a\"\n{command}\n"
    )
}

fn sent_as(text: &str) -> [u8; 32] {
    read(text).unwrap().get("a").unwrap().sent_as()
}

#[test]
fn a_command_needs_no_more_than_its_program() {
    let registry = read(&with("", "")).unwrap();
    let tool = registry.get("a").unwrap();
    assert_eq!(tool.key_place(), KeyPlace::Variable("CALLONCE_IDEMPOTENCY_KEY"));
    assert_eq!((tool.not_run_status(), tool.not_run_exit()), (&[][..], &[][..]));
    assert_eq!(tool.transport(), None);
    assert!(tool.timeout() > Duration::from_secs(10), "it takes time to be ended");
    let shown = format!("{tool:?}");
    assert!(shown.contains("timeout: 10s"), "{shown}");

    let written = "args = []\nenv = {}\nnot_run_exit = []\nanswer = \"json\"";
    let written = read(&with("timeout = \"10s\"", written)).unwrap();
    assert_eq!(format!("{:?}", written.get("a").unwrap()), shown);
}

#[test]
fn what_a_command_says_holds_and_no_value_is_shown() {
    let command = "args = [\"--format\", \"pdf\"]\nenv = { TOKEN = \"x${T}\", MODE = \"SECRET\" }\n\
                   dir = \"/srv\"\nnot_run_exit = [1, 75, 255]";
    let text = with("timeout = \"1s\"", command);
    let registry = read_with(&text, variables(&[("T", "SECRET")], true)).unwrap();
    let tool = registry.get("a").unwrap();
    assert_eq!(tool.not_run_exit(), [1, 75, 255]);
    let shown = format!("{tool:?}");
    for expected in ["/bin/a", "/srv", "TOKEN", "MODE", "timeout: 1s"] {
        assert!(shown.contains(expected), "{shown}");
    }
    assert!(!shown.contains("SECRET"), "{shown}");

    let missing = read_with(&text, variables(&[], true)).unwrap_err();
    assert!(missing.to_string().contains("`TOKEN` needs the variable `T`"), "{missing}");
    let looked_at = read_with(&text, variables(&[], false)).unwrap();
    assert_eq!(looked_at.missing_variables().len(), 1);
}

#[test]
fn a_command_that_is_wrong_is_refused_with_its_line() {
    for (field, expected) in [
        ("arg = []", "unknown field `arg`"),
        ("args = \"x\"", "`args` is text; expected a list"),
        ("args = [1]", "`args` holds a whole number; expected text"),
        ("args = [\"a\\u0000b\"]", "`args` holds a NUL"),
        ("env = { A = 1 }", "`A` is no text"),
        ("env = { \"A=B\" = \"x\" }", "`A=B` is no variable's name"),
        ("env = { \"\" = \"x\" }", "is no variable's name"),
        ("env = { A = \"a\\u0000\" }", "`A` has a NUL"),
        ("env = { A = \"${B\" }", "begins no variable"),
        ("env = { CALLONCE_IDEMPOTENCY_KEY = \"x\" }", "carries the key"),
        ("dir = \"srv\"", "`dir` is no absolute path"),
        ("not_run_exit = [0]", "0 cannot be in `not_run_exit`; expected 1 to 255"),
        ("not_run_exit = [256]", "256 cannot be in `not_run_exit`"),
        ("answer = \"xml\"", "unknown answer \"xml\""),
    ] {
        refused(&with("", field), 7, expected);
    }
    refused(&with("", "").replace("/bin/a", "bin/a"), 6, "`program` is no absolute path");
    refused(&with("", "").replace("program = \"/bin/a\"", ""), 5, "no `program`");
    refused(&with("connect_timeout = \"1s\"", ""), 4, "a command does not connect");
    let both = with("", "[tools.a.http]\nurl = \"http://127.0.0.1:1/\"");
    refused(&both, 1, "more than one executor");
}

#[test]
fn the_same_place_is_program_and_arguments() {
    let least = sent_as(&with("", ""));
    let same = "env = { A = \"x\" }\ndir = \"/srv\"\nnot_run_exit = [3]";
    assert_eq!(least, sent_as(&with("timeout = \"1s\"", same)));
    let others = [
        with("", "args = [\"\"]"),
        with("", "args = [\"a\", \"b\"]"),
        with("", "args = [\"b\", \"a\"]"),
        with("", "args = [\"ab\"]"),
        with("key_format = \"uuid\"", ""),
        with("", "").replace("/bin/a", "/bin/b"),
    ]
    .map(|text| sent_as(&text));
    for (index, other) in others.iter().enumerate() {
        assert_ne!(least, *other);
        assert!(!others[..index].contains(other));
    }
}
