//! Servers of a test's own, to be killed, restarted and misconfigured.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use tempfile::TempDir;

use crate::support::{World, service, within};

/// Recovery included.
const RESTART: Duration = Duration::from_secs(60);

/// One server that belongs to one test; removed when it is dropped.
pub(crate) struct Server {
    name: &'static str,
    folder: TempDir,
    /// How clients reach it; the same after a restart.
    pub(crate) url: String,
}

fn command(name: &str, folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/services"));
    command
        .args(args)
        .env("SERVICES_DIR", folder)
        .env("SERVICES_ONLY", name)
        // Somebody else's servers are not to be killed.
        .env_remove("SERVICES");
    command
}

impl Server {
    /// A Postgres of this test's own, and a world on it.
    pub(crate) async fn postgres() -> (Self, World) {
        let server = Self::start("postgres", "DATABASE_URL").await;
        let world = World::on(server.url.clone(), service("AMQP_URL")).await;
        (server, world)
    }

    /// A RabbitMQ of this test's own, and a world on it.
    pub(crate) async fn rabbitmq() -> (Self, World) {
        let server = Self::start("rabbitmq", "AMQP_URL").await;
        let world = World::on(service("DATABASE_URL"), server.url.clone()).await;
        (server, world)
    }

    async fn start(name: &'static str, variable: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut server = Self { name, folder, url: String::new() };
        server.run(&["up"]).await;
        let variables = server.run(&["env"]).await;
        let start = format!("export {variable}='");
        server.url = variables
            .lines()
            .find_map(|line| line.strip_prefix(&start)?.strip_suffix('\''))
            .expect("the script names the server")
            .to_owned();
        server
    }

    /// Ends the server by a signal.
    pub(crate) async fn end(&self, signal: &str) {
        self.run(&["kill", self.name, signal]).await;
    }

    /// Starts it again, with its data and on its port.
    pub(crate) async fn start_again(&self) {
        // What was killed may take a moment to be gone, and is in the way until then.
        within(RESTART, "the server is back", async || {
            self.output(&["start", self.name]).await.status.success()
        })
        .await;
    }

    /// Runs `rabbitmqctl` on the server.
    pub(crate) async fn rabbitmqctl(&self, args: &[&str]) {
        self.run(&[&["rabbitmqctl"], args].concat()).await;
    }

    async fn output(&self, args: &[&str]) -> Output {
        let mut command = command(self.name, self.folder.path(), args);
        tokio::task::spawn_blocking(move || command.output())
            .await
            .expect("no panic")
            .expect("the script can be run")
    }

    async fn run(&self, args: &[&str]) -> String {
        let output = self.output(args).await;
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "scripts/services {args:?}: {log}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        match command(self.name, self.folder.path(), &["down"]).output() {
            Ok(output) if output.status.success() => {}
            Ok(output) => eprintln!("{} was not removed: {output:?}", self.name),
            Err(error) => eprintln!("{} was not removed: {error}", self.name),
        }
    }
}
