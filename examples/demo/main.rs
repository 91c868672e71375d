//! The demo: two workers, a payments API that counts, and every kind of repeat for real.
//!
//! `make demo` runs it against private servers. It needs `DATABASE_URL`, `AMQP_URL` and, so that
//! the broker can be told to close a connection, `RABBITMQCTL`. It works in a schema and in queues
//! of its own, which it removes again.
//!
//! It ends with a table and exits 0 only if every call took effect exactly once.

mod place;
mod scenarios;
mod stage;
mod table;
mod watch;

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

use place::Place;
use stage::Stage;

/// The whole demo takes far less; nothing of it may hang for ever.
const LONGEST: Duration = Duration::from_secs(180);

const FAILED: u8 = 1;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(code) => code.into(),
        Err(error) => {
            eprintln!("demo: {error:#}");
            FAILED.into()
        }
    }
}

/// Plays the demo and removes what it has made, however it ends; the exit code.
async fn run() -> anyhow::Result<u8> {
    let mut signals = Signals::listen().context("signals cannot be listened for")?;
    let place = Place::choose()?;
    let played = tokio::select! {
        biased;
        code = signals.next() => Ok(code),
        played = tokio::time::timeout(LONGEST, Box::pin(play(&place))) => match played {
            Ok(Ok(true)) => Ok(0),
            Ok(Ok(false)) => Ok(FAILED),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(anyhow::anyhow!("not done within {LONGEST:?}")),
        },
    };
    // Whatever still ran was a child of `play`, and was killed with it.
    if matches!(played, Ok(FAILED) | Err(_)) {
        place.show_logs();
    }
    place.remove().await;
    played
}

/// Whether every call took effect exactly once.
async fn play(place: &Place) -> anyhow::Result<bool> {
    let begun = Instant::now();
    say("callonce: every kind of repeat, and what became of it")?;
    say("")?;
    let mut stage = Stage::set(place).await?;
    let acts = [
        scenarios::the_same_job_twice(&mut stage).await?,
        scenarios::a_turn_under_new_call_ids(&mut stage).await?,
        scenarios::a_worker_killed(&mut stage).await?,
        scenarios::a_connection_closed(&mut stage).await?,
        scenarios::two_ordinals(&mut stage).await?,
        scenarios::a_later_turn(&mut stage).await?,
        scenarios::a_call_that_ends_unknown(&mut stage).await?,
    ];
    stage.stop_workers().await?;

    let books = stage.books().await?;
    let rows = place.ledger().await?;
    let logs = place.logs()?;
    say("")?;
    say(&table::Table::new(&acts, &books, &logs).to_string())?;
    let wrong = table::wrong(&acts, &books, &rows);
    for wrong in &wrong {
        say(&format!("WRONG: {wrong}"))?;
    }
    if wrong.is_empty() {
        say(&format!("every call took effect exactly once ({} s)", begun.elapsed().as_secs()))?;
    }
    Ok(wrong.is_empty())
}

/// Prints a line at once.
fn say(line: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("nothing more can be printed")
}

/// The signals that end the demo, with the exit code that a shell gives each.
struct Signals {
    hang_up: Signal,
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            hang_up: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.hang_up.recv() => 129,
            _ = self.interrupt.recv() => 130,
            _ = self.terminate.recv() => 143,
        }
    }
}
