//! Running one statement: a connection of the pool, a time limit, and what an error says of the
//! connection.

use std::time::Duration;

use deadpool_postgres::{Object, Pool};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::connect;
use super::error::{LedgerError, spoils_connection};

/// How many dead connections one statement may meet before its error counts: after a server's
/// restart each connection of the pool fails once.
const STALE_CONNECTIONS_MAX: usize = 64;

/// The connections of one ledger.
#[derive(Clone)]
pub(super) struct Connections {
    pub(super) pool: Pool,
    pub(super) statement_timeout: Duration,
}

impl Connections {
    pub(super) async fn checkout(&self) -> Result<Object, LedgerError> {
        self.pool
            .get()
            .await
            .map_err(|source| LedgerError::Connection { what: connect::describe(&source), source })
    }

    pub(super) async fn one(
        &self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>, LedgerError> {
        Ok(self.query(sql, parameters).await?.pop())
    }

    /// Runs one statement in its own transaction.
    ///
    /// A connection that was dead before the statement was sent is thrown away and another tried.
    /// Every statement here can be repeated: it is guarded, and an insert keeps its claim's id.
    pub(super) async fn query(
        &self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, LedgerError> {
        // Boxed, so that the many futures that may come here need not each have room for it.
        Box::pin(self.run(sql, parameters)).await
    }

    async fn run(
        &self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, LedgerError> {
        let mut stale = 0;
        loop {
            let client = self.checkout().await?;
            let answer = tokio::time::timeout(self.statement_timeout, async {
                let statement = client.prepare_cached(sql).await?;
                client.query(&statement, parameters).await
            })
            .await;
            match answer {
                Ok(Ok(rows)) => return Ok(rows),
                Ok(Err(error)) => {
                    let closed = error.is_closed() || client.is_closed();
                    if closed || spoils_connection(&error) {
                        drop(Object::take(client));
                    }
                    stale += 1;
                    if !closed || stale > STALE_CONNECTIONS_MAX {
                        return Err(LedgerError::statement(error));
                    }
                }
                Err(_) => {
                    drop(Object::take(client));
                    return Err(LedgerError::Timeout(self.statement_timeout));
                }
            }
        }
    }
}
