//! `bench growth`: what the ledger's size costs.

use clap::Args;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use serde_json::json;

use super::session::{Session, Shared};
use super::{BenchError, show_progress};
use crate::cli::CliError;

/// Rows of one statement: a second or two of a server's work.
const CHUNK: i64 = 50_000;
/// Statements at a time.
const AT_A_TIME: usize = 2;

/// Measures `unique` with so many completed calls in the ledger, each number in turn.
#[derive(Debug, Args)]
#[command(
    after_help = "A row takes about 1.2 KB with its index: 50 million rows take some 60 GB on the server's disk until \
                  the end.\n\nExample:\n  callonce bench growth --rows 0,1000000,10000000"
)]
pub(super) struct Growth {
    /// Rows in the ledger before the calls that are measured
    #[arg(long, value_name = "N,…", value_delimiter = ',', required = true)]
    rows: Vec<u32>,
    #[command(flatten)]
    pub(super) shared: Shared,
}

impl Growth {
    pub(super) async fn run(&self, session: &mut Session<'_>, json: bool) -> Result<(), CliError> {
        let mut sizes = self.rows.clone();
        sizes.sort_unstable();
        sizes.dedup();
        for rows in sizes {
            fill(session, rows.into()).await?;
            let figure = session.grown().await?;
            let line = match json {
                true => json!({
                    "rows": figure.rows,
                    "database_bytes": figure.database_bytes,
                    "measured": figure.json,
                })
                .to_string(),
                false => format!(
                    "{} rows, {} MiB  {}",
                    figure.rows,
                    figure.database_bytes >> 20,
                    figure.line
                ),
            };
            super::print(&line)?;
        }
        Ok(())
    }
}

/// Brings the ledger to so many rows, and to the order that a server keeps it in.
async fn fill(session: &Session<'_>, rows: i64) -> Result<(), BenchError> {
    let ledger = &session.place.ledger;
    let there = ledger.held().await?.rows;
    let chunks = (there..rows).step_by(CHUNK as usize);
    let filled = stream::iter(chunks)
        .map(|first| async move {
            // Numbers begin where the rows that are there end: none comes twice.
            ledger.fill(first, (first + CHUNK).min(rows) - 1).await.map(|()| first + CHUNK)
        })
        .buffer_unordered(AT_A_TIME);
    let show = |done: i64| async move {
        show_progress("filling", &format!("{} of {rows}", done.min(rows)));
        Ok(())
    };
    filled.try_for_each(show).await?;
    show_progress("filling", "vacuum and checkpoint");
    ledger.vacuum().await?;
    if !ledger.checkpoint().await? {
        eprintln!("the role may not CHECKPOINT: the first figures may hold the server's own");
    }
    Ok(())
}
