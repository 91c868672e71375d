//! `worker`: runs the pool's worker.

use clap::Args;

use super::settings::{self, SettingFlags};
use super::{CliError, Global};
use crate::worker::{Places, run};

/// Takes jobs from the broker until it is told to stop, then finishes what runs.
#[derive(Debug, Args)]
#[command(
    after_help = "SIGTERM or SIGINT drains: running calls finish, deliveries not started go back. A second one ends \
                  at once.\n\nExample:\n  callonce worker --migrate --tools config/tools.toml --config config/callonce.toml"
)]
pub(super) struct WorkerCommand {
    /// Bring the ledger's schema up to date first
    #[arg(long, env = "CALLONCE_MIGRATE")]
    migrate: bool,
    #[command(flatten)]
    settings: SettingFlags,
}

impl WorkerCommand {
    pub(super) async fn run(self, global: &Global) -> Result<(), CliError> {
        let config = settings::load(&self.settings, global.config.as_deref())?;
        crate::telemetry::start(config.log_format);
        let places = Places {
            database_url: global.database_url()?,
            amqp_url: global.amqp_url()?,
            tools: &global.tools,
            prefix: &global.prefix,
        };
        Ok(run(config, places, self.migrate).await?)
    }
}
