//! `ledger show` and `ledger list`: looks calls up.

use std::io::{self, Write};

use clap::{Args, Subcommand, ValueEnum};

use super::table::{cell, print};
use super::{CliError, Global};
use crate::call::key::IdempotencyKey;
use crate::ledger::state::State;
use crate::ledger::{CallView, ListEntry};

/// Looks calls up in the ledger.
#[derive(Debug, Args)]
pub(super) struct LedgerCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Shows a call, its outcome and what did not go the ordinary way; exit 1 if the key is not there
    #[command(
        after_help = "Example:\n  callonce ledger show 0eb243dbd96aaf3995360445bec52dff --json"
    )]
    Show {
        /// The call's key, 32 hexadecimal digits
        key: IdempotencyKey,
    },
    /// Lists calls, those last claimed first
    #[command(after_help = "Example:\n  callonce ledger list --state unknown")]
    List {
        /// Only calls in this state
        #[arg(long, env = "CALLONCE_STATE")]
        state: Option<ListedState>,
        /// How many at most
        #[arg(long, env = "CALLONCE_LIMIT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
enum ListedState {
    InFlight,
    Completed,
    NotRun,
    Unknown,
    Held,
}

impl From<ListedState> for State {
    fn from(state: ListedState) -> Self {
        match state {
            ListedState::InFlight => Self::InFlight,
            ListedState::Completed => Self::Completed,
            ListedState::NotRun => Self::NotRun,
            ListedState::Unknown => Self::Unknown,
            ListedState::Held => Self::Held,
        }
    }
}

impl LedgerCommand {
    pub(super) async fn run(self, global: &Global) -> Result<(), CliError> {
        let config = global.start()?;
        let ledger = global.ledger(&config)?;
        let mut out = io::stdout().lock();
        match self.action {
            Action::Show { key } => {
                let Some(call) = ledger.show(key).await? else {
                    eprintln!("no call in the ledger has the key {key}");
                    return Err(CliError::Said);
                };
                if global.json { json(&mut out, &call) } else { show(&mut out, &call) }
                    .map_err(CliError::output)
            }
            Action::List { state, limit } => {
                let entries = ledger.list(state.map(State::from), limit.into()).await?;
                if global.json {
                    entries.iter().try_for_each(|entry| json(&mut out, entry))
                } else {
                    list(&mut out, &entries)
                }
                .map_err(CliError::output)
            }
        }
    }
}

fn json(out: &mut impl Write, value: &impl serde::Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    writeln!(out)
}

fn show(out: &mut impl Write, call: &CallView) -> io::Result<()> {
    let none = || "-".to_owned();
    let text = |text: &Option<String>| text.as_deref().map_or_else(none, cell);
    let outcome = call.outcome.as_ref();
    let error = outcome.and_then(|outcome| outcome.error.as_ref());
    let raw = |value: Option<&serde_json::value::RawValue>| {
        value.map_or_else(none, |value| value.get().to_owned())
    };
    let rows = [
        ["key".to_owned(), call.key.to_string()],
        ["state".to_owned(), call.state.clone()],
        ["conversation".to_owned(), cell(&call.conversation_id)],
        ["turn".to_owned(), call.turn_index.to_string()],
        ["tool".to_owned(), format!("{} ({})", cell(&call.name), call.effect)],
        ["ordinal".to_owned(), call.ordinal.to_string()],
        ["arguments".to_owned(), raw(call.args.as_deref())],
        ["meta".to_owned(), raw(call.meta.as_deref())],
        ["response".to_owned(), text(&call.response_id)],
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
    if call.history.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    let head = ["at", "event", "attempt", "worker", "by", "reason"].map(str::to_owned);
    let entries = call.history.iter().map(|entry| {
        let attempt = entry.attempt.map_or_else(none, |attempt| attempt.to_string());
        [
            entry.at.clone(),
            entry.event.clone(),
            attempt,
            text(&entry.worker),
            text(&entry.by),
            text(&entry.reason),
        ]
    });
    print(out, &std::iter::once(head).chain(entries).collect::<Vec<_>>())
}

fn list(out: &mut impl Write, entries: &[ListEntry]) -> io::Result<()> {
    let head = ["key", "state", "conversation", "turn", "tool", "ordinal", "attempt", "claimed"]
        .map(str::to_owned);
    let rows = entries.iter().map(|entry| {
        [
            entry.key.to_string(),
            entry.state.clone(),
            cell(&entry.conversation_id),
            entry.turn_index.to_string(),
            cell(&entry.name),
            entry.ordinal.to_string(),
            entry.attempt.to_string(),
            entry.claimed_at.clone(),
        ]
    });
    print(out, &std::iter::once(head).chain(rows).collect::<Vec<_>>())
}
