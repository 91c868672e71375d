//! File, environment and flags into one validated [`Config`].
//!
//! A flag stands before the environment, that before the file, that before the default. All four
//! are text and read by the same parser, so that a value means the same wherever it stands. Every
//! problem is reported at once.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use crate::telemetry::LogFormat;
use crate::tools::registry::Registry;

/// A setting's name, default and meaning: what the flags, the file and the README are held against.
#[derive(Debug)]
pub struct Setting {
    /// Its name in the file; with dashes its flag, in capitals after `CALLONCE_` its variable.
    pub name: &'static str,
    /// Its default, as text.
    pub default: &'static str,
    /// What it means, with its unit.
    pub help: &'static str,
}

impl Setting {
    /// The setting's flag, without its dashes before.
    pub fn flag(&self) -> String {
        self.name.replace('_', "-")
    }

    /// The setting's environment variable.
    pub fn variable(&self) -> String {
        format!("CALLONCE_{}", self.name.to_uppercase())
    }
}

macro_rules! settings {
    ($($(#[doc = $help:literal])+ $name:ident: $kind:ty = $default:literal,)*) => {
        /// A worker's settings.
        #[derive(Debug, Clone)]
        pub struct Config {
            $($(#[doc = $help])+ pub $name: $kind,)*
        }

        /// All settings, in the order of the file.
        pub const SETTINGS: &[Setting] = &[
            $(Setting { name: stringify!($name), default: $default, help: concat!($($help),+) },)*
        ];

        impl Config {
            fn read(values: &mut Values) -> Option<Self> {
                $(let $name = values.read::<$kind>(stringify!($name), $default);)*
                Some(Self { $($name: $name?,)* })
            }
        }
    };
}

settings! {
    /// Deliveries that the broker may have outstanding with one worker.
    prefetch: u16 = "500",
    /// Tools that one worker runs at a time, all together.
    max_running: Count = "256",
    /// How long a delivery waits for another attempt of its call before it is parked.
    wait_for_claim: Length = "5s",
    /// Deliveries that may wait for other attempts at a time; more are parked at once.
    max_waiting: Count = "200",
    /// A delivery that was not started within this time is parked.
    hold_max: Length = "10m",
    /// The broker's `consumer_timeout`, which AMQP does not tell: `hold_max` and a call's longest
    /// run must stay below it.
    consumer_timeout: Length = "30m",
    /// How long running calls may go on after the first SIGTERM.
    drain_timeout: Length = "30s",
    /// The delays of the rounds, in order; later rounds use the last. Each has a queue.
    retry_delays: Lengths = "5s, 30s, 2m",
    /// Workers that may be lost with one call, one after another, before it is set aside.
    max_attempts: Attempts = "5",
    /// The longest result that is kept whole, in bytes.
    result_max: Count = "1048576",
    /// The longest message that is read, in bytes.
    message_bytes_max: Count = "1048576",
    /// The longest `conversation_id`, in bytes.
    conversation_id_bytes_max: Count = "1024",
    /// The longest of every other id and name, in bytes.
    id_bytes_max: Count = "256",
    /// Calls that one statement of the ledger claims, reads or settles at most; 1: each call's
    /// statement is its own.
    batch_max: Count = "500",
    /// Connections to Postgres, beside one for lease renewals.
    pool_size: Count = "16",
    /// For a connection to Postgres to be made.
    database_connect_timeout: Length = "5s",
    /// For a connection of the pool to come free.
    database_checkout_timeout: Length = "5s",
    /// For a statement to be answered; after it the connection is dropped.
    database_statement_timeout: Length = "10s",
    /// For a connection to the broker to be made, and each request of its set-up.
    broker_connect_timeout: Length = "10s",
    /// Between two heartbeats, where the URL does not say; in whole seconds.
    broker_heartbeat: Length = "20s",
    /// The folder that keeps outcomes while Postgres is away; a worker that starts settles what an
    /// ended one left there. It holds arguments and results.
    journal: String = "callonce-journal",
    /// Only look the queues up, where operators provision them.
    passive: bool = "false",
    /// Allow amqp:// to another host than this one.
    allow_plaintext: bool = "false",
    /// `auto` (pretty on a terminal, JSON elsewhere), `pretty` or `json`.
    log_format: LogFormat = "auto",
    /// The worker's name in the ledger and at the broker; empty: host and process id.
    worker_name: String = "",
}

/// Why there are no settings: every problem.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct ConfigError(Vec<String>);

impl Config {
    /// Reads the settings from flags, the environment and the file that was named, if one was.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] with every problem, each with its source.
    pub fn load(
        flags: &BTreeMap<&'static str, String>,
        environment: impl Fn(&str) -> Option<String>,
        file: Option<&Path>,
    ) -> Result<Self, ConfigError> {
        let mut values = Values::default();
        if let Some(file) = file {
            values.take_file(file);
        }
        for setting in SETTINGS {
            let variable = setting.variable();
            if let Some(value) = environment(&variable) {
                values.set(setting.name, value, variable);
            }
            if let Some(value) = flags.get(setting.name) {
                values.set(setting.name, value.clone(), format!("--{}", setting.flag()));
            }
        }
        let config = Self::read(&mut values);
        match config {
            Some(config) if values.problems.is_empty() => config.check().map(|()| config),
            Some(_) | None => Err(ConfigError(values.problems)),
        }
    }

    /// What no single setting shows.
    fn check(&self) -> Result<(), ConfigError> {
        let mut problems = Vec::new();
        if self.prefetch == 0 {
            problems.push(
                "prefetch is 0, which AMQP takes as no limit; expected at least 1".to_owned(),
            );
        }
        if self.hold_max.0 >= self.consumer_timeout.0 {
            problems.push(
                "hold_max is not below consumer_timeout; the broker would close the session"
                    .to_owned(),
            );
        }
        if problems.is_empty() { Ok(()) } else { Err(ConfigError(problems)) }
    }

    /// Refuses tools whose longest run the broker would not wait for.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] with each such tool.
    pub fn check_tools(&self, registry: &Registry) -> Result<(), ConfigError> {
        let problem = |tool: &crate::tools::Tool| {
            // A last request may begin when the budget is nearly spent, and a probe may come before
            // the first and after the last.
            let run = tool.retry().max_elapsed + tool.timeout() + 2 * tool.longest_probe();
            let longest = self.hold_max.0 + run;
            (longest > self.consumer_timeout.0).then(|| {
                format!(
                    "tool {:?} may hold a delivery for {longest:?} (hold_max, retry.max_elapsed, timeout and probe); \
                     expected at most consumer_timeout, {:?}",
                    tool.name().as_str(),
                    self.consumer_timeout.0
                )
            })
        };
        let problems: Vec<String> = registry.iter().filter_map(|tool| problem(tool)).collect();
        if problems.is_empty() { Ok(()) } else { Err(ConfigError(problems)) }
    }
}

/// Values by name, each with where it was found, and what was wrong.
#[derive(Default)]
struct Values {
    found: BTreeMap<&'static str, (String, String)>,
    problems: Vec<String>,
}

impl Values {
    fn set(&mut self, name: &'static str, value: String, source: String) {
        self.found.insert(name, (value, source));
    }

    fn take_file(&mut self, path: &Path) {
        let shown = path.display();
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) => return self.problems.push(format!("{shown}: {error}")),
        };
        let table: toml::Table = match text.parse() {
            Ok(table) => table,
            Err(error) => return self.problems.push(format!("{shown}: {error}")),
        };
        for (name, value) in table {
            match (SETTINGS.iter().find(|setting| setting.name == name), as_text(&value)) {
                (Some(setting), Some(value)) => {
                    self.set(setting.name, value, format!("{shown}: {name}"))
                }
                (Some(_), None) => self
                    .problems
                    .push(format!("{shown}: {name}: expected a text, a number or a list of texts")),
                (None, _) => {
                    self.problems.push(format!("{shown}: {name}: no setting has this name"))
                }
            }
        }
    }

    fn read<T: FromStr<Err: fmt::Display>>(
        &mut self,
        name: &'static str,
        default: &str,
    ) -> Option<T> {
        let (value, source) = match self.found.get(name) {
            Some((value, source)) => (value.as_str(), source.as_str()),
            None => (default, name),
        };
        match value.parse() {
            Ok(value) => Some(value),
            Err(error) => {
                self.problems.push(format!("{source}: {error}"));
                None
            }
        }
    }
}

fn as_text(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Boolean(yes) => Some(yes.to_string()),
        toml::Value::Array(items) => {
            items.iter().map(as_text).collect::<Option<Vec<_>>>().map(|items| items.join(", "))
        }
        toml::Value::Float(_) | toml::Value::Datetime(_) | toml::Value::Table(_) => None,
    }
}

/// A length of time: `10s`, `200ms`, `30m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Length(pub Duration);

impl FromStr for Length {
    type Err = crate::duration::DurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        crate::duration::parse(text).map(Self)
    }
}

/// Lengths of time in a row, at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lengths(pub Vec<Duration>);

impl FromStr for Lengths {
    type Err = crate::duration::DurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.split(',')
            .map(|part| crate::duration::parse(part.trim()))
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

/// A number of things, at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count(pub usize);

impl FromStr for Count {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // More than this is no limit any more, and some of the library's own lie not far above.
        let fits = |count: &usize| (1..=1 << 30).contains(count);
        text.parse()
            .ok()
            .filter(fits)
            .map(Self)
            .ok_or("expected a whole number from 1 to 1073741824")
    }
}

/// A number of attempts, at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempts(pub i32);

impl FromStr for Attempts {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse()
            .ok()
            .filter(|count| (1..=1000).contains(count))
            .map(Self)
            .ok_or("expected a whole number from 1 to 1000")
    }
}

impl FromStr for LogFormat {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "pretty" => Ok(Self::Pretty),
            "json" => Ok(Self::Json),
            _ => Err("expected auto, pretty or json"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(
        flags: &[(&'static str, &str)],
        environment: &[(&str, &str)],
        file: Option<&str>,
    ) -> Result<Config, ConfigError> {
        let flags = flags.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let environment: BTreeMap<String, String> = environment
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let path = file.map(|text| {
            let path =
                std::env::temp_dir().join(format!("callonce-config-{}.toml", uuid::Uuid::new_v4()));
            std::fs::write(&path, text).expect("a writable temporary folder");
            path
        });
        let config = Config::load(&flags, |name| environment.get(name).cloned(), path.as_deref());
        if let Some(path) = path {
            std::fs::remove_file(path).expect("the file just written");
        }
        config
    }

    #[test]
    fn a_flag_stands_before_the_environment_before_the_file_before_the_default() {
        let file = "prefetch = 1\nmax_running = 1\nhold_max = \"1m\"\n";
        let environment = [("CALLONCE_PREFETCH", "2"), ("CALLONCE_MAX_RUNNING", "2")];
        let config = load(&[("prefetch", "3")], &environment, Some(file)).expect("good settings");
        assert_eq!((config.prefetch, config.max_running), (3, Count(2)));
        assert_eq!(config.hold_max, Length(Duration::from_secs(60)));
        assert_eq!(config.max_waiting, Count(200));
    }

    #[test]
    fn every_problem_is_reported_with_its_source() {
        let file = "prefetsch = 1\nretry_delays = [\"5s\", \"soon\"]\n";
        let error = load(&[("hold_max", "0s")], &[("CALLONCE_MAX_RUNNING", "0")], Some(file))
            .expect_err("bad settings")
            .to_string();
        for part in [
            "prefetsch: no setting",
            "retry_delays:",
            "--hold-max:",
            "CALLONCE_MAX_RUNNING: expected a whole number",
        ] {
            assert!(error.contains(part), "{part} is missing in {error}");
        }
    }

    #[test]
    fn settings_that_contradict_each_other_are_refused() {
        let error = load(&[("hold_max", "30m"), ("prefetch", "0")], &[], None)
            .expect_err("contradictions")
            .to_string();
        assert!(error.contains("hold_max") && error.contains("prefetch"), "{error}");
    }

    fn project_file(name: &str) -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    #[test]
    fn the_settings_file_shows_every_setting_with_its_default() {
        let text = project_file("config/callonce.toml");
        let table: toml::Table = text.parse().expect("a valid file");
        let shown: Vec<_> =
            table.iter().map(|(name, value)| (name.as_str(), as_text(value).unwrap())).collect();
        let mut expected: Vec<_> =
            SETTINGS.iter().map(|setting| (setting.name, setting.default.to_owned())).collect();
        expected.sort_unstable();
        assert_eq!(shown, expected);
        let comments: String =
            text.lines().filter_map(|line| line.strip_prefix("# ")).collect::<Vec<_>>().join(" ");
        for setting in SETTINGS {
            assert!(comments.contains(setting.help.trim()), "{} is not explained", setting.name);
        }
    }

    #[test]
    fn the_readme_lists_every_setting_with_its_default() {
        let readme = project_file("README.md");
        for setting in SETTINGS {
            let default = match setting.default {
                "" => "none".to_owned(),
                default => format!("`{default}`"),
            };
            let row = format!("| `{}` | {default} | {} |", setting.name, setting.help.trim());
            assert!(readme.contains(&row), "the README lacks the row {row}");
        }
        let rows = readme.lines().filter(|line| line.starts_with("| `")).filter(|line| {
            let name = line.trim_start_matches("| `").split('`').next().unwrap_or_default();
            SETTINGS.iter().any(|setting| setting.name == name)
        });
        assert_eq!(rows.count(), SETTINGS.len(), "the README lists a setting twice");
    }
}
