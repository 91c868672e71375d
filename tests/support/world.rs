//! A test's own part of the servers: a schema, a queue prefix, a folder.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio_postgres::NoTls;
use url::Url;
use uuid::Uuid;

use super::{Producer, Tool, WorkerBuilder};

/// What one test owns; removed when it is dropped, so make it before anything that uses it.
pub(crate) struct World {
    /// With the schema as its search path.
    pub(crate) database_url: String,
    pub(crate) amqp_url: String,
    /// What the names of this test's queues begin with.
    pub(crate) prefix: String,
    schema: String,
    folder: TempDir,
    database: tokio_postgres::Client,
    _connection: JoinSet<()>,
}

/// A row of the ledger.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) state: String,
    pub(crate) attempt: i32,
    pub(crate) claim: Option<Uuid>,
    pub(crate) lapses: i32,
    /// Whether an attempt before this one may have acted.
    pub(crate) maybe: bool,
    pub(crate) too_many: bool,
    pub(crate) worker: Option<String>,
    pub(crate) args: Option<String>,
    pub(crate) outcome: Option<Value>,
}

/// What a command printed, and its exit code.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) log: String,
}

impl Ran {
    pub(crate) fn lines(&self) -> Vec<&str> {
        self.out.lines().collect()
    }
}

impl World {
    /// A test's own part of the servers that all tests share.
    pub(crate) async fn new() -> Self {
        Self::on(service("DATABASE_URL"), service("AMQP_URL")).await
    }

    /// A test's own part of these servers.
    pub(crate) async fn on(database_url: String, amqp_url: String) -> Self {
        let id = Uuid::new_v4().simple().to_string();
        let (schema, prefix) = (format!("t_{id}"), format!("t-{id}"));

        let (admin, connections) = connect(&database_url).await;
        admin
            .batch_execute(&format!("CREATE SCHEMA {schema}; SET search_path TO {schema}"))
            .await
            .expect("a schema can be made");

        let mut url = Url::parse(&database_url).expect("DATABASE_URL is a URL");
        url.query_pairs_mut();
        let query = match url.query().filter(|query| !query.is_empty()) {
            Some(query) => format!("{query}&options=-c%20search_path%3D{schema}"),
            None => format!("options=-c%20search_path%3D{schema}"),
        };
        url.set_query(Some(&query));
        Self {
            database_url: url.into(),
            amqp_url,
            prefix,
            schema,
            folder: tempfile::tempdir().expect("a temporary folder"),
            database: admin,
            _connection: connections,
        }
    }

    /// Connects to Postgres anew, after a restart.
    pub(crate) async fn reconnect(&mut self) {
        (self.database, self._connection) = connect(&self.database_url).await;
    }

    /// A folder of this test's own.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A worker with these tools, not started yet.
    pub(crate) fn worker(&self, tools: &[Tool]) -> WorkerBuilder {
        WorkerBuilder::new(self, tools)
    }

    /// A producer with a reply queue of its own.
    pub(crate) async fn producer(&self) -> Producer {
        Producer::connect(&self.amqp_url, &self.prefix).await
    }

    /// Writes a registry to a file of its own.
    pub(crate) fn registry(&self, tools: &[Tool]) -> std::path::PathBuf {
        let path = self.folder().join(format!("tools-{}.toml", Uuid::new_v4().simple()));
        let text: String = tools.iter().map(Tool::text).collect();
        std::fs::write(&path, text).expect("the folder can be written");
        path
    }

    /// A connection to Postgres that sees this test's schema.
    pub(crate) fn database(&self) -> &tokio_postgres::Client {
        &self.database
    }

    /// Runs a statement without parameters.
    pub(crate) async fn sql(&self, statement: &str) {
        self.database.batch_execute(statement).await.expect("the statement is good");
    }

    /// How many rows a query without parameters counts.
    pub(crate) async fn count(&self, query: &str) -> i64 {
        self.database.query_one(query, &[]).await.expect("the query is good").get(0)
    }

    /// How many calls the ledger holds.
    pub(crate) async fn rows(&self) -> i64 {
        self.count("SELECT count(*) FROM callonce_calls").await
    }

    /// The ledger's row of a key.
    pub(crate) async fn row(&self, key: &str) -> Option<Row> {
        let row = self
            .database
            .query_opt(
                "SELECT state, attempt, claim, lapses, maybe_since IS NOT NULL, too_many, worker, args, outcome
                 FROM callonce_calls WHERE encode(key, 'hex') = $1",
                &[&key],
            )
            .await
            .expect("the ledger has its tables")?;
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        Some(Row {
            state: row.get(0),
            attempt: row.get(1),
            claim: row.get(2),
            lapses: row.get(3),
            maybe: row.get(4),
            too_many: row.get(5),
            worker: row.get(6),
            args: row.get::<_, Option<Vec<u8>>>(7).map(text),
            outcome: row
                .get::<_, Option<Vec<u8>>>(8)
                .map(|bytes| serde_json::from_slice(&bytes).expect("an outcome is JSON")),
        })
    }

    /// The state of a key's row; `none` without one.
    pub(crate) async fn state(&self, key: &str) -> String {
        self.row(key).await.map_or_else(|| "none".to_owned(), |row| row.state)
    }

    /// The events of a key's history, in order.
    pub(crate) async fn history(&self, key: &str) -> Vec<String> {
        let rows = self
            .database
            .query(
                "SELECT event FROM callonce_history WHERE encode(key, 'hex') = $1 ORDER BY id",
                &[&key],
            )
            .await
            .expect("the ledger has its tables");
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// The built binary with this test's servers, queues and nothing of the caller's settings.
    pub(crate) fn command(&self, args: &[impl AsRef<OsStr>]) -> Command {
        // Where tests run elsewhere than they were built, nextest says where the binary is.
        let binary = std::env::var_os("NEXTEST_BIN_EXE_callonce")
            .unwrap_or_else(|| env!("CARGO_BIN_EXE_callonce").into());
        let mut command = Command::new(binary);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("CALLONCE_") {
                command.env_remove(name);
            }
        }
        command
            .args(args)
            .env("DATABASE_URL", &self.database_url)
            .env("AMQP_URL", &self.amqp_url)
            .env("CALLONCE_PREFIX", &self.prefix)
            .current_dir(self.folder())
            .stdin(Stdio::null());
        command
    }

    /// Runs a command of the binary to its end.
    pub(crate) async fn run(&self, args: &[impl AsRef<OsStr>], input: &str) -> Ran {
        run(self.command(args), input).await
    }
}

/// Runs a command to its end, with `input` as its standard input.
pub(crate) async fn run(mut command: Command, input: &str) -> Ran {
    let input = input.to_owned();
    let ran = tokio::task::spawn_blocking(move || {
        use std::io::Write as _;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary was built");
        let mut stdin = child.stdin.take().expect("it is piped");
        let writer = std::thread::spawn(move || {
            // A command that does not read its input ends before it is written.
            stdin.write_all(input.as_bytes()).ok();
        });
        let output = child.wait_with_output().expect("the command ends");
        writer.join().expect("writing does not panic");
        output
    });
    let output =
        tokio::time::timeout(super::DEADLINE, ran).await.expect("in time").expect("no panic");
    Ran {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).expect("UTF-8"),
        log: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A job of a conversation of its own.
pub(crate) fn job(name: &str, args: Value) -> Value {
    json!({
        "conversation_id": format!("conv-{}", Uuid::new_v4().simple()),
        "turn_index": 4,
        "ordinal": 0,
        "call_id": format!("toolu_{}", Uuid::new_v4().simple()),
        "name": name,
        "args": args,
    })
}

/// The key of a job, as the library derives it.
pub(crate) fn key_of(job: &Value) -> String {
    key_of_text(&job.to_string())
}

/// The key of a job whose text matters.
pub(crate) fn key_of_text(job: &str) -> String {
    let limits = callonce::call::job::Limits {
        message_bytes_max: 1 << 20,
        conversation_id_bytes_max: 1024,
        id_bytes_max: 256,
    };
    let body = bytes::Bytes::copy_from_slice(job.as_bytes());
    callonce::call::job::Job::decode(&body, None, None, &limits)
        .expect("the job can be decoded")
        .key()
        .to_string()
}

async fn connect(database_url: &str) -> (tokio_postgres::Client, JoinSet<()>) {
    let (client, connection) =
        tokio_postgres::connect(database_url, NoTls).await.expect("Postgres answers");
    let mut connections = JoinSet::new();
    connections.spawn(async move {
        connection.await.ok();
    });
    (client, connections)
}

/// How to reach a server that all tests share.
pub(crate) fn service(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!(
            "{variable} is not set: run make test, or: eval \"$(scripts/services env)\" after make services"
        )
    })
}

impl Drop for World {
    /// On a thread of its own, so that it works in whatever way the test ended.
    fn drop(&mut self) {
        let (url, amqp, schema, prefix) = (
            self.database_url.clone(),
            self.amqp_url.clone(),
            self.schema.clone(),
            self.prefix.clone(),
        );
        let cleaned = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let queues = super::producer::delete_queues(&amqp, &prefix);
                if tokio::time::timeout(super::DEADLINE, queues).await.is_err() {
                    eprintln!("the queues of {prefix} were not deleted in time");
                }
                let dropped = async {
                    let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
                    let mut connections = JoinSet::new();
                    connections.spawn(async move {
                        connection.await.ok();
                    });
                    client.batch_execute(&format!("DROP SCHEMA {schema} CASCADE")).await
                };
                match tokio::time::timeout(super::DEADLINE, dropped).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => eprintln!("{schema} was not dropped: {error}"),
                    Err(_) => eprintln!("{schema} was not dropped in time"),
                }
            });
            std::io::Result::Ok(())
        });
        match cleaned.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => eprintln!("nothing was cleaned up: {error}"),
            Err(_) => eprintln!("cleaning up panicked"),
        }
    }
}
