//! The settings' flags, made from their one list.

use std::collections::BTreeMap;
use std::path::Path;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};

use crate::config::{Config, ConfigError, SETTINGS};

/// What was given as flags.
#[derive(Debug, Default)]
pub(super) struct SettingFlags(BTreeMap<&'static str, String>);

/// Reads the settings from flags, the environment and the file that was named.
pub(super) fn load(flags: &SettingFlags, file: Option<&Path>) -> Result<Config, ConfigError> {
    Config::load(&flags.0, |name| std::env::var(name).ok(), file)
}

impl Args for SettingFlags {
    fn augment_args(command: Command) -> Command {
        SETTINGS.iter().fold(command, |command, setting| {
            let default = if setting.default.is_empty() { "none" } else { setting.default };
            let help = format!(
                "{} [env: {}] [default: {default}]",
                setting.help.trim(),
                setting.variable()
            );
            let arg = Arg::new(setting.name)
                .long(setting.flag())
                .help(help)
                .value_name("VALUE")
                .help_heading("Settings");
            command.arg(arg)
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SettingFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given =
            |name: &'static str| matches.get_one::<String>(name).map(|value| (name, value.clone()));
        Ok(Self(SETTINGS.iter().filter_map(|setting| given(setting.name)).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
