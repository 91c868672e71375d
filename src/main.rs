//! The command line in, the exit code out; the only place where errors lose their type.

use std::process::ExitCode;

use anyhow::Context as _;
use callonce::cli::{Cli, CliError};
use clap::Parser as _;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let said = error
                .downcast_ref::<CliError>()
                .is_some_and(|error| matches!(error, CliError::Said));
            if !said {
                eprintln!("callonce: {}", told(&error));
            }
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the runtime could not be started")?;
    let ended = runtime.block_on(cli.run());
    // What a library still does in the background must not keep the process.
    runtime.shutdown_background();
    Ok(ended?)
}

/// An error and its causes on one line. Some libraries repeat a cause in the text of its effect; here
/// it is said once.
fn told(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |told, cause| match cause.to_string() {
        cause if told.ends_with(&cause) => told,
        cause if told.is_empty() => cause,
        cause => format!("{told}: {cause}"),
    })
}
