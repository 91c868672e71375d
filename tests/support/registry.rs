//! A registry's text, a tool at a time.

use std::fmt::Write as _;

use super::Downstream;

/// One tool of a test's registry: short budgets, so that no test is slow.
#[derive(Debug, Clone)]
pub(crate) struct Tool {
    name: String,
    effect: &'static str,
    schema: String,
    url: String,
    retry: String,
    fields: String,
    http: String,
}

impl Tool {
    pub(crate) fn read(name: &str, downstream: &Downstream) -> Self {
        Self::new(name, "read", downstream)
    }

    pub(crate) fn keyed(name: &str, downstream: &Downstream) -> Self {
        Self::new(name, "keyed_write", downstream)
    }

    pub(crate) fn unkeyed(name: &str, downstream: &Downstream) -> Self {
        Self::new(name, "unkeyed_write", downstream)
    }

    fn new(name: &str, effect: &'static str, downstream: &Downstream) -> Self {
        Self {
            name: name.to_owned(),
            effect,
            schema: "{ type = \"object\" }".to_owned(),
            url: downstream.url("/calls"),
            retry: retry("2s", 2),
            fields: String::new(),
            http: String::new(),
        }
    }

    /// Another place, to which requests go.
    pub(crate) fn at(self, url: String) -> Self {
        Self { url, ..self }
    }

    /// How long one round may last, and how many trips through a delay queue follow.
    pub(crate) fn retry(self, max_elapsed: &str, rounds: u32) -> Self {
        Self { retry: retry(max_elapsed, rounds), ..self }
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
    pub(crate) fn http(mut self, name: &str, value: &str) -> Self {
        writeln!(self.http, "{name} = {value}").expect("a String takes everything");
        self
    }

    pub(super) fn text(&self) -> String {
        let Self { name, effect, schema, url, retry, fields, http } = self;
        format!(
            "[tools.{name:?}]\neffect = \"{effect}\"\ninput_schema = {schema}\nretry = {retry}\n{fields}\
             \n[tools.{name:?}.http]\nurl = \"{url}\"\n{http}\n"
        )
    }
}

fn retry(max_elapsed: &str, rounds: u32) -> String {
    format!(
        "{{ initial = \"20ms\", max_interval = \"200ms\", max_elapsed = \"{max_elapsed}\", rounds = {rounds} }}"
    )
}
