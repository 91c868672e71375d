//! `submit`: publishes jobs, confirmed, and waits for their replies if asked to.

use std::collections::HashSet;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use clap::Args;
use futures_util::stream::{self, StreamExt as _};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::key::{complain, limits};
use super::lines::{Line, Lines};
use super::{CliError, Global};
use crate::broker::{BrokerError, Message, Published, Publisher, Replies, Topology};
use crate::call::job::{Job, Limits};
use crate::config::Length;

/// Jobs that are published and not yet confirmed, at most.
const UNCONFIRMED_MAX: usize = 200;
/// Jobs that are published and not yet answered, at most, where replies are waited for.
const UNANSWERED_MAX: usize = 1_000;
/// Lines read ahead.
const LINES_AHEAD: usize = 64;

/// Publishes jobs, a JSON object a line, and prints the key of each once the broker has it.
#[derive(Debug, Args)]
#[command(
    after_help = "A bad line is not published, is named on standard error, and makes the exit code 1.\n\nExample:\n  \
                  echo '{\"conversation_id\":\"conv_42\",\"turn_index\":7,\"name\":\"send_payment\",\
                  \"args\":{\"invoice\":\"INV-7\",\"amount\":\"120.00\"}}' | callonce submit --wait"
)]
pub(super) struct SubmitCommand {
    /// The jobs; standard input if none is named
    file: Option<PathBuf>,
    /// Print each reply, a JSON line, instead of the key
    #[arg(long, env = "CALLONCE_WAIT")]
    wait: bool,
    /// How long to wait without any reply before giving up
    #[arg(long, env = "CALLONCE_WAIT_TIMEOUT", default_value = "5m", value_name = "LENGTH")]
    wait_timeout: Length,
}

/// What became of a line.
enum Sent {
    Key(String),
    Bad { number: usize, reason: String },
}

impl SubmitCommand {
    pub(super) async fn run(self, global: &Global) -> Result<(), CliError> {
        let config = global.start()?;
        let (limits, settings) =
            (limits(global)?, crate::worker::broker_settings(&config, global.amqp_url()?));
        let topology = Topology::new(&global.prefix, config.retry_delays.0.clone())?;
        let lines = read_ahead(Lines::open(self.file.as_deref(), limits.message_bytes_max)?);
        let replies = if self.wait { Some(Replies::open(&settings).await?) } else { None };
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let submission = Submission {
            publisher: Publisher::start(settings, "callonce submits", &tasks, &stop),
            queue: topology.jobs(),
            reply_to: replies.as_ref().map(|replies| replies.queue().to_owned()),
            limits,
        };
        let submitted = match replies {
            Some(replies) => submission.and_wait(lines, replies, self.wait_timeout).await,
            None => submission.only(lines, global.json).await,
        };
        stop.cancel();
        tasks.close();
        tasks.wait().await;
        if submitted? { Ok(()) } else { Err(CliError::Said) }
    }
}

/// Reads lines on a thread of their own: standard input cannot be read without blocking one.
fn read_ahead(mut lines: Lines) -> mpsc::Receiver<Result<Line, CliError>> {
    let (sender, receiver) = mpsc::channel(LINES_AHEAD);
    std::thread::spawn(move || {
        while let Some(line) = lines.next().transpose() {
            let failed = line.is_err();
            if sender.blocking_send(line).is_err() || failed {
                return;
            }
        }
    });
    receiver
}

struct Submission {
    publisher: Publisher,
    queue: String,
    reply_to: Option<String>,
    limits: Limits,
}

impl Submission {
    /// Publishes and prints keys, in the order of the lines; whether all were good.
    async fn only(
        &self,
        lines: mpsc::Receiver<Result<Line, CliError>>,
        json: bool,
    ) -> Result<bool, CliError> {
        let mut good = true;
        let lines = stream::unfold(lines, |mut lines| async {
            lines.recv().await.map(|line| (line, lines))
        });
        let mut sent =
            std::pin::pin!(lines.map(|line| self.send(line, None)).buffered(UNCONFIRMED_MAX));
        while let Some(sent) = sent.next().await {
            let shown = match sent? {
                Sent::Key(key) if json => serde_json::json!({ "key": key }).to_string(),
                Sent::Key(key) => key,
                Sent::Bad { number, reason } => {
                    complain(number, &reason);
                    good = false;
                    continue;
                }
            };
            writeln!(std::io::stdout().lock(), "{shown}").map_err(CliError::output)?;
        }
        Ok(good)
    }

    /// Publishes and prints replies as they come; whether all lines were good and all answered.
    async fn and_wait(
        &self,
        lines: mpsc::Receiver<Result<Line, CliError>>,
        mut replies: Replies,
        timeout: Length,
    ) -> Result<bool, CliError> {
        let places = Arc::new(Semaphore::new(UNANSWERED_MAX));
        let (mut unanswered, mut published, mut good) = (HashSet::new(), false, true);
        let lines = stream::unfold((lines, places.clone()), |(mut lines, places)| async {
            let line = lines.recv().await?;
            let place = places.clone().acquire_owned().await.ok()?;
            Some(((line, place), (lines, places)))
        });
        let sent = lines.map(|(line, place)| {
            let id = Uuid::new_v4();
            async move { (id, place, self.send(line, Some(id)).await) }
        });
        let mut sent = std::pin::pin!(sent.buffer_unordered(UNCONFIRMED_MAX));
        // A reply may come before the confirm of its job.
        let mut early = HashSet::new();
        while !published || !unanswered.is_empty() {
            tokio::select! {
                next = sent.next(), if !published => match next {
                    None => published = true,
                    Some((id, place, outcome)) => match outcome? {
                        Sent::Key(_) => {
                            // The place comes free with the reply.
                            place.forget();
                            if !early.remove(&id) {
                                unanswered.insert(id);
                            }
                        }
                        Sent::Bad { number, reason } => {
                            complain(number, &reason);
                            good = false;
                        }
                    },
                },
                reply = replies.next() => {
                    let (id, body) = reply?;
                    let Some(id) = id else { continue };
                    if !unanswered.remove(&id) && !early.insert(id) {
                        continue;
                    }
                    places.add_permits(1);
                    let mut out = std::io::stdout().lock();
                    out.write_all(&body).and_then(|()| out.write_all(b"\n")).map_err(CliError::output)?;
                }
                () = tokio::time::sleep(timeout.0) => {
                    eprintln!("no reply came for {:?}; {} jobs are unanswered: look them up by key", timeout.0, unanswered.len());
                    return Ok(false);
                }
            }
        }
        Ok(good)
    }

    async fn send(
        &self,
        line: Result<Line, CliError>,
        correlation: Option<Uuid>,
    ) -> Result<Sent, CliError> {
        let Line { number, text } = line?;
        let key = match Job::decode(&text, None, None, &self.limits) {
            Ok(job) => job.key().to_string(),
            Err(bad) => return Ok(Sent::Bad { number, reason: bad.error.to_string() }),
        };
        let published = self.publish(text, correlation).await?;
        let refused = |reason: &str| Ok(Sent::Bad { number, reason: reason.to_owned() });
        match published {
            Published::Confirmed => Ok(Sent::Key(key)),
            Published::Returned => {
                refused("there is no jobs queue of this prefix yet: start a worker first")
            }
            Published::Refused => refused("the jobs queue refused the job: it is full"),
        }
    }

    async fn publish(
        &self,
        body: Bytes,
        correlation: Option<Uuid>,
    ) -> Result<Published, BrokerError> {
        let correlation = correlation.map(|id| id.to_string());
        let message =
            Message::job(&self.queue, body, self.reply_to.as_deref(), correlation.as_deref())?;
        self.publisher.job(message).await
    }
}
