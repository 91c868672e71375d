//! From a registry's tables to tools: what is required, what is the default, what goes together.

use std::path::Path;
use std::time::Duration;

use secrecy::SecretString;
use serde_json::Value;
use toml::de::{DeTable, DeValue};

use super::source::{self, Found, Section, Source};
use super::variables::{Filled, TemplateError};
use super::{MissingVariable, Problem, RegistryError, Variables};
use super::{command, idle, target};
use crate::call::key::{KeyFormat, ToolName};
use crate::duration;
use crate::outcome::EffectClass;
use crate::tools::answer::AnswerKind;
use crate::tools::command::CommandTool;
use crate::tools::http::{HttpTool, TlsSetup};
use crate::tools::schema::ArgsSchema;
use crate::tools::{Executor, RetryBudget, Tool};

/// A tool's name is one of the ids of a job, whose limit this is.
const NAME_BYTES_MAX: usize = 256;

/// A schema that is larger is a mistake.
const SCHEMA_BYTES_MAX: u64 = 1024 * 1024;

/// Shorter leases would be lost to an ordinary pause.
const LEASE_MIN: Duration = Duration::from_secs(1);

const TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const LEASE: Duration = Duration::from_secs(30);
const MAX_CONCURRENCY: u32 = 32;
const RETRY: RetryBudget = RetryBudget {
    initial: Duration::from_millis(200),
    max_interval: Duration::from_secs(10),
    max_elapsed: Duration::from_secs(30),
    rounds: 3,
};

/// What every tool of a file is read with.
pub(super) struct Context {
    pub(super) variables: Variables,
    pub(super) tls: TlsSetup,
    pub(super) result_bytes_max: usize,
}

/// Fills variables in; none where some are missing, which is reported here.
pub(super) fn fill(
    table: &Section<'_>,
    context: &Context,
    what: &str,
    template: Found<&str>,
) -> Option<SecretString> {
    match context.variables.fill(template.value) {
        Ok(Filled::Text(text)) => Some(text),
        Ok(Filled::Missing(names)) => {
            for name in names {
                if context.variables.are_required() {
                    let message = format!(
                        "{what} needs the variable `{name}`, which is not set; expected it in the \
                         environment"
                    );
                    table.problem(template.at, message);
                } else {
                    table.source().missing_variable(template.at, name);
                }
            }
            None
        }
        Err(TemplateError) => {
            let message =
                format!("{what} has a `${{` that begins no variable; expected `${{NAME}}`");
            table.problem(template.at, message);
            None
        }
    }
}

/// A registry without problems.
pub(super) struct Read {
    /// Each with its line.
    pub(super) tools: Vec<(usize, Tool)>,
    pub(super) missing: Vec<MissingVariable>,
}

pub(super) fn registry(
    path: &Path,
    text: &str,
    variables: Variables,
    result_bytes_max: usize,
) -> Result<Read, RegistryError> {
    let source = Source::new(path, text);
    let document = match DeTable::parse(text) {
        Ok(document) => document.into_inner(),
        Err(error) => {
            let line = source.line(error.span().map_or(0, source::start));
            let message = format!("no valid TOML: {}", error.message());
            let problem = Problem { path: path.to_owned(), line, message };
            return Err(RegistryError::Invalid(vec![problem]));
        }
    };
    let context = Context { variables, tls: TlsSetup::new(), result_bytes_max };
    let file = Section::new(&source, String::new(), 0, &document);
    let mut tools = Vec::new();
    if let Some(table) = file.table("tools") {
        for (name, value) in table.entries() {
            let read = table.inner(&name, value).and_then(|table| tool(&name, &table, &context));
            tools.extend(read.map(|tool| (source.line(name.at), tool)));
        }
    }
    file.finish();
    drop(file);
    let missing = source.finish().map_err(RegistryError::Invalid)?;
    Ok(Read { tools, missing })
}

/// Reads one tool, to its end whatever is wrong with it; none where that leaves no tool.
fn tool(name: &Found<&str>, table: &Section<'_>, context: &Context) -> Option<Tool> {
    let tool_name = ToolName::parse(name.value, NAME_BYTES_MAX)
        .map_err(|error| {
            table.problem(name.at, format!("the tool's name {error}; expected another name"));
        })
        .ok();
    let description = table.text("description").map(|text| text.value.to_owned());
    let effect = effect(table);
    let schema = schema(table);
    let timeout = table.duration("timeout");
    let connect_timeout = table.duration("connect_timeout");
    let lease = table.duration("lease");
    if let Some(lease) = lease
        && lease.value < LEASE_MIN
    {
        let lease_min = duration::show(LEASE_MIN);
        table.problem(lease.at, format!("`lease` is too short; expected at least {lease_min}"));
    }
    let max_concurrency = table.count("max_concurrency");
    if let Some(Found { value: 0, at }) = max_concurrency {
        table.problem(at, "`max_concurrency` is 0; expected at least 1");
    }
    let retry = retry(table);
    let key_format = key_format(table);
    let key_memory = table.duration("key_memory");
    let ledger = table.flag("ledger");
    if let (Some(EffectClass::UnkeyedWrite), Some(Found { value: false, at })) = (effect, ledger) {
        table.problem(
            at,
            "`ledger = false` on an unkeyed_write leaves nothing that stops a second effect; \
             expected the ledger, or a keyed_write",
        );
    }
    let approval = approval(table);
    if let Some(at) = approval
        && (effect == Some(EffectClass::Read) || ledger.is_some_and(|ledger| !ledger.value))
    {
        let expected = "expected a write that is claimed in the ledger";
        table.problem(at, format!("`approval` needs the ledger; {expected}"));
    }
    let approval = approval.is_some();
    let executor = match executor_table(table) {
        Some(ExecutorTable::Http(http)) => {
            let limits = time_limits(table, timeout, connect_timeout);
            let settings = target::http(&http, context, effect, limits);
            let tls = context.variables.are_required().then_some(&context.tls);
            settings.and_then(|(settings, probe)| {
                HttpTool::new(settings, probe, tls)
                    .map_err(|error| table.problem(table.at(), error.to_string()))
                    .map(|http| Executor::Http(Box::new(http)))
                    .ok()
            })
        }
        Some(ExecutorTable::Command(command)) => {
            if let Some(Found { at, .. }) = connect_timeout {
                let expected = "expected `timeout` alone";
                table.problem(at, format!("a command does not connect; {expected}"));
            }
            let timeout = timeout.map_or(TIMEOUT, |timeout| timeout.value);
            let settings = command::command(&command, context, timeout);
            settings.map(|settings| Executor::Command(CommandTool::new(settings)))
        }
        Some(ExecutorTable::Idle(idle)) => {
            if let Some(Found { at, .. }) = connect_timeout {
                let expected = "expected `timeout` alone";
                table.problem(at, format!("an idle tool does not connect; {expected}"));
            }
            let timeout = timeout.map_or(TIMEOUT, |timeout| timeout.value);
            idle::idle(&idle, timeout).map(Executor::Idle)
        }
        None => None,
    };
    table.finish();

    Some(Tool {
        name: tool_name?,
        description,
        effect: effect?,
        ledger: ledger.is_none_or(|ledger| ledger.value),
        schema: schema?,
        lease: lease.map_or(LEASE, |lease| lease.value),
        max_concurrency: max_concurrency.map_or(MAX_CONCURRENCY, |count| count.value) as usize,
        retry,
        key_format,
        key_memory: key_memory.map(|memory| memory.value),
        approval,
        executor: executor?,
    })
}

fn effect(table: &Section<'_>) -> Option<EffectClass> {
    const EXPECTED: &str = "expected \"read\", \"keyed_write\" or \"unkeyed_write\"";
    if table.value("effect").is_none() {
        table.problem(table.at(), format!("no `effect`; {EXPECTED}"));
        return None;
    }
    let Found { value, at } = table.text("effect")?;
    match value {
        "read" => Some(EffectClass::Read),
        "keyed_write" => Some(EffectClass::KeyedWrite),
        "unkeyed_write" => Some(EffectClass::UnkeyedWrite),
        other => {
            table.problem(at, format!("unknown effect \"{}\"; {EXPECTED}", other.escape_debug()));
            None
        }
    }
}

/// Where a person must approve each call: where that is said.
fn approval(table: &Section<'_>) -> Option<usize> {
    let Found { value, at } = table.text("approval")?;
    match value {
        "required" => Some(at),
        other => {
            let other = other.escape_debug();
            let expected = "expected \"required\", or no such field";
            table.problem(at, format!("unknown approval \"{other}\"; {expected}"));
            None
        }
    }
}

/// What a tool's answers are.
pub(super) fn answer(table: &Section<'_>) -> AnswerKind {
    let Some(Found { value, at }) = table.text("answer") else {
        return AnswerKind::Json;
    };
    match value {
        "json" => AnswerKind::Json,
        "text" => AnswerKind::Text,
        "bytes" => AnswerKind::Bytes,
        other => {
            let other = other.escape_debug();
            let expected = "expected \"json\", \"text\" or \"bytes\"";
            table.problem(at, format!("unknown answer \"{other}\"; {expected}"));
            AnswerKind::Json
        }
    }
}

fn key_format(table: &Section<'_>) -> KeyFormat {
    let Some(Found { value, at }) = table.text("key_format") else {
        return KeyFormat::Hex32;
    };
    match value {
        "hex32" => KeyFormat::Hex32,
        "hex64" => KeyFormat::Hex64,
        "uuid" => KeyFormat::Uuid,
        other => {
            let other = other.escape_debug();
            let expected = "expected \"hex32\", \"hex64\" or \"uuid\"";
            table.problem(at, format!("unknown key_format \"{other}\"; {expected}"));
            KeyFormat::Hex32
        }
    }
}

/// The time-outs of one request.
#[derive(Debug, Clone, Copy)]
pub(super) struct TimeLimits {
    pub(super) timeout: Duration,
    pub(super) connect_timeout: Duration,
}

/// Connecting has to end first: a request that runs into the total time-out would else be known to
/// be unsent, and be called ambiguous.
fn time_limits(
    table: &Section<'_>,
    timeout: Option<Found<Duration>>,
    connect_timeout: Option<Found<Duration>>,
) -> TimeLimits {
    let limits = TimeLimits {
        timeout: timeout.map_or(TIMEOUT, |timeout| timeout.value),
        connect_timeout: connect_timeout.map_or(CONNECT_TIMEOUT, |timeout| timeout.value),
    };
    if limits.connect_timeout >= limits.timeout {
        let at = connect_timeout.or(timeout).map_or(table.at(), |found| found.at);
        let (connect, total) = (limits.connect_timeout, limits.timeout);
        table.problem(
            at,
            format!(
                "`connect_timeout` ({connect}) is not shorter than `timeout` ({total}); expected \
                 a shorter one (the defaults are {CONNECT} and {TOTAL})",
                connect = duration::show(connect),
                total = duration::show(total),
                CONNECT = duration::show(CONNECT_TIMEOUT),
                TOTAL = duration::show(TIMEOUT),
            ),
        );
    }
    limits
}

fn retry(table: &Section<'_>) -> RetryBudget {
    let Some(table) = table.table("retry") else {
        return RETRY;
    };
    let initial = table.duration("initial");
    let max_interval = table.duration("max_interval");
    let max_elapsed = table.duration("max_elapsed");
    let rounds = table.count("rounds");
    table.finish();
    let budget = RetryBudget {
        initial: initial.map_or(RETRY.initial, |initial| initial.value),
        max_interval: max_interval.map_or(RETRY.max_interval, |max| max.value),
        max_elapsed: max_elapsed.map_or(RETRY.max_elapsed, |max| max.value),
        rounds: rounds.map_or(RETRY.rounds, |rounds| rounds.value),
    };
    if budget.initial > budget.max_interval {
        let at = initial.or(max_interval).map_or(table.at(), |found| found.at);
        let (first, longest) =
            (duration::show(budget.initial), duration::show(budget.max_interval));
        table.problem(
            at,
            format!(
                "`initial` ({first}) is longer than `max_interval` ({longest}); expected a first \
                 wait no longer than the longest"
            ),
        );
    }
    budget
}

/// The table of an executor.
enum ExecutorTable<'a> {
    Http(Section<'a>),
    Command(Section<'a>),
    Idle(Section<'a>),
}

/// The one executor's table; none where there is none, or more than one.
fn executor_table<'a>(table: &Section<'a>) -> Option<ExecutorTable<'a>> {
    let there = |executor| table.value(executor).is_some();
    let executors = [there("http"), there("command"), there("idle"), table.not_built("mcp")];
    match executors {
        [true, false, false, false] => table.table("http").map(ExecutorTable::Http),
        [false, true, false, false] => table.table("command").map(ExecutorTable::Command),
        [false, false, true, false] => table.table("idle").map(ExecutorTable::Idle),
        [false, false, false, true] => None,
        [false, false, false, false] => {
            let expected = "expected an `http`, a `command` or an `idle` table";
            table.problem(table.at(), format!("no executor; {expected}"));
            None
        }
        [true, true, _, _]
        | [true, _, true, _]
        | [true, _, _, true]
        | [_, true, true, _]
        | [_, true, _, true]
        | [_, _, true, true] => {
            table.problem(table.at(), "more than one executor; expected exactly one");
            None
        }
    }
}

fn schema(table: &Section<'_>) -> Option<ArgsSchema> {
    let inline = table.value("input_schema");
    let file = table.text("input_schema_file");
    let (value, at) = match (inline, file) {
        (Some(Found { value, at }), None) => match json(value) {
            Ok(value) => (value, at),
            Err(found) => {
                table.problem(at, format!("`input_schema` holds {found}; expected JSON values"));
                return None;
            }
        },
        (None, Some(file)) => (schema_file(table, file)?, file.at),
        (Some(_), Some(Found { at, .. })) => {
            let expected = "expected either `input_schema` or `input_schema_file`";
            table.problem(at, format!("two schemas; {expected}"));
            return None;
        }
        (None, None) => {
            let missing = table.value("input_schema_file").is_none();
            if missing {
                let expected = "expected `input_schema` or `input_schema_file`";
                table.problem(table.at(), format!("no schema; {expected}"));
            }
            return None;
        }
    };
    if !value.is_object() {
        table.problem(at, "the schema is no table; expected a JSON Schema");
        return None;
    }
    ArgsSchema::compile(&value)
        .map_err(|error| {
            table.problem(
                at,
                format!(
                    "the schema is not valid: {error}; expected a JSON Schema that refers only to \
                     itself"
                ),
            );
        })
        .ok()
}

fn schema_file(table: &Section<'_>, file: Found<&str>) -> Option<Value> {
    let beside = table.source().path().parent().unwrap_or(Path::new(""));
    let path = beside.join(file.value);
    let shown = path.display();
    let text = source::file_text(&path, SCHEMA_BYTES_MAX)
        .map_err(|error| {
            let expected = "expected a readable file beside the registry";
            table.problem(file.at, format!("{shown} cannot be read: {error}; {expected}"));
        })
        .ok()?;
    serde_json::from_str(&text)
        .map_err(|error| {
            table.problem(file.at, format!("{shown}: no JSON: {error}; expected a JSON Schema"));
        })
        .ok()
}

/// A schema written in TOML as the JSON that it stands for; what has no JSON is named.
fn json(value: &DeValue<'_>) -> Result<Value, &'static str> {
    Ok(match value {
        DeValue::String(text) => Value::String(text.as_ref().to_owned()),
        DeValue::Integer(number) => {
            let number = i64::from_str_radix(number.as_str(), number.radix());
            Value::from(number.map_err(|_| "a number that is too large")?)
        }
        DeValue::Float(number) => {
            let number = number.as_str().parse().ok().and_then(serde_json::Number::from_f64);
            Value::Number(number.ok_or("a number that JSON does not have")?)
        }
        DeValue::Boolean(flag) => Value::Bool(*flag),
        DeValue::Datetime(_) => return Err("a date"),
        DeValue::Array(entries) => Value::Array(
            entries.iter().map(|entry| json(entry.get_ref())).collect::<Result<_, _>>()?,
        ),
        DeValue::Table(table) => Value::Object(
            table
                .iter()
                .map(|(name, value)| Ok((name.get_ref().to_string(), json(value.get_ref())?)))
                .collect::<Result<_, &'static str>>()?,
        ),
    })
}
