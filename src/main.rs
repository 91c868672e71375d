//! The command line in, the exit code out; the only place where errors lose their type.

use std::process::ExitCode;

use anyhow::Context as _;
use callonce::cli::{Cli, CliError};
use callonce::telemetry::chain;
use clap::Parser as _;

/// What the command line's parser answers to what it cannot read, too.
const WRONG_USAGE: u8 = 2;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let known = error.downcast_ref::<CliError>();
            if !matches!(known, Some(CliError::Said)) {
                eprintln!("callonce: {}", chain(error.as_ref()));
            }
            match known {
                Some(CliError::Missing(_)) => ExitCode::from(WRONG_USAGE),
                Some(_) | None => ExitCode::FAILURE,
            }
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    let runtime = cli.runtime().context("the runtime could not be started")?;
    let ended = runtime.block_on(cli.run());
    // What a library still does in the background must not keep the process.
    runtime.shutdown_background();
    Ok(ended?)
}
