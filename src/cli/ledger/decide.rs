//! A person's word on a call: what became of it, or whether it may run.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgGroup, Args};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::call::canonical;
use crate::call::key::IdempotencyKey;
use crate::call::reply::{CallError, ErrorKind};
use crate::cli::{CliError, Global};
use crate::duration;
use crate::ledger::state::{Evidence, State};
use crate::ledger::{CallRow, CallView, Ledger, Proof, ProofBy};
use crate::outcome::Outcome;
use crate::tools::registry::{Registry, RegistryError, Variables};
use crate::tools::{KeyPlace, SETTLE_DELAY_DEFAULT};

/// Whose word it is, and why. Neither has a variable: a decision is said each time.
#[derive(Debug, Args)]
pub(super) struct Word {
    /// Who decides; kept in the call's history
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    by: String,
    /// Why; kept in the call's history
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    reason: String,
}

/// A word on a held call.
#[derive(Debug, Args)]
pub(super) struct Decision {
    /// The call's key, 32 hexadecimal digits
    key: IdempotencyKey,
    #[command(flatten)]
    word: Word,
}

/// A word on an unknown call.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("found").required(true).args(["completed", "not_run"]))]
pub(super) struct Resolve {
    /// The call's key, 32 hexadecimal digits
    key: IdempotencyKey,
    /// It happened: the tool's answer, one JSON text in a file; - for standard input
    #[arg(long, value_name = "FILE")]
    completed: Option<PathBuf>,
    /// It did not happen, and will not any more
    #[arg(long)]
    not_run: bool,
    #[command(flatten)]
    word: Word,
}

/// What was decided, as it is printed.
#[derive(Serialize)]
struct Decided {
    key: IdempotencyKey,
    state: &'static str,
    decision: &'static str,
}

impl Decision {
    pub(super) async fn approve(
        self,
        ledger: &Ledger,
        global: &Global,
        out: &mut impl Write,
    ) -> Result<(), CliError> {
        let Word { by, reason } = &self.word;
        if !ledger.approve(self.key, by, reason).await? {
            return Err(not_in(ledger, self.key, State::Held).await?);
        }
        say(out, global, self.key, State::NotRun, "approved")
    }

    pub(super) async fn deny(
        self,
        ledger: &Ledger,
        global: &Global,
        out: &mut impl Write,
    ) -> Result<(), CliError> {
        let Word { by, reason } = &self.word;
        let denied = no_answer(ErrorKind::Denied, "a person said that this call may not run");
        if !ledger.deny(self.key, by, reason, &denied).await? {
            return Err(not_in(ledger, self.key, State::Held).await?);
        }
        say(out, global, self.key, State::Held, "denied")
    }
}

impl Resolve {
    pub(super) async fn run(
        self,
        ledger: &Ledger,
        result_max: usize,
        global: &Global,
        out: &mut impl Write,
    ) -> Result<(), CliError> {
        let (evidence, outcome) = match &self.completed {
            Some(file) => {
                let content = Some(answer(file, result_max)?);
                (Evidence::Completed, Outcome { content, ..Outcome::default() })
            }
            None => {
                let message = "a person said that nothing has happened";
                (Evidence::NotRun, no_answer(ErrorKind::NotSent, message))
            }
        };
        let Some(call) = ledger.show(self.key).await? else { return Err(missing(self.key)) };
        let settle_delay = settle_delay(&global.tools, &call.name)?;
        let Word { by, reason } = &self.word;
        let proof = Proof { evidence, outcome, by: ProofBy::Person { by, reason, settle_delay } };
        let row = ledger.read(self.key, None).await?;
        let Some(row) = row.filter(|row| row.record.state == State::Unknown) else {
            return Err(not_in(ledger, self.key, State::Unknown).await?);
        };
        if !ledger.prove(self.key, row.record.claim, &proof).await? {
            let early = matches!(evidence, Evidence::NotRun)
                .then(|| too_early(&row, settle_delay))
                .flatten();
            if let Some(left) = early {
                eprintln!(
                    "too early: a request of the last attempt may still be on its way; wait {} and say it again",
                    duration::show(left)
                );
                return Err(CliError::Said);
            }
            return Err(not_in(ledger, self.key, State::Unknown).await?);
        }
        match evidence {
            Evidence::Completed => say(out, global, self.key, State::Completed, "completed"),
            Evidence::NotRun => say(out, global, self.key, State::NotRun, "not run"),
        }
    }
}

/// How long it is until "nothing has happened" counts, in whole seconds; none where it does.
fn too_early(row: &CallRow, settle_delay: Duration) -> Option<Duration> {
    let since = u64::try_from(row.now - row.settled_at?).ok()?;
    let left = (row.timeout + settle_delay).checked_sub(Duration::from_micros(since))?;
    Some(Duration::from_secs(left.as_secs() + 1))
}

/// The answer that a person found, no longer than a tool's may be.
fn answer(file: &Path, result_max: usize) -> Result<Box<RawValue>, CliError> {
    let failed = |source| CliError::Io {
        what: format!("{}: the answer cannot be read", file.display()),
        source,
    };
    let mut text = String::new();
    let mut reader: Box<dyn io::Read> = if file == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(std::fs::File::open(file).map_err(failed)?)
    };
    let read = io::Read::read_to_string(
        &mut io::Read::take(&mut reader, (result_max as u64).saturating_add(1)),
        &mut text,
    );
    read.map_err(failed)?;
    if text.len() > result_max {
        let why = format!("it is longer than result_max, {result_max} bytes");
        return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, why)));
    }
    let text = text.trim_ascii();
    canonical::check(text).map_err(|refusal| failed(io::Error::other(refusal)))?;
    RawValue::from_string(text.to_owned()).map_err(|error| failed(error.into()))
}

/// How long after a request was given up "nothing has happened" counts, as the registry says.
fn settle_delay(tools: &Path, tool: &str) -> Result<Duration, CliError> {
    match Registry::load(tools, Variables::named()) {
        Ok(registry) => {
            let probe = registry.get(tool).and_then(|tool| tool.probe());
            Ok(probe.map_or(SETTLE_DELAY_DEFAULT, |probe| probe.settle_delay))
        }
        // A registry that lies elsewhere is no reason not to take a person's word.
        Err(RegistryError::Unreadable { source, .. })
            if source.kind() == io::ErrorKind::NotFound =>
        {
            Ok(SETTLE_DELAY_DEFAULT)
        }
        Err(error) => {
            eprintln!("{error}");
            Err(CliError::Said)
        }
    }
}

/// How a tool's own records name the call, where the registry can be read and knows the tool.
pub(super) fn records(tools: &Path, call: &CallView) -> Option<String> {
    let registry = Registry::load(tools, Variables::named()).ok()?;
    let tool = registry.get(&call.name)?;
    let key = call.digest.render(tool.key_format());
    Some(match tool.key_place() {
        KeyPlace::Header(header) => format!("the key {key} (it came as the header {header})"),
        KeyPlace::Field(field) => {
            format!("the key {key} (it came as the member {field:?} of the body)")
        }
        KeyPlace::Variable(variable) => {
            format!("the key {key} (it came in the variable {variable})")
        }
        KeyPlace::Nowhere => format!("the key {key} (it went nowhere: the tool does nothing)"),
    })
}

fn no_answer(kind: ErrorKind, message: &str) -> Outcome {
    let error = Some(CallError::new(kind, None, message));
    Outcome { is_error: true, error, ..Outcome::default() }
}

fn missing(key: IdempotencyKey) -> CliError {
    eprintln!("no call in the ledger has the key {key}");
    CliError::Said
}

/// Says why nothing was changed: the call is not, or no longer, in the state that the word is about.
async fn not_in(ledger: &Ledger, key: IdempotencyKey, wanted: State) -> Result<CliError, CliError> {
    let Some(row) = ledger.read(key, None).await? else { return Ok(missing(key)) };
    let (state, wanted) = (row.record.state.as_str(), wanted.as_str());
    eprintln!("the call is {state}, not {wanted}; nothing was changed");
    Ok(CliError::Said)
}

fn say(
    out: &mut impl Write,
    global: &Global,
    key: IdempotencyKey,
    state: State,
    decision: &'static str,
) -> Result<(), CliError> {
    let state = state.as_str();
    if global.json {
        super::json(out, &Decided { key, state, decision })
    } else {
        writeln!(out, "{key}  {state}  {decision}")
    }
    .map_err(CliError::output)
}
