//! Applies `migrations/` under an advisory lock, so that ten workers may start at once.

use tokio_postgres::Client;

use super::LedgerError;

mod embedded {
    refinery::embed_migrations!("migrations");
}

/// The table that remembers which migrations were applied.
const TABLE: &str = "callonce_migrations";

/// Taken for the schema that the tables lie in, so that two ledgers of one database do not wait
/// for each other, and waited for as long as another's migrations take. The number is "call" in ASCII.
const LOCK: &str =
    "SET lock_timeout = 0; SELECT pg_advisory_lock(x'63616c6c'::int, hashtext(current_schema()))";
const UNLOCK: &str = "SELECT pg_advisory_unlock(x'63616c6c'::int, hashtext(current_schema()))";

/// Brings the schema up to date and says which migrations were applied.
pub(super) async fn migrate(client: &mut Client) -> Result<Vec<String>, LedgerError> {
    client.batch_execute(LOCK).await.map_err(LedgerError::statement)?;
    let report = runner().run_async(client).await;
    // A session that ends releases the lock as well, so a failure here loses nothing.
    let unlocked = client.batch_execute(UNLOCK).await;
    let report = report.map_err(|error| LedgerError::Migration(Box::new(error)))?;
    unlocked.map_err(LedgerError::statement)?;
    Ok(report.applied_migrations().iter().map(ToString::to_string).collect())
}

/// Says which migrations are missing, if any.
pub(super) async fn missing(client: &mut Client) -> Result<Vec<String>, LedgerError> {
    let known = client
        .query_one("SELECT to_regclass($1) IS NOT NULL", &[&TABLE])
        .await
        .map_err(LedgerError::statement)?
        .get::<_, bool>(0);
    let applied = if known {
        runner()
            .get_applied_migrations_async(client)
            .await
            .map_err(|error| LedgerError::Migration(Box::new(error)))?
    } else {
        Vec::new()
    };
    Ok(runner()
        .get_migrations()
        .iter()
        .filter(|migration| !applied.iter().any(|done| done.version() == migration.version()))
        .map(ToString::to_string)
        .collect())
}

fn runner() -> refinery::Runner {
    let mut runner = embedded::migrations::runner();
    runner.set_migration_table_name(TABLE);
    // A newer binary may have gone further while this one still runs.
    runner.set_abort_missing(false).set_grouped(true)
}
