//! `${VAR}` in a registry: where the values come from, and what may hold one.

use std::env;
use std::fmt;
use std::path::PathBuf;

use secrecy::SecretString;
use serde::Serialize;

type Lookup = dyn Fn(&str) -> Option<String> + Send + Sync;

/// Where the values of variables come from, and what follows when one is not set.
pub struct Variables {
    lookup: Box<Lookup>,
    required: bool,
}

impl Variables {
    /// From the environment; one that is not set, or is empty, is an error: for a worker.
    pub fn required() -> Self {
        Self::from_lookup(|name| env::var(name).ok(), true)
    }

    /// From the environment, as far as they are set; the others are named: for a look at
    /// the file. Its tools cannot be called.
    pub fn named() -> Self {
        Self::from_lookup(|name| env::var(name).ok(), false)
    }

    /// From somewhere else.
    pub fn from_lookup(
        lookup: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
        required: bool,
    ) -> Self {
        Self { lookup: Box::new(lookup), required }
    }

    pub(super) fn are_required(&self) -> bool {
        self.required
    }

    /// Fills a text's variables in.
    pub(super) fn fill(&self, template: &str) -> Result<Filled, TemplateError> {
        let mut text = String::new();
        let mut missing = Vec::new();
        let mut rest = template;
        while let Some((before, after)) = rest.split_once("${") {
            text.push_str(before);
            let (name, after) = after.split_once('}').ok_or(TemplateError)?;
            if !is_name(name) {
                return Err(TemplateError);
            }
            // An empty value is as good as none: a token that was never filled in.
            match (self.lookup)(name).filter(|value| !value.is_empty()) {
                Some(value) => text.push_str(&value),
                None => missing.push(name.to_owned()),
            }
            rest = after;
        }
        text.push_str(rest);
        Ok(if missing.is_empty() { Filled::Text(text.into()) } else { Filled::Missing(missing) })
    }
}

impl fmt::Debug for Variables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Variables").field("required", &self.required).finish_non_exhaustive()
    }
}

fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && chars.all(|other| other.is_ascii_alphanumeric() || other == '_')
}

/// A text with its variables.
pub(super) enum Filled {
    /// All of them were set.
    Text(SecretString),
    /// These were not.
    Missing(Vec<String>),
}

/// A `${` that begins no variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TemplateError;

/// A variable that a registry names and that is not set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MissingVariable {
    /// The registry's file.
    pub path: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// The variable's name.
    pub name: String,
}

impl fmt::Display for MissingVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, line, name) = (self.path.display(), self.line, &self.name);
        write!(f, "{path}:{line}: the variable `{name}` is not set")
    }
}
