//! Where the demo works: the built programs, and a folder, a schema and queues of its own.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use callonce::broker::Topology;
use callonce::ledger::{PoolSettings, pool};
use lapin::options::QueueDeleteOptions;
use lapin::{Connection, ConnectionProperties};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use url::Url;
use uuid::Uuid;

use crate::watch::{Logs, within};

const TOOLS: &str = "config/tools.toml";
const SETTINGS: &str = "config/callonce.toml";

/// What is parked comes back after this: the demo has no time for longer delays.
const RETRY_DELAY: Duration = Duration::from_secs(1);

const DATABASE: PoolSettings = PoolSettings {
    size: 1,
    connect_timeout: Duration::from_secs(5),
    checkout_timeout: Duration::from_secs(5),
};

/// How much of each worker's log a failure shows.
const LOG_LINES_SHOWN: usize = 25;

/// Everything that is this run's own.
pub(crate) struct Place {
    /// Tells runs apart, and their workers on a broker that they share.
    pub(crate) id: String,
    callonce: PathBuf,
    payments: PathBuf,
    folder: PathBuf,
    schema: String,
    topology: Topology,
    amqp_url: String,
    database_url: String,
    /// The same database, in the schema.
    ledger_url: String,
    rabbitmqctl: String,
    /// Whether there is something to remove.
    made: Cell<bool>,
}

/// A reply, as far as the demo reads it.
#[derive(Debug, Deserialize)]
pub(crate) struct Reply {
    pub(crate) key: String,
    pub(crate) status: String,
    pub(crate) is_error: bool,
    pub(crate) attempt: u32,
    pub(crate) content: serde_json::Value,
}

/// A call in the ledger, as far as the demo reads it.
#[derive(Debug, Deserialize)]
pub(crate) struct Row {
    pub(crate) key: String,
    pub(crate) state: String,
}

impl Place {
    /// Finds what the demo needs and picks names; makes nothing yet.
    pub(crate) fn choose() -> anyhow::Result<Self> {
        ensure!(
            Path::new(TOOLS).exists(),
            "there is no {TOOLS} here: run the demo from the top of the repository, as `make demo` does"
        );
        let (callonce, payments) = programs()?;
        let [database_url, amqp_url] = ["DATABASE_URL", "AMQP_URL"].map(|name| {
            std::env::var(name)
                .map_err(|_| anyhow!("{name} is not set: `make demo` brings servers of its own"))
        });
        let (database_url, amqp_url) = (database_url?, amqp_url?);
        let Ok(rabbitmqctl) = std::env::var("RABBITMQCTL") else {
            bail!(
                "RABBITMQCTL is not set: so that the broker can be told to close a connection, set it \
                 to the command that runs rabbitmqctl on its node, as `docker exec broker rabbitmqctl`"
            );
        };
        let id = Uuid::new_v4().simple().to_string()[..8].to_owned();
        let schema = format!("demo_{id}");
        let mut ledger_url = Url::parse(&database_url).context("DATABASE_URL is no URL")?;
        ledger_url.query_pairs_mut().append_pair("options", &format!("-c search_path={schema}"));
        Ok(Self {
            callonce,
            payments,
            folder: std::env::temp_dir().join(format!("callonce-demo-{id}")),
            schema,
            topology: Topology::new(&format!("demo-{id}"), vec![RETRY_DELAY])?,
            amqp_url,
            database_url,
            ledger_url: ledger_url.into(),
            rabbitmqctl,
            made: Cell::new(false),
            id,
        })
    }

    /// Makes the folder and the schema, and migrates.
    pub(crate) async fn make(&self) -> anyhow::Result<()> {
        // A journal would hold arguments and results: nobody else may enter.
        let folder = fs::DirBuilder::new().mode(0o700).create(&self.folder);
        folder.context("no folder for the logs could be made")?;
        within("the broker is there", async {
            Ok(self.connect().await?.close(200, "seen".into()).await?)
        })
        .await?;
        self.sql(&format!("CREATE SCHEMA {}", self.schema)).await?;
        self.made.set(true);
        self.output(self.callonce().arg("migrate")).await?;
        Ok(())
    }

    /// Removes the queues, the schema and the folder, as far as they were made.
    pub(crate) async fn remove(&self) {
        let removed = [
            within("removing the queues", self.delete_queues()).await,
            self.sql(&format!("DROP SCHEMA IF EXISTS {} CASCADE", self.schema)).await,
        ];
        for error in removed.into_iter().filter_map(Result::err).filter(|_| self.made.get()) {
            eprintln!("demo: something of {} may be left: {error:#}", self.schema);
        }
        // It is not there if the demo ended early.
        fs::remove_dir_all(&self.folder).ok();
    }

    /// The end of each worker's log, on standard error.
    pub(crate) fn show_logs(&self) {
        for path in self.log_files().unwrap_or_default() {
            let log = fs::read_to_string(&path).unwrap_or_default();
            let lines: Vec<_> = log.lines().collect();
            eprintln!("\n{}:", path.display());
            for line in &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..] {
                eprintln!("{line}");
            }
        }
    }

    /// What all workers have logged so far, those that were killed included.
    pub(crate) fn logs(&self) -> anyhow::Result<Logs> {
        let mut logs = Logs::default();
        for path in self.log_files()? {
            logs.add(&fs::read_to_string(path)?);
        }
        Ok(logs)
    }

    fn log_files(&self) -> std::io::Result<Vec<PathBuf>> {
        let mut files = fs::read_dir(&self.folder)?
            .map(|entry| Ok(entry?.path()))
            .filter(|path| !matches!(path, Ok(path) if path.extension() != Some("log".as_ref())))
            .collect::<std::io::Result<Vec<_>>>()?;
        files.sort();
        Ok(files)
    }

    /// The command that runs a worker which logs to a file of that name.
    pub(crate) fn worker(&self, name: &str, payments_url: &str) -> anyhow::Result<Command> {
        let log = fs::File::create(self.log_file(name))?;
        let mut command = self.callonce();
        command
            .args(["worker", "--tools", TOOLS, "--log-format", "json"])
            .args(["--worker-name", name, "--retry-delays"])
            .arg(format!("{}s", RETRY_DELAY.as_secs()))
            .arg("--journal")
            .arg(self.folder.join("journal"))
            // Every delivery is logged as it arrives, so that it counts even if the worker dies.
            .env("CALLONCE_LOG", "callonce=debug,warn,lapin=error")
            .env("PAYMENTS_URL", payments_url)
            .env("PAYMENTS_TOKEN", Uuid::new_v4().to_string())
            .stdout(Stdio::null())
            .stderr(log);
        Ok(command)
    }

    /// Where a worker of that name logs.
    pub(crate) fn log_file(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.log"))
    }

    /// The command that runs the payments API on a free port.
    pub(crate) fn payments(&self) -> Command {
        let mut command = Command::new(&self.payments);
        command.arg("0").stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        command
    }

    /// Submits jobs and waits for their replies.
    pub(crate) async fn submit(&self, jobs: &[String]) -> anyhow::Result<Vec<Reply>> {
        let mut submit = self.callonce();
        submit.args(["submit", "--wait", "--wait-timeout", "30s"]);
        let mut child =
            submit.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mut stdin = child.stdin.take().context("a child without its standard input")?;
        within("callonce submit", async {
            stdin.write_all((jobs.join("\n") + "\n").as_bytes()).await?;
            drop(stdin);
            json_lines(&finished("callonce submit", child.wait_with_output().await?)?)
        })
        .await
    }

    /// Says what became of an unknown call, as a person does.
    pub(crate) async fn resolve(&self, key: &str, answer: &str) -> anyhow::Result<String> {
        let file = self.folder.join("answer.json");
        fs::write(&file, answer)?;
        let mut resolve = self.callonce();
        resolve.args(["ledger", "resolve", key, "--completed"]).arg(file);
        resolve.args(["--by", "demo", "--reason", "the ticket is in the API's records"]);
        self.output(&mut resolve).await
    }

    /// All calls of the ledger.
    pub(crate) async fn ledger(&self) -> anyhow::Result<Vec<Row>> {
        json_lines(&self.output(self.callonce().args(["ledger", "list", "--json"])).await?)
    }

    /// Runs rabbitmqctl on the broker's node. The variable may hold several words.
    pub(crate) async fn rabbitmqctl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{} \"$@\"", self.rabbitmqctl), "rabbitmqctl"]);
        self.output(command.args(arguments).kill_on_drop(true)).await
    }

    fn callonce(&self) -> Command {
        let mut command = Command::new(&self.callonce);
        command.args(["--prefix", &format!("demo-{}", self.id)]);
        if Path::new(SETTINGS).exists() {
            command.args(["--config", SETTINGS]);
        }
        command
            .env("DATABASE_URL", &self.ledger_url)
            .env("AMQP_URL", &self.amqp_url)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    async fn output(&self, command: &mut Command) -> anyhow::Result<String> {
        let name = command.as_std().get_program().to_string_lossy().into_owned();
        within(&name, async { finished(&name, command.output().await?) }).await
    }

    async fn sql(&self, statement: &str) -> anyhow::Result<()> {
        let database = pool(&self.database_url, DATABASE)?;
        within(statement, async {
            let client = database.get().await.context("the database cannot be used")?;
            Ok(client.batch_execute(statement).await?)
        })
        .await
    }

    async fn connect(&self) -> anyhow::Result<Connection> {
        Ok(Connection::connect(&self.amqp_url, ConnectionProperties::default()).await?)
    }

    async fn delete_queues(&self) -> anyhow::Result<()> {
        let connection = self.connect().await?;
        let channel = connection.create_channel().await?;
        for queue in [self.topology.jobs(), self.topology.delay(1), self.topology.dead()] {
            channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await?;
        }
        Ok(connection.close(200, "done".into()).await?)
    }
}

/// The programs that were built with this one: `callonce` a folder up, `payments` beside it.
fn programs() -> anyhow::Result<(PathBuf, PathBuf)> {
    let demo = std::env::current_exe()?;
    let examples = demo.parent().context("a program without a folder")?;
    let programs = (examples.with_file_name("callonce"), examples.join("payments"));
    for program in [&programs.0, &programs.1] {
        ensure!(
            program.exists(),
            "{} is not built: run `cargo build --bins --examples`, with --release if this is",
            program.display()
        );
    }
    Ok(programs)
}

fn finished(name: &str, output: std::process::Output) -> anyhow::Result<String> {
    if !output.status.success() {
        bail!("{name}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn json_lines<T: DeserializeOwned>(text: &str) -> anyhow::Result<Vec<T>> {
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}
