//! A registry's text, a tool at a time.

use std::fmt::Write as _;
use std::path::Path;

use super::Downstream;

/// One tool of a test's registry: short budgets, so that no test is slow.
#[derive(Debug, Clone)]
pub(crate) struct Tool {
    name: String,
    effect: &'static str,
    schema: String,
    executor: &'static str,
    /// The executor's own line: where it is.
    place: String,
    retry: String,
    fields: String,
    /// Other fields of the executor.
    more: String,
}

impl Tool {
    pub(crate) fn read(name: &str, downstream: &Downstream) -> Self {
        Self::new(name, "read", downstream.url("/calls"))
    }

    pub(crate) fn keyed(name: &str, downstream: &Downstream) -> Self {
        Self::new(name, "keyed_write", downstream.url("/calls"))
    }

    pub(crate) fn unkeyed(name: &str, downstream: &Downstream) -> Self {
        Self::new(name, "unkeyed_write", downstream.url("/calls"))
    }

    /// A tool of any class that is a program.
    pub(crate) fn command(name: &str, effect: &'static str, program: &Path) -> Self {
        Self::of(name, effect, "command", format!("program = {program:?}"))
    }

    /// A tool of this class at another server.
    pub(crate) fn new(name: &str, effect: &'static str, url: String) -> Self {
        Self::of(name, effect, "http", format!("url = {url:?}"))
    }

    fn of(name: &str, effect: &'static str, executor: &'static str, place: String) -> Self {
        Self {
            name: name.to_owned(),
            effect,
            schema: "{ type = \"object\" }".to_owned(),
            executor,
            place,
            retry: retry("2s", 2),
            fields: String::new(),
            more: String::new(),
        }
    }

    /// Another place, to which requests go.
    pub(crate) fn at(self, url: String) -> Self {
        Self { place: format!("url = {url:?}"), ..self }
    }

    /// How long one round may last, and how many trips through a delay queue follow.
    pub(crate) fn retry(self, max_elapsed: &str, rounds: u32) -> Self {
        Self { retry: retry(max_elapsed, rounds), ..self }
    }

    /// How long one request may take.
    pub(crate) fn timeout(mut self, timeout: &str) -> Self {
        let others = self.fields.lines().filter(|line| !line.starts_with("timeout ="));
        self.fields = others.map(|line| format!("{line}\n")).collect();
        self.with("timeout", &format!("\"{timeout}\""))
    }

    /// An inline table of TOML.
    pub(crate) fn schema(self, schema: &str) -> Self {
        Self { schema: schema.to_owned(), ..self }
    }

    /// A field of the tool, in TOML.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        writeln!(self.fields, "{name} = {value}").expect("a String takes everything");
        self
    }

    /// A field of the tool's `http` table, in TOML.
    pub(crate) fn http(self, name: &str, value: &str) -> Self {
        self.executor(name, value)
    }

    /// A field of the executor's table, in TOML.
    pub(crate) fn executor(mut self, name: &str, value: &str) -> Self {
        writeln!(self.more, "{name} = {value}").expect("a String takes everything");
        self
    }

    /// A probe of this downstream; more of its fields in TOML, each with a comma before.
    pub(crate) fn probe(self, downstream: &Downstream, more: &str) -> Self {
        let url = downstream.url("/calls/{key}");
        let probe = format!(
            "{{ url = \"{url}\", state_field = \"/state\", completed = [\"done\"], \
             running = [\"running\"], failed = [\"failed\"], result_field = \"/result\"{more} }}"
        );
        self.http("probe", &probe)
    }

    pub(super) fn text(&self) -> String {
        let Self { name, effect, schema, executor, place, retry, fields, more } = self;
        format!(
            "[tools.{name:?}]\neffect = \"{effect}\"\ninput_schema = {schema}\nretry = {retry}\n{fields}\
             \n[tools.{name:?}.{executor}]\n{place}\n{more}\n"
        )
    }
}

fn retry(max_elapsed: &str, rounds: u32) -> String {
    format!(
        "{{ initial = \"20ms\", max_interval = \"200ms\", max_elapsed = \"{max_elapsed}\", rounds = {rounds} }}"
    )
}
