//! A registry's text as tables whose every entry knows its line, and the problems found in them.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{MissingVariable, Problem};
use crate::duration;

/// A file's text.
pub(super) fn file_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    let mut text = String::new();
    let file = File::open(path)?;
    file.take(bytes_max + 1).read_to_string(&mut text)?;
    if text.len() as u64 > bytes_max {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the file is too large"));
    }
    Ok(text)
}

/// A text being read, with what was found wrong so far.
pub(super) struct Source<'a> {
    path: &'a Path,
    text: &'a str,
    problems: RefCell<Vec<Problem>>,
    missing: RefCell<Vec<MissingVariable>>,
}

impl<'a> Source<'a> {
    pub(super) fn new(path: &'a Path, text: &'a str) -> Self {
        Self { path, text, problems: RefCell::default(), missing: RefCell::default() }
    }

    pub(super) fn path(&self) -> &Path {
        self.path
    }

    pub(super) fn line(&self, at: usize) -> usize {
        let before = self.text.as_bytes().get(..at).unwrap_or(self.text.as_bytes());
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }

    pub(super) fn problem(&self, at: usize, message: String) {
        let problem = Problem { path: self.path.to_owned(), line: self.line(at), message };
        self.problems.borrow_mut().push(problem);
    }

    pub(super) fn missing_variable(&self, at: usize, name: String) {
        let variable = MissingVariable { path: self.path.to_owned(), line: self.line(at), name };
        self.missing.borrow_mut().push(variable);
    }

    /// The problems, or the variables that are not set, in the order of their lines.
    pub(super) fn finish(self) -> Result<Vec<MissingVariable>, Vec<Problem>> {
        let mut problems = self.problems.into_inner();
        problems.sort_by_key(|problem| problem.line);
        let mut missing = self.missing.into_inner();
        missing.sort_by_key(|variable| variable.line);
        if problems.is_empty() { Ok(missing) } else { Err(problems) }
    }
}

/// A value with its place in the text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found<T> {
    pub(super) value: T,
    pub(super) at: usize,
}

/// A table of the registry: knows its name for messages, and which fields it was asked for.
pub(super) struct Section<'a> {
    source: &'a Source<'a>,
    name: String,
    at: usize,
    table: &'a DeTable<'a>,
    known: RefCell<Vec<&'static str>>,
    refused: RefCell<Vec<&'static str>>,
}

impl<'a> Section<'a> {
    /// `at` is where the table begins; `name` is empty for the whole file.
    pub(super) fn new(
        source: &'a Source<'a>,
        name: String,
        at: usize,
        table: &'a DeTable<'a>,
    ) -> Self {
        Self { source, name, at, table, known: RefCell::default(), refused: RefCell::default() }
    }

    pub(super) fn source(&self) -> &'a Source<'a> {
        self.source
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Reports a problem of this table at a place in the text.
    pub(super) fn problem(&self, at: usize, message: impl AsRef<str>) {
        let message = message.as_ref();
        let message = match self.name.as_str() {
            "" => message.to_owned(),
            name => format!("{name}: {message}"),
        };
        self.source.problem(at, message);
    }

    /// The entries of a table whose names are free.
    pub(super) fn entries(&self) -> impl Iterator<Item = (Found<&'a str>, &'a DeValue<'a>)> {
        self.table.iter().map(|(name, value)| {
            (Found { value: name.get_ref().as_ref(), at: start(name.span()) }, value.get_ref())
        })
    }

    /// An entry that is a table.
    pub(super) fn inner(
        &self,
        name: &Found<&'a str>,
        value: &'a DeValue<'a>,
    ) -> Option<Section<'a>> {
        let shown = name.value.escape_debug();
        let DeValue::Table(table) = value else {
            self.problem(name.at, format!("`{shown}` is {}; expected a table", kind(value)));
            return None;
        };
        let inner = match self.name.as_str() {
            "" => shown.to_string(),
            outer => format!("{outer}.{shown}"),
        };
        Some(Section::new(self.source, inner, name.at, table))
    }

    pub(super) fn table(&self, field: &'static str) -> Option<Section<'a>> {
        let (name, value) = self.find(field)?;
        self.inner(&name, value)
    }

    pub(super) fn value(&self, field: &'static str) -> Option<Found<&'a DeValue<'a>>> {
        self.find(field).map(|(name, value)| Found { value, at: name.at })
    }

    pub(super) fn text(&self, field: &'static str) -> Option<Found<&'a str>> {
        self.typed(field, "text", |value| value.as_str())
    }

    pub(super) fn flag(&self, field: &'static str) -> Option<Found<bool>> {
        self.typed(field, "true or false", |value| value.as_bool())
    }

    pub(super) fn count(&self, field: &'static str) -> Option<Found<u32>> {
        self.typed(field, COUNT, as_count)
    }

    pub(super) fn duration(&self, field: &'static str) -> Option<Found<Duration>> {
        let Found { value, at } = self.text(field)?;
        match duration::parse(value) {
            Ok(value) => Some(Found { value, at }),
            Err(error) => {
                self.problem(at, format!("`{field}` is {error}"));
                None
            }
        }
    }

    /// A list of whole numbers, each with its own line.
    pub(super) fn counts(&self, field: &'static str) -> Option<Vec<Found<u32>>> {
        let Found { value: entries, .. } = self.typed(field, "a list", |value| value.as_array())?;
        let number = |entry: &Spanned<DeValue<'_>>| {
            let at = start(entry.span());
            let value = as_count(entry.get_ref());
            if value.is_none() {
                let kind = kind(entry.get_ref());
                self.problem(at, format!("`{field}` holds {kind}; expected {COUNT}"));
            }
            value.map(|value| Found { value, at })
        };
        Some(entries.iter().filter_map(number).collect())
    }

    /// A list of texts, each with its own line.
    pub(super) fn texts(&self, field: &'static str) -> Option<Vec<Found<&'a str>>> {
        let Found { value: entries, .. } = self.typed(field, "a list", |value| value.as_array())?;
        let text = |entry: &'a Spanned<DeValue<'a>>| {
            let at = start(entry.span());
            let value = entry.get_ref().as_str();
            if value.is_none() {
                let kind = kind(entry.get_ref());
                self.problem(at, format!("`{field}` holds {kind}; expected text"));
            }
            value.map(|value| Found { value, at })
        };
        Some(entries.iter().filter_map(text).collect())
    }

    /// Refuses a field by its name, because what it asks for does not exist in this version.
    pub(super) fn not_built(&self, field: &'static str) -> bool {
        self.refused.borrow_mut().push(field);
        let Some((name, _)) = self.table.get_key_value(field) else {
            return false;
        };
        self.problem(
            start(name.span()),
            format!("`{field}` is not built yet; expected no such field"),
        );
        true
    }

    /// Reports the fields that nobody has asked for.
    pub(super) fn finish(&self) {
        let known = self.known.borrow();
        for (Found { value: name, at }, _) in self.entries() {
            if !known.contains(&name) && !self.refused.borrow().contains(&name) {
                let expected = known.join(", ");
                let name = name.escape_debug();
                self.problem(at, format!("unknown field `{name}`; expected one of: {expected}"));
            }
        }
    }

    fn find(&self, field: &'static str) -> Option<(Found<&'a str>, &'a DeValue<'a>)> {
        if !self.known.borrow().contains(&field) {
            self.known.borrow_mut().push(field);
        }
        let (name, value) = self.table.get_key_value(field)?;
        Some((Found { value: field, at: start(name.span()) }, value.get_ref()))
    }

    /// A field of one kind; another kind is reported.
    fn typed<T>(
        &self,
        field: &'static str,
        expected: &str,
        read: impl Fn(&'a DeValue<'a>) -> Option<T>,
    ) -> Option<Found<T>> {
        let Found { value, at } = self.value(field)?;
        let typed = read(value);
        if typed.is_none() {
            self.problem(at, format!("`{field}` is {}; expected {expected}", kind(value)));
        }
        typed.map(|value| Found { value, at })
    }
}

const COUNT: &str = "whole numbers from 0 to 4294967295";

fn as_count(value: &DeValue<'_>) -> Option<u32> {
    let number = value.as_integer()?;
    u32::from_str_radix(number.as_str(), number.radix()).ok()
}

pub(super) fn start(span: Range<usize>) -> usize {
    span.start
}

/// What a value is, for a message; never the value itself, which may be a secret in the wrong place.
fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
