//! The command line: one file a command.
//!
//! Standard output carries results only, one line a result; logs, progress and errors go to
//! standard error. Exit 0: done; 1: failed; 2: wrong usage.

mod bench;
mod dead;
mod key;
mod ledger;
mod lines;
mod migrate;
mod settings;
mod submit;
mod supervise;
mod table;
mod tools;
mod verify;
mod worker;

use std::io;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use secrecy::SecretString;
use tokio::runtime::{Builder, Runtime};

pub use bench::BenchError;

use crate::broker::BrokerError;
use crate::config::{Config, ConfigError};
use crate::ledger::LedgerError;
use crate::worker::WorkerError;

/// Runs each tool call of an agent once, however often the call is delivered
#[derive(Debug, Parser)]
#[command(version, about, arg_required_else_help = true)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Flags of every command, before or after its own words; ignored where there is no use for them.
#[derive(Debug, Args)]
struct Global {
    /// The broker: amqp://user:password@host:port/vhost, or amqps://
    #[arg(long, global = true, env = "AMQP_URL", hide_env_values = true, value_name = "URL")]
    amqp_url: Option<SecretString>,
    /// The ledger: postgres://user:password@host:port/database
    #[arg(long, global = true, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    database_url: Option<SecretString>,
    /// The settings; none is read unless it is named
    #[arg(long, global = true, env = "CALLONCE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// The registry of tools
    #[arg(
        long,
        global = true,
        env = "CALLONCE_TOOLS",
        value_name = "FILE",
        default_value = "config/tools.toml"
    )]
    tools: PathBuf,
    /// What the names of all queues begin with
    #[arg(
        long,
        global = true,
        env = "CALLONCE_PREFIX",
        value_name = "TEXT",
        default_value = "callonce"
    )]
    prefix: String,
    /// Print results as JSON, one object a line
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs a worker of the pool
    Worker(worker::WorkerCommand),
    /// Brings the ledger's schema up to date
    #[command(
        after_help = "Example:\n  callonce migrate --database-url postgres://callonce@127.0.0.1/callonce"
    )]
    Migrate,
    /// Publishes jobs, a JSON object a line
    Submit(submit::SubmitCommand),
    /// Prints each job's key, without any service
    Key(key::KeyCommand),
    /// Checks the registry, and says which tools could double-fire
    Tools(tools::ToolsCommand),
    /// Looks calls up in the ledger, and takes a person's word on them
    Ledger(ledger::LedgerCommand),
    /// Looks at the jobs that no redelivery will mend
    Dead(dead::DeadCommand),
    /// Measures how fast this installation is, on a schema and queues of its own
    Bench(bench::BenchCommand),
    /// Runs one child process for a worker, which starts this itself
    #[command(hide = true)]
    Supervise,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// Something that the command needs was not given.
    #[error("{0}")]
    Missing(&'static str),
    /// The settings cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The ledger did not do as it was asked.
    #[error("the ledger cannot be used")]
    Ledger(#[from] LedgerError),
    /// The broker did not do as it was asked.
    #[error("the broker cannot be used")]
    Broker(#[from] BrokerError),
    /// The worker did not start, or was not drained in time.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// There are no figures.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// A file, standard input or standard output.
    #[error("{what}")]
    Io {
        /// What could not be read or written.
        what: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// What went wrong has been said already.
    #[error("failed")]
    Said,
}

impl CliError {
    fn output(source: io::Error) -> Self {
        Self::Io { what: "standard output cannot be written".to_owned(), source }
    }
}

impl Cli {
    /// What to run the command on.
    ///
    /// # Errors
    ///
    /// The system has no room for it.
    pub fn runtime(&self) -> io::Result<Runtime> {
        let mut builder = match self.command {
            // There is one for each call of a command: no threads that it does not need.
            Command::Supervise => Builder::new_current_thread(),
            Command::Worker(_)
            | Command::Migrate
            | Command::Submit(_)
            | Command::Key(_)
            | Command::Tools(_)
            | Command::Ledger(_)
            | Command::Dead(_)
            | Command::Bench(_) => Builder::new_multi_thread(),
        };
        builder.enable_all().build()
    }

    /// Runs the command.
    ///
    /// # Errors
    ///
    /// [`CliError`]; the exit code is then 1, or 2 where something was not given.
    pub async fn run(self) -> Result<(), CliError> {
        let global = &self.global;
        match self.command {
            Command::Worker(command) => command.run(global).await,
            Command::Migrate => migrate::run(global).await,
            Command::Submit(command) => command.run(global).await,
            Command::Key(command) => command.run(global),
            Command::Tools(command) => command.run(global).await,
            Command::Ledger(command) => command.run(global).await,
            Command::Dead(command) => command.run(global).await,
            Command::Bench(command) => command.run(global).await,
            Command::Supervise => supervise::run().await,
        }
    }
}

impl Global {
    fn amqp_url(&self) -> Result<&SecretString, CliError> {
        self.amqp_url
            .as_ref()
            .ok_or(CliError::Missing("no broker was named: set AMQP_URL or --amqp-url"))
    }

    fn database_url(&self) -> Result<&SecretString, CliError> {
        self.database_url
            .as_ref()
            .ok_or(CliError::Missing("no ledger was named: set DATABASE_URL or --database-url"))
    }

    /// The settings for a command without flags of its own for them.
    fn settings(&self) -> Result<Config, CliError> {
        Ok(settings::load(&Default::default(), self.config.as_deref())?)
    }

    /// The settings, with logs started as they say.
    fn start(&self) -> Result<Config, CliError> {
        let config = self.settings()?;
        crate::telemetry::start(config.log_format);
        Ok(config)
    }

    fn ledger(&self, config: &Config) -> Result<crate::ledger::Ledger, CliError> {
        Ok(crate::worker::ledger(config, self.database_url()?, 1)?)
    }
}
