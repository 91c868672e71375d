//! `key`: prints each job's key, without any service.

use std::io::Write as _;
use std::path::PathBuf;

use clap::Args;

use super::lines::Lines;
use super::{CliError, Global};
use crate::call::canonical::canonical;
use crate::call::job::{Job, Limits};

/// Reads jobs, a JSON object a line, and prints the key of each.
#[derive(Debug, Args)]
#[command(
    after_help = "A bad line prints nothing, is named on standard error, and makes the exit code 1.\n\nExample:\n  \
                  echo '{\"conversation_id\":\"conv_42\",\"turn_index\":7,\"name\":\"send_payment\",\
                  \"args\":{\"amount\":1}}' | callonce key"
)]
pub(super) struct KeyCommand {
    /// The jobs; standard input if none is named
    file: Option<PathBuf>,
    /// Print the canonical arguments
    #[arg(long)]
    canonical: bool,
}

impl KeyCommand {
    pub(super) fn run(self, global: &Global) -> Result<(), CliError> {
        let limits = limits(global)?;
        let mut lines = Lines::open(self.file.as_deref(), limits.message_bytes_max)?;
        let mut out = std::io::stdout().lock();
        let mut bad = false;
        while let Some(line) = lines.next()? {
            match self.show(&line.text, &limits, global.json) {
                Ok(shown) => writeln!(out, "{shown}").map_err(CliError::output)?,
                Err(reason) => {
                    bad = true;
                    complain(line.number, &reason);
                }
            }
        }
        if bad { Err(CliError::Said) } else { Ok(()) }
    }

    fn show(&self, text: &bytes::Bytes, limits: &Limits, json: bool) -> Result<String, String> {
        let job = Job::decode(text, None, None, limits).map_err(|bad| bad.error.to_string())?;
        let args = std::str::from_utf8(&job.args).map_err(|error| error.to_string())?;
        let canonical = if self.canonical {
            Some(canonical(args).map_err(|refusal| refusal.to_string())?)
        } else {
            None
        };
        Ok(match (json, canonical) {
            (false, None) => job.key().to_string(),
            (false, Some(canonical)) => canonical,
            (true, None) => serde_json::json!({ "key": job.key() }).to_string(),
            (true, Some(canonical)) => {
                serde_json::json!({ "key": job.key(), "canonical": canonical }).to_string()
            }
        })
    }
}

/// The limits that a worker with the same settings would hold a job to.
pub(super) fn limits(global: &Global) -> Result<Limits, CliError> {
    let config = global.settings()?;
    Ok(Limits {
        message_bytes_max: config.message_bytes_max.0,
        conversation_id_bytes_max: config.conversation_id_bytes_max.0,
        id_bytes_max: config.id_bytes_max.0,
    })
}

/// Says on standard error what is wrong with a line.
pub(super) fn complain(number: usize, reason: &str) {
    eprintln!("line {number}: {reason}");
}
