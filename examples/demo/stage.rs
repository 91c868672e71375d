//! Who plays: the payments API and the workers, each a process of its own.

use std::fs;

use anyhow::{Context as _, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::Child;

use crate::place::{Place, Reply};
use crate::say;
use crate::watch::{Books, Logs, Said, until, within};

/// A worker's process.
pub(crate) struct Worker {
    /// As it is shown.
    pub(crate) number: usize,
    /// As the ledger and the broker know it.
    pub(crate) name: String,
    child: Child,
}

/// The processes; all are killed when this is dropped.
pub(crate) struct Stage<'a> {
    pub(crate) place: &'a Place,
    payments_url: String,
    /// The two that work now.
    pub(crate) workers: Vec<Worker>,
    workers_so_far: usize,
    _payments: Child,
}

impl<'a> Stage<'a> {
    /// Starts the payments API and two workers.
    pub(crate) async fn set(place: &'a Place) -> anyhow::Result<Self> {
        place.make().await?;
        let (payments, payments_url) = start_payments(place).await?;
        say(&format!("A payments API counts every payment on {payments_url}."))?;
        let workers = Vec::new();
        let mut stage =
            Self { place, payments_url, workers, workers_so_far: 0, _payments: payments };
        stage.add_worker()?;
        stage.add_worker()?;
        stage.all_consume().await?;
        say(&format!("Two workers take jobs from the queue demo-{}.jobs.", place.id))?;
        Ok(stage)
    }

    /// Starts one more worker.
    pub(crate) fn add_worker(&mut self) -> anyhow::Result<()> {
        self.workers_so_far += 1;
        let number = self.workers_so_far;
        let name = format!("demo-{}-worker-{number}", self.place.id);
        let child = self.place.worker(&name, &self.payments_url)?.spawn()?;
        self.workers.push(Worker { number, name, child });
        Ok(())
    }

    /// Waits for every worker's session with the broker, the first or one that replaces a lost one.
    pub(crate) async fn all_consume(&mut self) -> anyhow::Result<()> {
        let place = self.place;
        for worker in &mut self.workers {
            until("a worker consumes", async || {
                if let Some(status) = worker.child.try_wait()? {
                    bail!("worker {} ended: {status}", worker.number);
                }
                let logs = place.logs_of(worker)?;
                let consumes = logs.count(Said::Consuming) > logs.count(Said::SessionLost);
                Ok(consumes.then_some(()))
            })
            .await?;
        }
        Ok(())
    }

    /// Which of the workers got a call's only delivery so far.
    pub(crate) fn worker_of(&self, key: &str) -> anyhow::Result<usize> {
        for (index, worker) in self.workers.iter().enumerate() {
            if self.place.logs_of(worker)?.count_of(key, Said::Received) > 0 {
                return Ok(index);
            }
        }
        bail!("no worker of the demo got the call")
    }

    /// Ends a worker with SIGKILL and takes it off the stage.
    pub(crate) async fn kill(&mut self, worker: usize) -> anyhow::Result<Worker> {
        let mut worker = self.workers.remove(worker);
        worker.child.kill().await?;
        Ok(worker)
    }

    /// Ends the workers with SIGTERM, upon which they finish what they have.
    pub(crate) async fn stop_workers(&mut self) -> anyhow::Result<()> {
        for worker in &self.workers {
            let pid = worker.child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
            kill_process(pid.context("a worker has ended before it was told to")?, Signal::TERM)?;
        }
        for worker in &mut self.workers {
            let status = within("a worker stops", async { Ok(worker.child.wait().await?) }).await?;
            ensure!(status.success(), "worker {} ended: {status}", worker.number);
        }
        Ok(())
    }

    /// Submits jobs and waits for their replies.
    pub(crate) async fn submit(&self, jobs: &[String]) -> anyhow::Result<Vec<Reply>> {
        self.place.submit(jobs).await
    }

    /// What the payments API has counted so far.
    pub(crate) async fn books(&self) -> anyhow::Result<Books> {
        Ok(serde_json::from_str(&self.ask("GET", "/counts").await?)?)
    }

    /// Has the payments API hold back its next answer, once the payment is made.
    pub(crate) async fn stall_next(&self) -> anyhow::Result<()> {
        self.ask("POST", "/control/stall").await.map(drop)
    }

    /// Waits until it holds one back, beyond those of `before`.
    pub(crate) async fn stalled(&self, before: &Books) -> anyhow::Result<()> {
        until("a POST is outstanding", async || {
            Ok((self.books().await?.stalls > before.stalls).then_some(()))
        })
        .await
    }

    /// Has the API open the next ticket, and a gateway answer in its place.
    pub(crate) async fn lose_next(&self) -> anyhow::Result<()> {
        self.ask("POST", "/control/lose").await.map(drop)
    }

    /// The API's own record of a ticket, by the key that it was opened with.
    pub(crate) async fn ticket_of(&self, key: &str) -> anyhow::Result<String> {
        self.ask("GET", &format!("/tickets/{key}")).await
    }

    /// Has it answer.
    pub(crate) async fn release(&self) -> anyhow::Result<()> {
        self.ask("POST", "/control/release").await.map(drop)
    }

    /// One request to the payments API. HTTP/1.0: the answer ends with the connection.
    async fn ask(&self, method: &str, path: &str) -> anyhow::Result<String> {
        within("the payments API answers", async {
            let address = self.payments_url.trim_start_matches("http://");
            let mut stream = TcpStream::connect(address).await?;
            stream.write_all(format!("{method} {path} HTTP/1.0\r\n\r\n").as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
            ensure!(head.contains(" 200 "), "the payments API answered {head}");
            Ok(body.to_owned())
        })
        .await
    }
}

impl Place {
    /// What one worker has logged so far.
    pub(crate) fn logs_of(&self, worker: &Worker) -> anyhow::Result<Logs> {
        let mut logs = Logs::default();
        logs.add(&fs::read_to_string(self.log_file(&worker.name))?);
        Ok(logs)
    }
}

/// Starts the payments API; its process and its address.
async fn start_payments(place: &Place) -> anyhow::Result<(Child, String)> {
    let mut child = place.payments().spawn()?;
    let stdout = child.stdout.take().context("a child without its standard output")?;
    let mut address = String::new();
    within("the payments API starts", async {
        Ok(BufReader::new(stdout).read_line(&mut address).await?)
    })
    .await?;
    ensure!(address.starts_with("http://"), "the payments API did not start");
    Ok((child, address.trim().to_owned()))
}
