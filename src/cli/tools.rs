//! `tools check` and `tools audit`: what is wrong with a registry, and which of its tools can
//! double-fire. Neither calls a tool or needs the value of a variable.

use std::io::{self, Write};
use std::path::Path;

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::call::key::KeyFormat;
use crate::duration;
use crate::outcome::EffectClass;
use crate::tools::registry::{MissingVariable, Problem, Registry, RegistryError, Variables};
use crate::tools::{Tool, Transport};

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
    #[command(after_help = "Example:\n  callonce tools audit --json")]
    Audit,
}

impl ToolsCommand {
    /// Runs it on the registry at `path`; answers whether that is a valid one. Results go to `out`,
    /// problems and warnings to `log`.
    ///
    /// # Errors
    /// `out` or `log` cannot be written.
    pub(super) fn run(
        &self,
        path: &Path,
        json: bool,
        out: &mut impl Write,
        log: &mut impl Write,
    ) -> io::Result<bool> {
        match self.action {
            Action::Check => check(path, json, out, log),
            Action::Audit => audit(path, json, out, log),
        }
    }
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
    out: &mut impl Write,
    log: &mut impl Write,
) -> io::Result<bool> {
    let Ok(registry) = load(path, log)? else { return Ok(false) };
    let audits: Vec<Audit<'_>> = registry.iter().map(|tool| Audit::of(tool)).collect();
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
fn load(path: &Path, log: &mut impl Write) -> io::Result<Result<Registry, RegistryError>> {
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

fn line(out: &mut impl Write, result: &impl Serialize) -> io::Result<()> {
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
    can_double_fire: DoubleFire,
    why: String,
    notes: Vec<String>,
}

/// The key as it is forwarded.
#[derive(Debug, Serialize)]
struct Key<'a> {
    header: &'a str,
    format: KeyFormat,
    /// None for ever.
    memory: Option<String>,
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
    fn of(tool: &'a Tool) -> Self {
        let (can_double_fire, why) = double_fire(tool);
        Self {
            tool: tool.name().as_str(),
            description: tool.description(),
            class: tool.effect(),
            ledger: tool.uses_ledger(),
            key: Key {
                header: tool.key_header(),
                format: tool.key_format(),
                memory: tool.key_memory().map(duration::show),
            },
            not_run_status: tool.not_run_status(),
            can_double_fire,
            why,
            notes: notes(tool),
        }
    }

    fn guards(&self) -> String {
        let format = match self.key.format {
            KeyFormat::Hex32 => "hex32",
            KeyFormat::Hex64 => "hex64",
            KeyFormat::Uuid => "uuid",
        };
        let header = self.key.header;
        let memory = match &self.key.memory {
            Some(memory) => format!("remembered {memory}"),
            None => "remembered for ever".to_owned(),
        };
        match self.class {
            EffectClass::Read => "none needed".to_owned(),
            EffectClass::KeyedWrite if self.ledger => {
                format!("ledger + key ({header}, {format}, {memory})")
            }
            EffectClass::KeyedWrite => format!("key alone ({header}, {format}, {memory})"),
            EffectClass::UnkeyedWrite => {
                format!("ledger; key sent, not relied on ({header}, {format})")
            }
        }
    }
}

/// Whether a tool could act twice for one call, and by what.
fn double_fire(tool: &Tool) -> (DoubleFire, String) {
    let statuses = listed(tool.not_run_status());
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
        (EffectClass::UnkeyedWrite, _) if tool.not_run_status().is_empty() => {
            let why = "it is started again only where no request has left".to_owned();
            (DoubleFire::No, why)
        }
        (EffectClass::UnkeyedWrite, _) => {
            let why = format!("if it, or what stands before it, answers {statuses} after acting");
            (DoubleFire::Yes, why)
        }
    }
}

/// What somebody should look at.
fn notes(tool: &Tool) -> Vec<String> {
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
    if tool.transport() == Some(Transport::HttpOffLoopback) {
        notes.push(
            "plain http off this machine: arguments, key and headers can be read on the way"
                .to_owned(),
        );
    }
    notes
}

fn listed(statuses: &[u16]) -> String {
    let texts: Vec<String> = statuses.iter().map(u16::to_string).collect();
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
