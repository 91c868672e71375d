//! The `idle` table.

use super::*;

fn idle(field: &str, table: &str) -> String {
    format!("[tools.a]\neffect = \"keyed_write\"\n{SCHEMA}\n{field}\nidle = {{ {table} }}\n")
}

#[test]
fn an_idle_tool_waits_and_sends_nothing() {
    for (wait, timeout) in [("0s", "10s"), ("20ms", "1s")] {
        let text = idle(&format!("timeout = \"{timeout}\""), &format!("wait = \"{wait}\""));
        let registry = read(&text).unwrap();
        let tool = registry.get("a").unwrap();
        assert_eq!(tool.key_place(), KeyPlace::Nowhere);
        assert_eq!(duration::show(tool.timeout()), timeout);
        assert!(tool.transport().is_none() && tool.probe().is_none());
        assert!(tool.not_run_status().is_empty() && tool.not_run_exit().is_empty());
        assert_eq!(tool.validate(b"{\"x\":1}"), Ok(()));
    }
}

#[test]
fn its_place_is_its_executor_and_its_keys_format() {
    let sent_as = |field: &str, wait: &str| {
        let registry = read(&idle(field, &format!("wait = \"{wait}\""))).unwrap();
        registry.get("a").unwrap().sent_as()
    };
    assert_eq!(sent_as("", "0s"), sent_as("", "1s"));
    assert_ne!(sent_as("", "0s"), sent_as("key_format = \"uuid\"", "0s"));
}

#[test]
fn what_an_idle_tool_cannot_have_is_refused() {
    refused(&idle("", ""), 5, "no `wait`");
    refused(&idle("", "wait = \"soon\""), 5, "`wait` is no length of time");
    refused(&idle("", "wait = \"-1s\""), 5, "`wait` is not above zero");
    refused(&idle("", "wait = \"0s\", url = \"x\""), 5, "unknown field `url`");
    refused(&idle("connect_timeout = \"1s\"", "wait = \"0s\""), 4, "does not connect");
    let two =
        format!("{}[tools.a.http]\nurl = \"http://127.0.0.1:1/a\"\n", idle("", "wait = \"0s\""));
    refused(&two, 1, "more than one executor");
}
