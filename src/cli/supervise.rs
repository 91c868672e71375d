//! `supervise`: runs one child process for the worker that has started it.

use super::CliError;

pub(super) async fn run() -> Result<(), CliError> {
    crate::tools::supervise().await.map_err(|source| {
        let what = "`supervise` is started by a worker, and by nobody else".to_owned();
        CliError::Io { what, source }
    })
}
