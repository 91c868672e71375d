//! `ledger`: looks calls up, and takes a person's word on those that wait for one.

mod decide;
mod show;

use std::io::{self, Write};

use clap::{Args, Subcommand, ValueEnum};

use super::table::{cell, print};
use super::{CliError, Global};
use crate::call::key::IdempotencyKey;
use crate::ledger::ListEntry;
use crate::ledger::state::State;

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
    /// Says what became of an unknown call; the next delivery of its job acts on it
    #[command(
        after_help = "Examples:\n  callonce ledger resolve 0eb243dbd96aaf3995360445bec52dff --completed answer.json --by ana --reason 'ticket 7 is there'\n  callonce ledger resolve 0eb243dbd96aaf3995360445bec52dff --not-run --by ana --reason 'no such ticket'"
    )]
    Resolve(decide::Resolve),
    /// Lets a held call run, when its job is sent again
    #[command(
        after_help = "Example:\n  callonce ledger approve 0eb243dbd96aaf3995360445bec52dff --by ana --reason 'agreed with the customer'"
    )]
    Approve(decide::Decision),
    /// Says that a held call may not run; it can still be approved
    #[command(
        after_help = "Example:\n  callonce ledger deny 0eb243dbd96aaf3995360445bec52dff --by ana --reason 'twice the agreed amount'"
    )]
    Deny(decide::Decision),
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
                let shown = if global.json {
                    json(&mut out, &call)
                } else {
                    let records = decide::records(&global.tools, &call);
                    show::show(&mut out, &call, records.as_deref())
                };
                shown.map_err(CliError::output)
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
            Action::Resolve(resolve) => {
                resolve.run(&ledger, config.result_max.0, global, &mut out).await
            }
            Action::Approve(decision) => decision.approve(&ledger, global, &mut out).await,
            Action::Deny(decision) => decision.deny(&ledger, global, &mut out).await,
        }
    }
}

fn json(out: &mut impl Write, value: &impl serde::Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    writeln!(out)
}

fn list(out: &mut impl Write, entries: &[ListEntry]) -> io::Result<()> {
    let head =
        ["key", "state", "conversation", "turn", "tool", "ordinal", "attempt", "last claimed"]
            .map(str::to_owned);
    let rows = entries.iter().map(|entry| {
        [
            entry.key.to_string(),
            if entry.denied { "held, denied".to_owned() } else { entry.state.clone() },
            cell(&entry.conversation_id),
            entry.turn_index.to_string(),
            cell(&entry.name),
            entry.ordinal.to_string(),
            entry.attempt.to_string(),
            entry.last_claimed_at.clone(),
        ]
    });
    print(out, &std::iter::once(head).chain(rows).collect::<Vec<_>>())
}
