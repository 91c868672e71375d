//! Why the ledger did not answer, and what that says of the statement and its connection.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::PoolError;
use tokio_postgres::error::SqlState;

use super::UrlError;

/// Why the ledger did not answer.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The URL cannot be used.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// There is no connection.
    #[error("no connection to the ledger: {what}")]
    Connection {
        /// What was waited for.
        what: &'static str,
        /// Why.
        #[source]
        source: PoolError,
    },
    /// A statement was not answered in time; whether it was carried out is not known.
    #[error("the ledger did not answer within {0:?}")]
    Timeout(Duration),
    /// A statement failed; whether it was carried out is not known if the connection was lost.
    #[error("the ledger refused a statement: {what}")]
    Statement {
        /// The server's message. Its detail is left out: it can hold the values of a row.
        what: String,
        /// The server's code, if it answered.
        code: Option<SqlState>,
        /// Why, if it did not.
        #[source]
        source: Option<tokio_postgres::Error>,
    },
    /// The schema could not be brought up to date.
    #[error("the ledger's schema could not be brought up to date")]
    Migration(#[source] Box<refinery::Error>),
    /// The schema is not the one that this binary needs.
    #[error("the ledger's schema lacks {0}; run `callonce migrate`")]
    Schema(String),
    /// The database cannot hold every text.
    #[error("the database's encoding is {0}; the ledger needs UTF8")]
    Encoding(String),
    /// A row holds something that this version cannot read.
    #[error("a row of the ledger cannot be read: {0}")]
    Row(&'static str),
    /// The error of a statement that several callers shared.
    #[error(transparent)]
    Shared(Arc<LedgerError>),
    /// The task that asked for several callers ended; whether its statement was carried out is not
    /// known.
    #[error("the statement's task ended before it was answered")]
    Unanswered,
}

impl LedgerError {
    pub(super) fn statement(error: tokio_postgres::Error) -> Self {
        let Some(answer) = error.as_db_error() else {
            let what = "it was not answered".to_owned();
            return Self::Statement { what, code: None, source: Some(error) };
        };
        let code = answer.code().clone();
        Self::Statement {
            what: format!("{} ({})", answer.message(), code.code()),
            code: Some(code),
            source: None,
        }
    }

    /// Whether the statement may have reached the server.
    pub fn may_have_been_sent(&self) -> bool {
        match self {
            Self::Timeout(_) | Self::Statement { .. } | Self::Row(_) | Self::Unanswered => true,
            Self::Shared(error) => error.may_have_been_sent(),
            Self::Connection { .. }
            | Self::Url(_)
            | Self::Migration(_)
            | Self::Schema(_)
            | Self::Encoding(_) => false,
        }
    }

    /// Whether an error will be the same at the next try, as far as anybody can tell: the server
    /// answered and refused, and is not just starting or full.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::Connection { source: PoolError::Backend(error), .. } => refused(error.code()),
            Self::Statement { code, .. } => refused(code.as_ref()),
            Self::Connection { .. } | Self::Timeout(_) | Self::Unanswered => false,
            Self::Shared(error) => error.is_lasting(),
            Self::Url(_)
            | Self::Migration(_)
            | Self::Schema(_)
            | Self::Encoding(_)
            | Self::Row(_) => true,
        }
    }

    /// Whether a statement was not answered in time, or waited too long for a lock.
    pub(super) fn is_late(&self) -> bool {
        let locked = Some(&SqlState::LOCK_NOT_AVAILABLE);
        matches!(self, Self::Timeout(_))
            || matches!(self, Self::Statement { code, .. } if code.as_ref() == locked)
    }

    /// Whether one of many rows may be to blame that the server refused a statement: for its values, a
    /// constraint, a limit, or what another transaction does to it.
    pub(super) fn is_of_a_row(&self) -> bool {
        match self {
            Self::Statement { code, .. } => is_of_class(code.as_ref(), &["22", "23", "40", "54"]),
            Self::Shared(error) => error.is_of_a_row(),
            Self::Connection { .. }
            | Self::Timeout(_)
            | Self::Url(_)
            | Self::Migration(_)
            | Self::Schema(_)
            | Self::Encoding(_)
            | Self::Row(_)
            | Self::Unanswered => false,
        }
    }
}

/// Connection trouble, resources and an operator's intervention pass; any other answer stands.
fn refused(code: Option<&SqlState>) -> bool {
    code.is_some() && !is_of_class(code, &["08", "53", "57"])
}

/// Whether a code's first two characters are one of `classes` (PostgreSQL, appendix A).
fn is_of_class(code: Option<&SqlState>, classes: &[&str]) -> bool {
    code.is_some_and(|code| classes.iter().any(|class| code.code().starts_with(class)))
}

/// A server that became read-only, is going down or is starting up will say the same on this
/// connection for as long as it is kept.
pub(super) fn spoils_connection(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| {
        [
            SqlState::READ_ONLY_SQL_TRANSACTION,
            SqlState::ADMIN_SHUTDOWN,
            SqlState::CRASH_SHUTDOWN,
            SqlState::CANNOT_CONNECT_NOW,
            SqlState::INVALID_SQL_STATEMENT_NAME,
            SqlState::DUPLICATE_PSTATEMENT,
        ]
        .contains(code)
    })
}
