//! One file that says which tools there are, and which of them can double-fire.
//!
//! A registry is read whole: every problem in it is reported at once, with file and line, and a
//! registry with a problem is not used at all. What is not built yet is refused by its name, so that
//! no guard is believed to stand that does not.

mod command;
mod idle;
mod read;
mod source;
mod target;
mod variables;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::{RESULT_MAX_DEFAULT, Tool};
use crate::duration;

pub use super::schema::VIOLATIONS_MAX;
pub(super) use target::checked as checked_url;
pub use variables::{MissingVariable, Variables};

/// A registry is written by hand; a larger file is a mistake.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The tools, by name.
#[derive(Debug)]
pub struct Registry {
    path: PathBuf,
    tools: BTreeMap<String, Registered>,
    missing: Vec<MissingVariable>,
}

#[derive(Debug)]
struct Registered {
    tool: Arc<Tool>,
    line: usize,
}

impl Registry {
    /// Reads a registry, with the default limit on a result's size.
    ///
    /// # Errors
    /// The file cannot be read, or has problems: all of them.
    pub fn load(path: &Path, variables: Variables) -> Result<Self, RegistryError> {
        Self::load_with(path, variables, RESULT_MAX_DEFAULT)
    }

    /// Reads a registry whose tools' results are cut above `result_bytes_max`.
    ///
    /// # Errors
    /// As [`Registry::load`].
    pub fn load_with(
        path: &Path,
        variables: Variables,
        result_bytes_max: usize,
    ) -> Result<Self, RegistryError> {
        let text = source::file_text(path, FILE_BYTES_MAX)
            .map_err(|source| RegistryError::Unreadable { path: path.to_owned(), source })?;
        Self::read(path, &text, variables, result_bytes_max)
    }

    fn read(
        path: &Path,
        text: &str,
        variables: Variables,
        result_bytes_max: usize,
    ) -> Result<Self, RegistryError> {
        let read = read::registry(path, text, variables, result_bytes_max)?;
        let tools = read
            .tools
            .into_iter()
            .map(|(line, tool)| {
                let name = tool.name().as_str().to_owned();
                (name, Registered { tool: Arc::new(tool), line })
            })
            .collect();
        Ok(Self { path: path.to_owned(), tools, missing: read.missing })
    }

    /// The tool of that name, exactly as it is written.
    pub fn get(&self, name: &str) -> Option<&Arc<Tool>> {
        self.tools.get(name).map(|registered| &registered.tool)
    }

    /// All tools, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Tool>> {
        self.tools.values().map(|registered| &registered.tool)
    }

    /// The variables that are named and not set, where that was no error.
    pub fn missing_variables(&self) -> &[MissingVariable] {
        &self.missing
    }

    /// Refuses a tool that relies on its downstream alone, `ledger = false`, where the downstream
    /// forgets a key sooner than a call can come back.
    ///
    /// `longest` is the longest way back that the broker's settings allow.
    ///
    /// # Errors
    /// Each such tool.
    pub fn check_way_back(&self, longest: Duration) -> Result<(), RegistryError> {
        let forgets = |tool: &Tool| {
            let memory = tool.key_memory().filter(|memory| *memory < longest)?;
            let relies_on_it = tool.effect() != super::EffectClass::Read && !tool.uses_ledger();
            relies_on_it.then_some(memory)
        };
        let problems: Vec<Problem> = self
            .tools
            .values()
            .filter_map(|Registered { tool, line }| {
                let memory = duration::show(forgets(tool)?);
                let longest = duration::show(longest);
                Some(Problem {
                    path: self.path.clone(),
                    line: *line,
                    message: format!(
                        "tools.{name}: `ledger = false` with a key_memory of {memory}, and a call \
                         can come back after {longest}; expected a longer memory, or the ledger",
                        name = tool.name().as_str().escape_debug(),
                    ),
                })
            })
            .collect();
        if problems.is_empty() { Ok(()) } else { Err(RegistryError::Invalid(problems)) }
    }
}

/// One thing that is wrong with a registry.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Problem {
    /// The registry's file.
    pub path: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// What is wrong, and what was expected; never the value of a variable.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path.display(), self.line, self.message)
    }
}

/// Why there is no registry.
#[derive(Debug, Error)]
pub enum RegistryError {
    /// The file cannot be read.
    #[error("{path}: the registry cannot be read", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file has problems, in the order of their lines.
    #[error("{}", one_a_line(.0))]
    Invalid(Vec<Problem>),
}

impl RegistryError {
    /// The problems in the file; none where it could not be read.
    pub fn problems(&self) -> &[Problem] {
        match self {
            Self::Unreadable { .. } => &[],
            Self::Invalid(problems) => problems,
        }
    }
}

fn one_a_line(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests;
