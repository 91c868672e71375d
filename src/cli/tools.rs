//! `tools check` and `tools audit`: what is wrong with a registry, and which of its tools can
//! double-fire. Neither calls a tool or needs the value of a variable; the audit asks the ledger, where
//! one is named, whose event streams have ended without a terminal event. `tools verify` does call: at
//! an address of its own.

use std::io::{self, Write};
use std::path::Path;

use clap::{Args, Subcommand};
use serde::Serialize;

use super::{CliError, Global};
use crate::call::key::KeyFormat;
use crate::duration;
use crate::ledger::Unended;
use crate::outcome::EffectClass;
use crate::tools::registry::{MissingVariable, Problem, Registry, RegistryError, Variables};
use crate::tools::{KeyPlace, Tool, Transport};

/// Looks at the registry of tools.
#[derive(Debug, Args)]
pub(super) struct ToolsCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Says what is wrong with the registry, all of it at once
    #[command(after_help = "Example:\n  callonce tools check --tools config/tools.toml")]
    Check,
    /// Says for each tool whether it could act twice, and why
    #[command(
        after_help = "Examples:\n  callonce tools audit --json\n  callonce tools audit --mended start_report"
    )]
    Audit {
        /// Take a tool off the list of those whose event streams ended without a terminal event; the
        /// next such stream puts it back
        #[arg(long, value_name = "TOOL")]
        mended: Option<String>,
    },
    /// Tries at a sandbox whether a downstream collapses repeats of a key
    Verify(super::verify::VerifyCommand),
}

impl ToolsCommand {
    /// Runs it on the registry; results go to standard output, problems and warnings to standard error.
    pub(super) async fn run(self, global: &Global) -> Result<(), CliError> {
        let (mut out, mut log) = (io::stdout().lock(), io::stderr().lock());
        let (path, json) = (&global.tools, global.json);
        let valid = match self.action {
            Action::Check => check(path, json, &mut out, &mut log),
            Action::Verify(command) => return command.run(global, &mut out, &mut log).await,
            Action::Audit { mended: Some(tool) } => return mended(global, &tool).await,
            Action::Audit { mended: None } => {
                let unended = unended(global, &mut log).await?;
                audit(path, json, &unended, &mut out, &mut log)
            }
        };
        if valid.map_err(CliError::output)? { Ok(()) } else { Err(CliError::Said) }
    }
}

/// Takes a tool off the list.
async fn mended(global: &Global, tool: &str) -> Result<(), CliError> {
    if global.ledger(&global.settings()?)?.mended(tool).await? {
        return writeln!(io::stdout(), "{tool}  mended").map_err(CliError::output);
    }
    eprintln!("no event stream of {tool:?} has ended without a terminal event");
    Err(CliError::Said)
}

/// The list, where a ledger is named.
async fn unended(global: &Global, log: &mut impl Write) -> Result<Vec<Unended>, CliError> {
    if global.database_url.is_none() {
        let note = "note: no ledger was named, so streams without a terminal event are not listed";
        writeln!(log, "{note}").map_err(CliError::output)?;
        return Ok(Vec::new());
    }
    Ok(global.ledger(&global.settings()?)?.unended().await?)
}

/// Prints `ok: N tools`, or every problem; answers whether there was none.
///
/// # Errors
/// `out` or `log` cannot be written.
pub(super) fn check(
    path: &Path,
    json: bool,
    out: &mut impl Write,
    log: &mut impl Write,
) -> io::Result<bool> {
    let loaded = load(path, log)?;
    let tools = loaded.as_ref().map_or(0, |registry| registry.iter().count());
    if json {
        let checked = Checked {
            ok: loaded.is_ok(),
            tools,
            missing_variables: loaded.as_ref().map_or(&[], Registry::missing_variables),
            problems: loaded.as_ref().err().map_or(&[], RegistryError::problems),
        };
        line(out, &checked)?;
    } else if loaded.is_ok() {
        writeln!(out, "ok: {tools} {}", if tools == 1 { "tool" } else { "tools" })?;
    }
    Ok(loaded.is_ok())
}

#[derive(Serialize)]
struct Checked<'a> {
    ok: bool,
    tools: usize,
    missing_variables: &'a [MissingVariable],
    problems: &'a [Problem],
}

/// Prints what guards each tool and whether it could act twice; answers whether the registry is
/// valid.
///
/// # Errors
/// `out` or `log` cannot be written.
pub(super) fn audit(
    path: &Path,
    json: bool,
    unended: &[Unended],
    out: &mut impl Write,
    log: &mut impl Write,
) -> io::Result<bool> {
    let Ok(registry) = load(path, log)? else { return Ok(false) };
    let audits: Vec<Audit<'_>> = registry
        .iter()
        .map(|tool| {
            Audit::of(tool, unended.iter().find(|unended| unended.tool == tool.name().as_str()))
        })
        .collect();
    if json {
        for audit in &audits {
            line(out, audit)?;
        }
    } else {
        table(out, &audits)?;
    }
    Ok(true)
}

/// Loads a registry to look at it, and says what is to be said of that.
pub(super) fn load(
    path: &Path,
    log: &mut impl Write,
) -> io::Result<Result<Registry, RegistryError>> {
    let loaded = Registry::load(path, Variables::named());
    match &loaded {
        Ok(registry) => {
            for variable in registry.missing_variables() {
                writeln!(log, "warning: {variable}")?;
            }
        }
        Err(RegistryError::Unreadable { source, .. }) => {
            writeln!(log, "{}: cannot be read: {source}", path.display())?;
        }
        Err(error @ RegistryError::Invalid(_)) => writeln!(log, "{error}")?,
    }
    Ok(loaded)
}

pub(super) fn line(out: &mut impl Write, result: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, result)?;
    writeln!(out)
}

/// What is said of one tool.
#[derive(Debug, Serialize)]
struct Audit<'a> {
    tool: &'a str,
    description: Option<&'a str>,
    class: EffectClass,
    ledger: bool,
    key: Key<'a>,
    not_run_status: &'a [u16],
    approval: bool,
    probe: bool,
    /// Event streams that ended without a terminal event.
    unended_streams: Option<&'a Unended>,
    /// Of a command, in place of statuses.
    #[serde(skip_serializing_if = "<[u8]>::is_empty")]
    not_run_exit: &'a [u8],
    can_double_fire: DoubleFire,
    why: String,
    notes: Vec<String>,
}

/// The key as it is forwarded.
#[derive(Debug, Serialize)]
struct Key<'a> {
    /// None where there is no request that could carry it.
    #[serde(flatten)]
    place: Option<Place<'a>>,
    format: KeyFormat,
    /// None for ever.
    memory: Option<String>,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum Place<'a> {
    Header(&'a str),
    Field(&'a str),
    Variable(&'a str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum DoubleFire {
    /// It may run twice, and nothing comes of it.
    Harmlessly,
    /// Not while ledger and downstream keep their word.
    No,
    /// If an answer means something else than the registry says.
    Yes,
    /// Nothing of ours stands in between.
    DependsOnDownstream,
}

impl<'a> Audit<'a> {
    fn of(tool: &'a Tool, unended: Option<&'a Unended>) -> Self {
        let (can_double_fire, why) = double_fire(tool);
        Self {
            tool: tool.name().as_str(),
            description: tool.description(),
            class: tool.effect(),
            ledger: tool.uses_ledger(),
            key: Key {
                place: match tool.key_place() {
                    KeyPlace::Header(name) => Some(Place::Header(name)),
                    KeyPlace::Field(name) => Some(Place::Field(name)),
                    KeyPlace::Variable(name) => Some(Place::Variable(name)),
                    KeyPlace::Nowhere => None,
                },
                format: tool.key_format(),
                memory: tool.key_memory().map(duration::show),
            },
            not_run_status: tool.not_run_status(),
            approval: tool.needs_approval(),
            probe: tool.probe().is_some(),
            unended_streams: unended,
            not_run_exit: tool.not_run_exit(),
            can_double_fire,
            why,
            notes: notes(tool, unended),
        }
    }

    fn guards(&self) -> String {
        let format = self.key.format.name();
        let approval = if self.approval { " + approval" } else { "" };
        let place = match self.key.place {
            Some(Place::Header(name) | Place::Variable(name)) => name.to_owned(),
            Some(Place::Field(name)) => format!("body field {}", name.escape_debug()),
            None if self.ledger => return format!("ledger{approval}"),
            None => return "none needed".to_owned(),
        };
        let memory = match &self.key.memory {
            Some(memory) => format!("remembered {memory}"),
            None => "remembered for ever".to_owned(),
        };
        let probe = if self.probe { " + probe" } else { "" };
        match self.class {
            EffectClass::Read => "none needed".to_owned(),
            EffectClass::KeyedWrite if self.ledger => {
                format!("ledger{probe}{approval} + key ({place}, {format}, {memory})")
            }
            EffectClass::KeyedWrite => format!("key alone{probe} ({place}, {format}, {memory})"),
            EffectClass::UnkeyedWrite if self.probe => {
                format!("ledger{probe}{approval}; key sent, asked for ({place}, {format})")
            }
            EffectClass::UnkeyedWrite => {
                format!("ledger{approval}; key sent, not relied on ({place}, {format})")
            }
        }
    }
}

/// Whether a tool could act twice for one call, and by what.
fn double_fire(tool: &Tool) -> (DoubleFire, String) {
    if tool.key_place() == KeyPlace::Nowhere {
        return (DoubleFire::Harmlessly, "an idle tool does nothing".to_owned());
    }
    match (tool.effect(), tool.uses_ledger()) {
        (EffectClass::Read, _) => (DoubleFire::Harmlessly, "a read is repeated freely".to_owned()),
        (EffectClass::KeyedWrite, true) => {
            let until = match tool.key_memory() {
                Some(memory) => {
                    format!(", and only within {} of the first", duration::show(memory))
                }
                None => String::new(),
            };
            let why = format!("a request is repeated only under the same key{until}");
            (DoubleFire::No, why)
        }
        (EffectClass::KeyedWrite, false) => {
            let memory = match tool.key_memory() {
                Some(memory) => format!("for {}", duration::show(memory)),
                None => "for ever".to_owned(),
            };
            let why = format!(
                "`ledger = false`: every delivery is sent, and only the downstream, which must \
                 remember the key {memory}, collapses them"
            );
            (DoubleFire::DependsOnDownstream, why)
        }
        (EffectClass::UnkeyedWrite, _)
            if tool.not_run_status().is_empty()
                && tool.probe().is_some_and(|probe| probe.not_found_is_not_run) =>
        {
            let why = "if its probe does not know a call that acted".to_owned();
            (DoubleFire::Yes, why)
        }
        (EffectClass::UnkeyedWrite, _) => {
            let why = match (tool.not_run_status(), tool.not_run_exit()) {
                ([], []) => {
                    let why = "it is started again only where no request has left".to_owned();
                    return (DoubleFire::No, why);
                }
                ([], codes) => format!("if it exits with {} after acting", listed(codes)),
                (statuses, _) => {
                    let statuses = listed(statuses);
                    let probe = tool.probe().is_some_and(|probe| probe.not_found_is_not_run);
                    let probe = if probe {
                        "; or if its probe does not know a call that acted"
                    } else {
                        ""
                    };
                    format!(
                        "if it, or what stands before it, answers {statuses} after acting{probe}"
                    )
                }
            };
            (DoubleFire::Yes, why)
        }
    }
}

/// What somebody should look at.
fn notes(tool: &Tool, unended: Option<&Unended>) -> Vec<String> {
    if tool.key_place() == KeyPlace::Nowhere {
        return vec!["it does nothing: for benchmarks, and to try an installation on".to_owned()];
    }
    let mut notes = Vec::new();
    let unkeyed = tool.effect() == EffectClass::UnkeyedWrite;
    if unkeyed && tool.not_run_status().contains(&503) {
        notes.push(
            "503 is taken as refused before any work, and a mesh may answer it after the write: \
             then leave it out of not_run_status"
                .to_owned(),
        );
    }
    if tool.effect() == EffectClass::KeyedWrite && !tool.uses_ledger() {
        notes.push("`ledger = false`: its calls leave no trace in the ledger".to_owned());
    }
    if unkeyed && tool.probe().is_some_and(|probe| probe.not_found_is_not_run) {
        notes.push(
            "a call that its probe does not know is run again: expected that it knows each call \
             within settle_delay"
                .to_owned(),
        );
    }
    if let Some(Unended { streams, last_at, .. }) = unended {
        notes.push(format!(
            "{streams} of its event streams ended without a terminal event, the last at {last_at}; \
             when its server is mended: callonce tools audit --mended {}",
            tool.name().as_str().escape_debug()
        ));
    }
    if tool.transport() == Some(Transport::HttpOffLoopback) {
        notes.push(
            "plain http off this machine: arguments, key and headers can be read on the way"
                .to_owned(),
        );
    }
    notes
}

fn listed(numbers: &[impl ToString]) -> String {
    let texts: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    match texts.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

fn table(out: &mut impl Write, audits: &[Audit<'_>]) -> io::Result<()> {
    let heads = ["TOOL", "CLASS", "GUARDS", "CAN DOUBLE-FIRE"].map(str::to_owned);
    let rows = audits.iter().map(|audit| {
        let class = match audit.class {
            EffectClass::Read => "read",
            EffectClass::KeyedWrite => "keyed_write",
            EffectClass::UnkeyedWrite => "unkeyed_write",
        };
        let answer = match audit.can_double_fire {
            DoubleFire::Harmlessly => "yes, harmlessly",
            DoubleFire::No => "no",
            DoubleFire::Yes => "yes",
            DoubleFire::DependsOnDownstream => "depends on the downstream",
        };
        let name = audit.tool.escape_debug().to_string();
        [name, class.to_owned(), audit.guards(), format!("{answer}: {}", audit.why)]
    });
    let rows: Vec<[String; 4]> = std::iter::once(heads).chain(rows).collect();
    super::table::print(out, &rows)?;
    for audit in audits {
        for note in &audit.notes {
            writeln!(out, "note: {}: {note}", audit.tool.escape_debug())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
