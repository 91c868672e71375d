//! `tools verify`: tries a downstream's word that it collapses repeats of a key. Real requests, under
//! keys made for it, to an address that is given for it and never to the registry's.
//!
//! What can be seen from outside are answers. Two equal answers to one key tell something only where
//! the answers to two keys differ; where nothing tells, nothing is claimed.

use std::fs::File;
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use clap::Args;
use serde::Serialize;
use uuid::Uuid;

use super::tools::{line, load};
use super::{CliError, Global};
use crate::call::key::Digest;
use crate::config::Length;
use crate::duration;
use crate::outcome::EffectClass;
use crate::tools::{Exchange, Probed, Tool, ToolCall, Trial};

/// As long as a message may be by default.
const ARGS_BYTES_MAX: u64 = 1024 * 1024;

/// A trial that ended early has tried fewer repeats than this.
const REPEATS: usize = 3;

/// Sends repeats of a call to a sandbox, and says what the registry should say of the downstream.
///
/// The tool's probe, if it has one, asks at the sandbox too, with its own path. The registry's own
/// address of the tool is refused.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit 0: it collapses repeats; 1: it does not, or its answers do not tell.\n\nExample:\n  \
                  callonce tools verify send_payment --args payment.json --url https://sandbox.example/payments"
)]
pub(super) struct VerifyCommand {
    /// The tool, by its name in the registry
    tool: String,
    /// The arguments of the calls, a JSON object
    #[arg(long, value_name = "FILE")]
    args: PathBuf,
    /// Where the calls go, instead of the registry's address
    #[arg(long, value_name = "SANDBOX")]
    url: String,
    /// Other arguments, to be sent under a key that has been used
    #[arg(long, value_name = "FILE")]
    other_args: Option<PathBuf>,
    /// How long after the first call the late repeat is sent
    #[arg(long, env = "CALLONCE_DELAY", default_value = "2s", value_name = "LENGTH")]
    delay: Length,
}

impl VerifyCommand {
    /// Runs it; results go to `out`, everything else to `log`.
    pub(super) async fn run(
        self,
        global: &Global,
        out: &mut impl Write,
        log: &mut impl Write,
    ) -> Result<(), CliError> {
        let Ok(registry) = load(&global.tools, log).map_err(CliError::output)? else {
            return Err(CliError::Said);
        };
        let Some(tool) = registry.get(&self.tool) else {
            return refused(log, format_args!("no tool has the name {:?}", self.tool));
        };
        if tool.effect() == EffectClass::Read {
            return refused(log, format_args!("{:?} is a read: it is repeated freely", self.tool));
        }
        let args = arguments(tool, &self.args, log)?;
        let other =
            self.other_args.as_deref().map(|path| arguments(tool, path, log)).transpose()?;
        let trial = match tool.trial(&self.url) {
            Ok(trial) => trial,
            Err(error) => return refused(log, format_args!("{error}")),
        };
        let session = Session { tool, trial, args, other, delay: self.delay };
        session.warn(log).map_err(CliError::output)?;
        let advice = session.run(global.json, out).await.map_err(CliError::output)?;
        advice.say(global.json, out).map_err(CliError::output)?;
        if advice.collapses == Some(true) { Ok(()) } else { Err(CliError::Said) }
    }
}

fn refused<T>(log: &mut impl Write, why: std::fmt::Arguments<'_>) -> Result<T, CliError> {
    writeln!(log, "{why}").map_err(CliError::output)?;
    Err(CliError::Said)
}

/// Reads arguments that the tool's schema allows.
fn arguments(tool: &Tool, path: &Path, log: &mut impl Write) -> Result<Bytes, CliError> {
    let unreadable =
        |source| CliError::Io { what: format!("{} cannot be read", path.display()), source };
    let mut text = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(ARGS_BYTES_MAX + 1).read_to_end(&mut text).map_err(unreadable)?;
    let text = text.trim_ascii();
    if text.len() as u64 > ARGS_BYTES_MAX {
        return refused(
            log,
            format_args!("{}: longer than {ARGS_BYTES_MAX} bytes", path.display()),
        );
    }
    if !text.starts_with(b"{") {
        return refused(log, format_args!("{}: expected a JSON object", path.display()));
    }
    if let Err(violations) = tool.validate(text) {
        for violation in violations {
            let (pointer, message) = (violation.pointer, violation.message);
            writeln!(log, "{}: {pointer:?}: {message}", path.display())
                .map_err(CliError::output)?;
        }
        return Err(CliError::Said);
    }
    Ok(Bytes::copy_from_slice(text))
}

/// A downstream under trial.
struct Session<'a> {
    tool: &'a Tool,
    trial: Trial,
    args: Bytes,
    other: Option<Bytes>,
    delay: Length,
}

impl Session<'_> {
    /// What will happen, before anything does.
    fn warn(&self, log: &mut impl Write) -> io::Result<()> {
        let requests = if self.other.is_some() { 8 } else { 6 };
        let place = self.trial.place();
        writeln!(
            log,
            "sends up to {requests} real requests to {place}, under keys made for this; a downstream \
             that does not collapse repeats acts on each; nothing is sent to the registry's own address"
        )?;
        match self.trial.headers().as_slice() {
            [] => Ok(()),
            headers => writeln!(log, "with the registry's headers: {}", headers.join(", ")),
        }
    }

    async fn run(&self, json: bool, out: &mut impl Write) -> io::Result<Advice> {
        let mut seen = Vec::new();
        let mut look = |check, first, second, state| {
            let found = found(self.tool.not_run_status(), &first, &second);
            let looked = Seen { check, first, second, state, found };
            looked.say(json, self.delay, out)?;
            seen.push(looked);
            io::Result::Ok(())
        };

        let key = self.key();
        let first = self.send(&key, &self.args).await;
        if !first.as_ref().is_ok_and(is_success) {
            look(Check::InARow, first, Err("not sent".to_owned()), self.state(&key).await)?;
            return Ok(Advice::of(&seen));
        }
        let second = self.send(&key, &self.args).await;
        look(Check::InARow, first, second, self.state(&key).await)?;

        let key = self.key();
        let (one, other) = tokio::join!(self.send(&key, &self.args), self.send(&key, &self.args));
        // Which of the two came first is not known; the one that is no repeat's is taken for it.
        let (first, second) = if is_original(&one) { (one, other) } else { (other, one) };
        look(Check::AtOnce, first, second, self.state(&key).await)?;

        if let Some(other) = &self.other {
            let key = self.key();
            let first = self.send(&key, &self.args).await;
            let second = self.send(&key, other).await;
            look(Check::OtherBody, first, second, self.state(&key).await)?;
        }

        let key = self.key();
        let first = self.send(&key, &self.args).await;
        tokio::time::sleep(self.delay.0).await;
        let second = self.send(&key, &self.args).await;
        look(Check::Late, first, second, self.state(&key).await)?;
        Ok(Advice::of(&seen))
    }

    /// A key that nobody has used, as the downstream takes it.
    fn key(&self) -> String {
        let mut bytes = [0; 32];
        let (one, other) = bytes.split_at_mut(16);
        one.copy_from_slice(Uuid::new_v4().as_bytes());
        other.copy_from_slice(Uuid::new_v4().as_bytes());
        Digest::from_bytes(bytes).render(self.tool.key_format())
    }

    /// What the sandbox's own records say of a key, where the tool has a probe.
    async fn state(&self, key: &str) -> Option<&'static str> {
        Some(match self.trial.ask(key).await? {
            Probed::Answered(outcome) if outcome.is_error => "failed",
            Probed::Answered(_) => "completed",
            Probed::Running => "running",
            Probed::NotFound => "not found",
            Probed::Unclear(_) => "unclear",
        })
    }

    async fn send(&self, key: &str, args: &Bytes) -> Result<Exchange, String> {
        let call = ToolCall { key: key.to_owned(), args: args.clone(), traceparent: None };
        self.trial.exchange(call).await
    }
}

fn is_success(answer: &Exchange) -> bool {
    (200..300).contains(&answer.status)
}

fn is_original(answer: &Result<Exchange, String>) -> bool {
    answer.as_ref().is_ok_and(|answer| is_success(answer) && answer.replay_header.is_none())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Check {
    InARow,
    AtOnce,
    OtherBody,
    Late,
}

/// What a repeat's answer says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Found {
    /// It is the first one's, and says so.
    Replayed,
    /// It is the first one's, byte for byte.
    SameAnswer,
    /// It is an error, of a key that is known.
    Refused,
    /// It is another answer.
    AnotherAnswer,
    /// It says nothing of the key.
    Unclear,
    /// The first request did not succeed, so there was nothing to repeat.
    NoSuccess,
}

/// Two answers to one key.
#[derive(Debug)]
struct Seen {
    check: Check,
    first: Result<Exchange, String>,
    second: Result<Exchange, String>,
    /// What the probe says of the key afterwards.
    state: Option<&'static str>,
    found: Found,
}

impl Seen {
    fn bodies_equal(&self) -> Option<bool> {
        let (Ok(first), Ok(second)) = (&self.first, &self.second) else { return None };
        Some(first.body == second.body)
    }

    fn replay_header(&self) -> Option<&str> {
        self.second.as_ref().ok()?.replay_header.as_deref()
    }

    /// The status by which a repeat was refused.
    fn refusal(&self) -> Option<u16> {
        let second = self.second.as_ref().ok()?;
        (self.found == Found::Refused).then_some(second.status)
    }

    fn say(&self, json: bool, delay: Length, out: &mut impl Write) -> io::Result<()> {
        if json {
            return line(out, &Said::of(self));
        }
        let what = match self.check {
            Check::InARow => "twice in a row".to_owned(),
            Check::AtOnce => "twice at the same moment".to_owned(),
            Check::OtherBody => "with another body".to_owned(),
            Check::Late => format!("again after {}", duration::show(delay.0)),
        };
        let answers = [&self.first, &self.second].map(|answer| match answer {
            Ok(answer) => answer.status.to_string(),
            Err(why) => format!("no answer ({why})"),
        });
        let bodies = match self.bodies_equal() {
            Some(true) => ", the bodies are equal",
            Some(false) => ", the bodies differ",
            None => "",
        };
        let header = match self.replay_header() {
            Some(name) => format!(", {name} is there"),
            None => ", no replay header".to_owned(),
        };
        let found = match self.found {
            Found::Replayed => "the first answer, replayed",
            Found::SameAnswer => "the same answer",
            Found::Refused => "refused by the key",
            Found::AnotherAnswer => "another answer, as if it had acted again",
            Found::Unclear => "says nothing of the key",
            Found::NoSuccess => "the first request was no success, so nothing was repeated",
        };
        let state = match self.state {
            Some(state) => format!(", the probe says {state}"),
            None => String::new(),
        };
        writeln!(out, "{what}: {}{bodies}{header}{state}: {found}", answers.join(" and "))
    }
}

/// A line of JSON of what was seen.
#[derive(Serialize)]
struct Said<'a> {
    check: Check,
    /// Null where there was no whole answer.
    statuses: [Option<u16>; 2],
    errors: Vec<&'a str>,
    bodies_equal: Option<bool>,
    replay_header: Option<&'a str>,
    /// What the probe says of the key afterwards; null for a tool without one.
    probe: Option<&'static str>,
    found: Found,
}

impl<'a> Said<'a> {
    fn of(seen: &'a Seen) -> Self {
        let answers = [&seen.first, &seen.second];
        Self {
            check: seen.check,
            statuses: answers.map(|answer| answer.as_ref().ok().map(|answer| answer.status)),
            errors: answers
                .into_iter()
                .filter_map(|answer| answer.as_ref().err().map(String::as_str))
                .collect(),
            bodies_equal: seen.bodies_equal(),
            replay_header: seen.replay_header(),
            probe: seen.state,
            found: seen.found,
        }
    }
}

/// What the second answer says, held against the first.
fn found(
    not_run: &[u16],
    first: &Result<Exchange, String>,
    second: &Result<Exchange, String>,
) -> Found {
    let Some(first) = first.as_ref().ok().filter(|first| is_success(first)) else {
        return Found::NoSuccess;
    };
    let Ok(second) = second else { return Found::Unclear };
    match second.status {
        200..=299 if second.replay_header.is_some() && first.replay_header.is_none() => {
            Found::Replayed
        }
        200..=299 if second.body == first.body => Found::SameAnswer,
        200..=299 => Found::AnotherAnswer,
        // The moment's, not the key's.
        status if not_run.contains(&status) || status == 408 => Found::Unclear,
        400..=499 => Found::Refused,
        _ => Found::Unclear,
    }
}

/// What follows from all of it.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Advice {
    /// None where the answers do not tell.
    collapses: Option<bool>,
    registry: Fields,
    notes: Vec<&'static str>,
}

/// What the registry should say.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Fields {
    #[serde(skip_serializing_if = "Option::is_none")]
    effect: Option<EffectClass>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    in_progress_status: Vec<u16>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    duplicate_status: Vec<u16>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    key_reused_status: Vec<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replay_header: Option<String>,
}

impl Advice {
    fn of(all: &[Seen]) -> Self {
        let repeats: Vec<&Seen> =
            all.iter().filter(|seen| seen.check != Check::OtherBody).collect();
        let mut notes = Vec::new();
        let alike = answers_are_alike(all);
        let collapsed = |seen: &&Seen| match seen.found {
            Found::Replayed | Found::Refused => true,
            Found::SameAnswer => !alike,
            Found::AnotherAnswer | Found::Unclear | Found::NoSuccess => false,
        };
        let acted_again = |seen: &&Seen| seen.found == Found::AnotherAnswer;
        let collapses = if repeats.iter().any(acted_again) {
            notes.push("this downstream does not collapse repeats: mark it unkeyed_write");
            Some(false)
        } else if repeats.len() == REPEATS && repeats.iter().all(collapsed) {
            Some(true)
        } else {
            notes.push(
                "its answers do not tell whether it collapses repeats: until they do, mark it \
                 unkeyed_write",
            );
            None
        };
        if alike && repeats.iter().any(|seen| seen.found == Found::SameAnswer) {
            notes.push("its answers are the same under every key, so that equal ones tell nothing");
        }
        let (mut in_progress, mut duplicate, mut key_reused) = (Vec::new(), Vec::new(), Vec::new());
        for seen in &repeats {
            match (seen.check, seen.refusal()) {
                (Check::InARow | Check::Late, Some(status)) => add(&mut duplicate, status),
                (Check::AtOnce, Some(status)) => add(&mut in_progress, status),
                (Check::OtherBody, _) | (_, None) => {}
            }
        }
        if in_progress.iter().any(|status| duplicate.contains(status)) {
            in_progress.retain(|status| !duplicate.contains(status));
            notes.push(
                "it refuses a repeat in one way, whether the first is done or still runs: a probe \
                 would tell them apart",
            );
        }
        match all.iter().find(|seen| seen.check == Check::OtherBody) {
            None => notes.push("another body under a used key was not tried: no --other-args"),
            Some(seen) => match seen.found {
                Found::Refused => {
                    let status = seen.refusal().filter(|status| {
                        !duplicate.contains(status) && !in_progress.contains(status)
                    });
                    match status {
                        Some(status) => add(&mut key_reused, status),
                        None => {
                            notes.push("another body under a used key is refused as a repeat is")
                        }
                    }
                }
                Found::Replayed | Found::SameAnswer => {
                    notes.push("it does not compare bodies: another one gets the first answer");
                }
                Found::AnotherAnswer => notes.push("another body under a used key acts again"),
                Found::Unclear | Found::NoSuccess => {
                    notes.push("what it does with another body under a used key was not seen");
                }
            },
        }
        let effect = |collapses| match collapses {
            true => EffectClass::KeyedWrite,
            false => EffectClass::UnkeyedWrite,
        };
        let registry = Fields {
            effect: collapses.map(effect),
            in_progress_status: in_progress,
            duplicate_status: duplicate,
            key_reused_status: key_reused,
            replay_header: all.iter().find_map(Seen::replay_header).map(str::to_owned),
        };
        Self { collapses, registry, notes }
    }

    fn say(&self, json: bool, out: &mut impl Write) -> io::Result<()> {
        if json {
            return line(out, self);
        }
        let collapses = match self.collapses {
            Some(true) => "yes",
            Some(false) => "no",
            None => "not known",
        };
        writeln!(out, "collapses repeats: {collapses}")?;
        let Fields {
            effect,
            in_progress_status,
            duplicate_status,
            key_reused_status,
            replay_header,
        } = &self.registry;
        if let Some(effect) = effect {
            writeln!(out, "registry: effect = {}", serde_json::to_string(effect)?)?;
        }
        for (field, statuses) in [
            ("in_progress_status", in_progress_status),
            ("duplicate_status", duplicate_status),
            ("key_reused_status", key_reused_status),
        ] {
            if !statuses.is_empty() {
                writeln!(out, "registry: {field} = {statuses:?}")?;
            }
        }
        if let Some(name) = replay_header {
            writeln!(out, "registry: replay_header = \"{name}\"")?;
        }
        for note in &self.notes {
            writeln!(out, "note: {note}")?;
        }
        Ok(())
    }
}

/// Whether the answers to requests under several keys cannot be told apart.
fn answers_are_alike(all: &[Seen]) -> bool {
    let mut firsts =
        all.iter().filter_map(|seen| seen.first.as_ref().ok()).filter(|a| is_success(a));
    match firsts.next() {
        Some(one) => firsts.all(|other| other.body == one.body),
        None => true,
    }
}

fn add(statuses: &mut Vec<u16>, status: u16) {
    if !statuses.contains(&status) {
        statuses.push(status);
    }
}

#[cfg(test)]
mod tests;
