//! What a benchmark asks of the database: a schema of its own, rows to begin with, and what the server
//! counts.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;

use super::{Ledger, LedgerError};

/// Filling, vacuuming or dropping millions of rows takes its time.
const MAINTENANCE_MAX: Duration = Duration::from_secs(4 * 60 * 60);

/// Why a benchmark has no schema of its own.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// The role lacks the right.
    #[error(
        "the role {role} may not create a schema in the database {database}; \
         expected: GRANT CREATE ON DATABASE {database} TO {role}"
    )]
    Denied {
        /// The role, as SQL writes it.
        role: String,
        /// The database, as SQL writes it.
        database: String,
    },
    /// Another reason.
    #[error("the schema cannot be created")]
    Ledger(#[from] LedgerError),
}

/// What the server says of itself.
#[derive(Debug, Clone)]
pub struct ServerInfo {
    /// Its version.
    pub version: String,
    /// The process that serves this session, by the number that the server's own machine gives it.
    pub backend: i32,
}

/// What a benchmark's ledger holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Rows.
    pub rows: i64,
    /// Rows that were completed by their first attempt.
    pub completed_at_once: i64,
}

/// The schema's name follows.
const CREATE_SCHEMA: &str = "CREATE SCHEMA ";
const DROP_SCHEMA: &str = "DROP SCHEMA IF EXISTS ";
const WHO: &str = "SELECT quote_ident(current_user), quote_ident(current_database())";
const SERVER: &str = "SELECT current_setting('server_version'), pg_backend_pid()";
/// A backend's last counts are there once it has left the list of the living.
const SESSIONS: &str = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1";
const COMMITS: &str = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
const DATABASE_BYTES: &str = "SELECT pg_database_size(current_database())";
const HELD: &str = "
SELECT count(*), count(*) FILTER (WHERE state = 'completed' AND attempt = 1)
FROM callonce_calls";
const EMPTY: &str = "TRUNCATE callonce_calls, callonce_history, callonce_suspects";

/// Inserts completed calls whose keys are digests of numbers, so that they lie as far from each other
/// as real ones.
///
/// Parameters: the first number, the last.
const FILL: &str = r#"
INSERT INTO callonce_calls
    (key, digest, key_version, conversation_id, turn_index, name, ordinal, args,
     effect, timeout_ms, sent_as, state, claim, attempt, worker, lease_until,
     outcome, claimed_at, last_claimed_at, settled_at)
SELECT substr(digest, 1, 16), digest, 1, 'fill-' || number / 8, number % 8, 'idle', 0,
       convert_to(format('{"invoice":"INV-%s","memo":"%s"}', number, repeat(md5(number::text), 8)), 'UTF8'),
       'keyed_write', 10000, digest, 'completed', md5(number::text)::uuid, 1, 'fill', now(),
       '{"is_error":false,"content":null,"warnings":[],"error":null}', now(), now(), now()
FROM (SELECT number, sha256(convert_to('fill-' || number, 'UTF8')) AS digest
      FROM generate_series($1::bigint, $2::bigint) AS number) AS calls"#;

impl Ledger {
    /// Creates a schema. `name` is written into SQL as it is: letters, digits and `_` only.
    ///
    /// # Errors
    ///
    /// [`SchemaError::Denied`] where the role lacks the right.
    pub async fn create_schema(&self, name: &str) -> Result<(), SchemaError> {
        match self.maintain(&format!("{CREATE_SCHEMA}{name}")).await {
            Err(LedgerError::Statement {
                code: Some(SqlState::INSUFFICIENT_PRIVILEGE), ..
            }) => {
                let row = self.one(WHO, &[]).await?.ok_or(LedgerError::Row("nobody's session"))?;
                Err(SchemaError::Denied { role: row.get(0), database: row.get(1) })
            }
            created => Ok(created?),
        }
    }

    /// Drops a schema with all that is in it; one that is not there is no error.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked, or somebody else uses the schema.
    pub async fn drop_schema(&self, name: &str) -> Result<(), LedgerError> {
        self.maintain(&format!("{DROP_SCHEMA}{name} CASCADE")).await
    }

    /// What the server says of itself.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked.
    pub async fn server(&self) -> Result<ServerInfo, LedgerError> {
        let row =
            self.one(SERVER, &[]).await?.ok_or(LedgerError::Row("a server without a name"))?;
        Ok(ServerInfo { version: row.get(0), backend: row.get(1) })
    }

    /// How many sessions of an application there are.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked.
    pub async fn sessions(&self, application: &str) -> Result<i64, LedgerError> {
        self.number(SESSIONS, &[&application]).await
    }

    /// How many transactions of this database have been committed, as far as backends have told.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked.
    pub async fn commits(&self) -> Result<i64, LedgerError> {
        self.number(COMMITS, &[]).await
    }

    /// How much room the database takes.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked.
    pub async fn database_bytes(&self) -> Result<i64, LedgerError> {
        self.number(DATABASE_BYTES, &[]).await
    }

    /// What the ledger holds.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked.
    pub async fn held(&self) -> Result<Held, LedgerError> {
        let rows = self.patiently(HELD, &[]).await?;
        let row = rows.first().ok_or(LedgerError::Row("a count without a number"))?;
        Ok(Held { rows: row.get(0), completed_at_once: row.get(1) })
    }

    /// Forgets all calls.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked.
    pub async fn empty(&self) -> Result<(), LedgerError> {
        self.maintain(EMPTY).await
    }

    /// Inserts completed calls, numbered from `first` to `last`, which no job can name.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked.
    pub async fn fill(&self, first: i64, last: i64) -> Result<(), LedgerError> {
        self.patiently(FILL, &[&first, &last]).await.map(drop)
    }

    /// Tidies the table of calls as a server does by itself when it has the time.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked.
    pub async fn vacuum(&self) -> Result<(), LedgerError> {
        self.maintain("VACUUM (ANALYZE) callonce_calls").await
    }

    /// Writes what is only in memory to the disk. False: the role lacks the right.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be asked.
    pub async fn checkpoint(&self) -> Result<bool, LedgerError> {
        match self.maintain("CHECKPOINT").await {
            Ok(()) => Ok(true),
            Err(LedgerError::Statement {
                code: Some(SqlState::INSUFFICIENT_PRIVILEGE), ..
            }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn number(
        &self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<i64, LedgerError> {
        let row = self.one(sql, parameters).await?;
        row.map(|row| row.get(0)).ok_or(LedgerError::Row("a count without a number"))
    }

    /// Runs a statement with parameters that may take long.
    async fn patiently(
        &self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, LedgerError> {
        let client = self.checkout().await?;
        match tokio::time::timeout(MAINTENANCE_MAX, client.query(sql, parameters)).await {
            Ok(rows) => rows.map_err(LedgerError::statement),
            Err(_) => Err(LedgerError::Timeout(MAINTENANCE_MAX)),
        }
    }

    /// Runs statements without parameters that may take long.
    async fn maintain(&self, sql: &str) -> Result<(), LedgerError> {
        let client = self.checkout().await?;
        match tokio::time::timeout(MAINTENANCE_MAX, client.batch_execute(sql)).await {
            Ok(done) => done.map_err(LedgerError::statement),
            Err(_) => Err(LedgerError::Timeout(MAINTENANCE_MAX)),
        }
    }
}
