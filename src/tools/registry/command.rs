//! A tool's `command` table: which program, what it is given, what its exit codes mean.

use std::path::Path;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};

use super::read::{Context, answer, fill};
use super::source::{Found, Section};
use crate::tools::command::{CommandSettings, KEY_VARIABLE};

/// Reads the table to its end, whatever is wrong with it; none where that leaves no tool.
pub(super) fn command(
    table: &Section<'_>,
    context: &Context,
    timeout: Duration,
) -> Option<CommandSettings> {
    let program = program(table);
    let args = args(table);
    let env = env(table, context);
    let dir = table.text("dir").and_then(|dir| absolute(table, "dir", dir));
    let not_run_exit = not_run_exit(table);
    let answer = answer(table);
    table.finish();
    Some(CommandSettings {
        program: program?,
        args,
        env,
        dir,
        not_run_exit,
        answer,
        timeout,
        result_bytes_max: context.result_bytes_max,
    })
}

fn program(table: &Section<'_>) -> Option<String> {
    if table.value("program").is_none() {
        table.problem(table.at(), "no `program`; expected its path");
        return None;
    }
    absolute(table, "program", table.text("program")?)
}

/// A path that means the same wherever the worker was started, and whatever its `PATH` is.
fn absolute(table: &Section<'_>, field: &str, Found { value, at }: Found<&str>) -> Option<String> {
    if !Path::new(value).is_absolute() || value.contains('\0') {
        let expected = "expected one from the root, such as /usr/local/bin/tool";
        table.problem(at, format!("`{field}` is no absolute path; {expected}"));
        return None;
    }
    Some(value.to_owned())
}

fn args(table: &Section<'_>) -> Vec<String> {
    let args = table.texts("args").unwrap_or_default();
    for Found { value, at } in &args {
        if value.contains('\0') {
            table.problem(*at, "`args` holds a NUL, where an argument ends; expected none");
        }
    }
    args.into_iter().map(|arg| arg.value.to_owned()).collect()
}

/// The environment; none where variables are missing and nobody needs them.
fn env(table: &Section<'_>, context: &Context) -> Option<Vec<(String, SecretString)>> {
    let Some(table) = table.table("env") else {
        return Some(Vec::new());
    };
    let mut env = Some(Vec::new());
    for (name, value) in table.entries() {
        let shown = name.value.escape_debug();
        let Some(value) = value.as_str() else {
            table.problem(name.at, format!("`{shown}` is no text; expected a variable's value"));
            continue;
        };
        if name.value.is_empty() || name.value.contains(['=', '\0']) {
            let expected = "expected one without `=`";
            table.problem(name.at, format!("`{shown}` is no variable's name; {expected}"));
            continue;
        }
        if name.value == KEY_VARIABLE {
            let message = format!("`{shown}` carries the key; expected no value of its own for it");
            table.problem(name.at, message);
            continue;
        }
        let template = Found { value, at: name.at };
        let Some(text) = fill(&table, context, &format!("`{shown}`"), template) else {
            env = None;
            continue;
        };
        if text.expose_secret().contains('\0') {
            table.problem(name.at, format!("`{shown}` has a NUL in its value; expected none"));
            continue;
        }
        if let Some(env) = &mut env {
            env.push((name.value.to_owned(), text));
        }
    }
    env
}

fn not_run_exit(table: &Section<'_>) -> Vec<u8> {
    let checked = |Found { value, at }: Found<u32>| match u8::try_from(value) {
        Ok(code @ 1..) => Some(code),
        Ok(0) | Err(_) => {
            let expected = "expected 1 to 255";
            table.problem(at, format!("{value} cannot be in `not_run_exit`; {expected}"));
            None
        }
    };
    table.counts("not_run_exit").unwrap_or_default().into_iter().filter_map(checked).collect()
}
