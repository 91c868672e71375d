//! `migrate`: brings the ledger's schema up to date.

use std::io::Write as _;

use super::{CliError, Global};

pub(super) async fn run(global: &Global) -> Result<(), CliError> {
    let config = global.start()?;
    let applied = global.ledger(&config)?.migrate().await?;
    let mut out = std::io::stdout().lock();
    for migration in &applied {
        if global.json {
            writeln!(out, "{}", serde_json::json!({ "applied": migration }))
        } else {
            writeln!(out, "applied {migration}")
        }
        .map_err(CliError::output)?;
    }
    if applied.is_empty() && !global.json {
        writeln!(out, "up to date").map_err(CliError::output)?;
    }
    Ok(())
}
