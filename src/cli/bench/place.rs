//! Where a benchmark measures: a schema, queues and a folder of its own, and nothing else. All of it
//! goes at the end.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use secrecy::{ExposeSecret as _, SecretString};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use url::Url;
use uuid::Uuid;

use super::BenchError;
use crate::broker::{BenchQueues, BrokerError, BrokerSettings, Topology};
use crate::config::Config;
use crate::ledger::Ledger;

/// How long a server may take to end the sessions of a process that has ended.
const SESSIONS_END_MAX: Duration = Duration::from_secs(30);
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// A benchmark's own part of the servers.
pub(super) struct Place {
    pub(super) config: Config,
    pub(super) prefix: String,
    pub(super) topology: Topology,
    pub(super) broker: BrokerSettings,
    pub(super) queues: BenchQueues,
    /// Sees the benchmark's schema; its sessions go by another name than those that are measured.
    pub(super) ledger: Ledger,
    /// The same for what is measured.
    pub(super) measured_url: SecretString,
    pub(super) folder: PathBuf,
    schema: String,
    admin: Ledger,
    schema_is_made: bool,
    queues_are_made: bool,
}

impl Place {
    /// Connects to both servers and names everything; makes nothing yet.
    pub(super) async fn find(
        config: Config,
        database_url: &SecretString,
        amqp_url: &SecretString,
        prefix: &str,
    ) -> Result<Self, BenchError> {
        // A process id alone is the same each time in a container.
        let id = format!("{}-{:08x}", std::process::id(), Uuid::new_v4().as_fields().0);
        let (schema, prefix) =
            (format!("callonce_bench_{}", id.replace('-', "_")), format!("{prefix}-bench-{id}"));
        let topology = Topology::new(&prefix, config.retry_delays.0.clone())?;
        let broker = crate::worker::broker_settings(&config, amqp_url);
        let admin = crate::worker::ledger(&config, database_url, 1)?;
        admin.server().await?;
        let ledger = crate::worker::ledger(&config, &within(database_url, &schema, "bench")?, 4)?;
        Ok(Self {
            queues: BenchQueues::connect(&broker, &topology).await?,
            measured_url: within(database_url, &schema, "measured")?,
            folder: std::env::temp_dir().join(format!("callonce-bench-{id}")),
            schema_is_made: false,
            queues_are_made: false,
            config,
            prefix,
            topology,
            broker,
            ledger,
            schema,
            admin,
        })
    }

    /// Makes it all.
    pub(super) async fn make(&mut self) -> Result<(), BenchError> {
        eprintln!("measuring in the schema {} and the queues {}.*", self.schema, self.prefix);
        DirBuilder::new()
            .mode(0o700)
            .create(&self.folder)
            .map_err(BenchError::io("the temporary folder cannot be made"))?;
        self.admin.create_schema(&self.schema).await?;
        self.schema_is_made = true;
        self.ledger.migrate().await?;
        self.queues_are_made = true;
        self.queues.declare().await?;
        Ok(())
    }

    /// Removes all that was made, whatever became of it.
    pub(super) async fn remove(&self) -> Result<(), BenchError> {
        let queues = match self.queues_are_made {
            true => self.delete_queues().await,
            false => Ok(()),
        };
        let schema = match self.schema_is_made {
            true => self.admin.drop_schema(&self.schema).await,
            false => Ok(()),
        };
        let folder = match fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        };
        let left = |what: String| {
            move |source: BenchError| BenchError::LeftBehind { what, source: Box::new(source) }
        };
        queues.map_err(BenchError::from).map_err(left(format!("a queue {}.*", self.prefix)))?;
        schema.map_err(BenchError::from).map_err(left(format!("the schema {}", self.schema)))?;
        folder
            .map_err(BenchError::io("it cannot be removed"))
            .map_err(left(format!("the folder {}", self.folder.display())))
    }

    /// A handle to the ledger whose sessions are measured.
    pub(super) fn measured_ledger(&self) -> Result<Ledger, BenchError> {
        let ledger =
            crate::worker::ledger(&self.config, &self.measured_url, self.config.pool_size.0)?;
        let (tasks, never) = (TaskTracker::new(), CancellationToken::new());
        Ok(ledger.batched(self.config.batch_max.0, &tasks, &never))
    }

    /// Commits so far, once all sessions that are measured have ended and told theirs.
    pub(super) async fn commits(&self) -> Result<i64, BenchError> {
        let deadline = Instant::now() + SESSIONS_END_MAX;
        let application = application(&self.schema, "measured");
        while self.ledger.sessions(&application).await? > 0 && Instant::now() < deadline {
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
        Ok(self.ledger.commits().await?)
    }

    /// Writes a file into the folder.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<PathBuf, BenchError> {
        let path = self.folder.join(name);
        fs::write(&path, text).map_err(BenchError::io("a temporary file cannot be written"))?;
        Ok(path)
    }

    /// Where workers keep outcomes while Postgres is away.
    pub(super) fn journal(&self) -> PathBuf {
        Path::new(&self.folder).join("journal")
    }

    async fn delete_queues(&self) -> Result<(), BrokerError> {
        BenchQueues::delete(&self.broker, &self.topology).await
    }
}

/// What `pg_stat_activity` calls sessions.
fn application(schema: &str, what: &str) -> String {
    format!("{schema}_{what}")
}

/// The URL with a schema as its search path, and a name for its sessions.
fn within(url: &SecretString, schema: &str, what: &str) -> Result<SecretString, BenchError> {
    let mut url = Url::parse(url.expose_secret()).map_err(|_| BenchError::Url)?;
    let mut options = String::new();
    let mut rest = Vec::new();
    for (name, value) in url.query_pairs() {
        match name.as_ref() {
            "options" => options = format!("{value} "),
            "application_name" => {}
            _ => rest.push((name.into_owned(), value.into_owned())),
        }
    }
    url.query_pairs_mut()
        .clear()
        .extend_pairs(rest)
        .append_pair("options", &format!("{options}-c search_path={schema}"))
        .append_pair("application_name", &application(schema, what));
    Ok(String::from(url).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_keeps_what_it_says_and_gets_a_schema() {
        let url =
            "postgres://u:p@h/d?options=-c%20work_mem%3D1MB&application_name=x&sslmode=disable";
        let url = within(&url.to_owned().into(), "s", "measured").unwrap();
        let url = Url::parse(url.expose_secret()).unwrap();
        let pairs: Vec<_> = url.query_pairs().collect();
        let pairs: Vec<_> = pairs.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(
            pairs,
            [
                ("sslmode", "disable"),
                ("options", "-c work_mem=1MB -c search_path=s"),
                ("application_name", "s_measured"),
            ]
        );
        assert_eq!((url.username(), url.host_str(), url.path()), ("u", Some("h"), "/d"));
    }

    #[test]
    fn what_is_no_url_is_refused_without_its_password() {
        let error = within(&"sesame".to_owned().into(), "s", "bench").unwrap_err();
        assert!(!format!("{error:?}").contains("sesame"));
    }
}
