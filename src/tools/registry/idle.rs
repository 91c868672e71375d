//! A tool's `idle` table: how long it waits before it answers.

use std::time::Duration;

use super::source::Section;
use crate::duration;
use crate::tools::idle::IdleTool;

/// Reads the table to its end, whatever is wrong with it; none where that leaves no tool.
pub(super) fn idle(table: &Section<'_>, timeout: Duration) -> Option<IdleTool> {
    let wait = wait(table);
    table.finish();
    wait.map(|wait| IdleTool::new(wait, timeout))
}

fn wait(table: &Section<'_>) -> Option<Duration> {
    const EXPECTED: &str = "expected one such as \"0s\" or \"20ms\"";
    if table.value("wait").is_none() {
        table.problem(table.at(), format!("no `wait`; {EXPECTED}"));
        return None;
    }
    let wait = table.text("wait")?;
    duration::parse_or_zero(wait.value)
        .map_err(|error| table.problem(wait.at, format!("`wait` is {error}")))
        .ok()
}
