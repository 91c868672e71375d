//! A call as a person is shown it, and what they can do about it.

use std::io::{self, Write};

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::call::reply::{CallError, ErrorKind};
use crate::cli::table::{cell, print};
use crate::ledger::CallView;
use crate::ledger::state::State;

/// Prints a call. `records` is how the tool's own records name it, where the registry says.
pub(super) fn show(out: &mut impl Write, call: &CallView, records: Option<&str>) -> io::Result<()> {
    let none = || "-".to_owned();
    let text = |text: &Option<String>| text.as_deref().map_or_else(none, cell);
    let outcome = call.outcome.as_ref();
    let error = outcome.and_then(|outcome| outcome.error.as_ref());
    let denied = error.is_some_and(|error| error.kind == ErrorKind::Denied);
    let raw = |value: Option<&RawValue>| value.map_or_else(none, |value| value.get().to_owned());
    let rows = [
        ["key".to_owned(), call.key.to_string()],
        ["state".to_owned(), if denied { "held, denied".to_owned() } else { call.state.clone() }],
        ["conversation".to_owned(), cell(&call.conversation_id)],
        ["turn".to_owned(), call.turn_index.to_string()],
        ["tool".to_owned(), format!("{} ({})", cell(&call.name), call.effect)],
        ["ordinal".to_owned(), call.ordinal.to_string()],
        ["arguments".to_owned(), raw(call.args.as_deref())],
        ["meta".to_owned(), raw(call.meta.as_deref())],
        ["response".to_owned(), text(&call.response_id)],
        ["approved".to_owned(), if call.approved { "yes" } else { "-" }.to_owned()],
        ["attempt".to_owned(), call.attempt.to_string()],
        ["worker".to_owned(), text(&call.worker)],
        ["claimed".to_owned(), call.claimed_at.clone()],
        ["lease until".to_owned(), text(&call.lease_until)],
        ["settled".to_owned(), text(&call.settled_at)],
        ["content".to_owned(), raw(outcome.and_then(|outcome| outcome.content.as_deref()))],
        [
            "error".to_owned(),
            error.map_or_else(none, |error| format!("{}: {}", error.kind, error.message)),
        ],
    ];
    print(out, &rows)?;
    if !call.history.is_empty() {
        writeln!(out)?;
        history(out, call)?;
    }
    next(out, call, records)
}

fn history(out: &mut impl Write, call: &CallView) -> io::Result<()> {
    let none = || "-".to_owned();
    let text = |text: &Option<String>| text.as_deref().map_or_else(none, cell);
    let head = ["at", "event", "attempt", "worker", "by", "reason", "detail"].map(str::to_owned);
    let entries = call.history.iter().map(|entry| {
        let attempt = entry.attempt.map_or_else(none, |attempt| attempt.to_string());
        [
            entry.at.clone(),
            entry.event.clone(),
            attempt,
            text(&entry.worker),
            text(&entry.by),
            text(&entry.reason),
            entry.detail.as_deref().map_or_else(none, told),
        ]
    });
    print(out, &std::iter::once(head).chain(entries).collect::<Vec<_>>())
}

/// What an entry of the history has to say, in words: the steps of an attempt, or an outcome's error.
fn told(detail: &RawValue) -> String {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Detail {
        Steps(Vec<Step>),
        Outcome { error: Option<CallError> },
    }
    #[derive(Deserialize)]
    struct Step {
        branch: Option<String>,
        phase: Option<String>,
        probe: Option<String>,
        message: Option<String>,
        times: u32,
    }
    let step = |step: &Step| {
        let what = match (&step.branch, &step.probe) {
            (Some(branch), _) => branch.clone(),
            (None, probe) => format!("probe: {}", probe.as_deref().unwrap_or("?")),
        };
        let phase = step.phase.as_ref().map(|phase| format!(" in {phase}")).unwrap_or_default();
        let times = if step.times > 1 { format!(" ×{}", step.times) } else { String::new() };
        let message = step.message.as_ref().map(|said| format!(": {said}")).unwrap_or_default();
        format!("{what}{phase}{times}{message}")
    };
    match serde_json::from_str(detail.get()) {
        Ok(Detail::Steps(steps)) => steps.iter().map(step).collect::<Vec<_>>().join("; "),
        Ok(Detail::Outcome { error: Some(error) }) => format!("{}: {}", error.kind, error.message),
        Ok(Detail::Outcome { error: None }) | Err(_) => "-".to_owned(),
    }
}

/// What a person can do about a call that waits for one.
fn next(out: &mut impl Write, call: &CallView, records: Option<&str>) -> io::Result<()> {
    let key = call.key;
    let steps = match State::parse(&call.state) {
        Some(State::Unknown) => {
            let records = records.unwrap_or("its key, or its arguments");
            format!(
                "Whether it happened is not known. Look in the records of the tool for {records}.\n\
                 It happened:  callonce ledger resolve {key} --completed FILE --by NAME --reason TEXT\n\
                 It did not:   callonce ledger resolve {key} --not-run --by NAME --reason TEXT\n\
                 The next delivery of the job acts on it."
            )
        }
        Some(State::Held) => format!(
            "Nothing was sent.\n\
             It may run:   callonce ledger approve {key} --by NAME --reason TEXT\n\
             and then:     callonce ledger show {key} --json | jq -c .job | callonce submit --wait\n\
             It may not:   callonce ledger deny {key} --by NAME --reason TEXT"
        ),
        Some(State::NotRun) => "It has not run. The next delivery of the job runs it.".to_owned(),
        Some(State::InFlight | State::Completed) | None => return Ok(()),
    };
    writeln!(out, "\n{steps}")?;
    match &call.job {
        Some(job) => writeln!(out, "The job:      {}", job.get()),
        None => Ok(()),
    }
}
