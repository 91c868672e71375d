//! One statement for all who wait: each caller asks for itself and gets its own answer.
//!
//! A batch is what queued while the statement before it was under way; nothing waits for a timer.
//! So a lone caller waits for nobody, and under load the batches fill by themselves. Of each kind one
//! batch is under way at a time: calls leave in the order in which they came, and deliveries that end
//! in order are acked as one. Whoever shared a statement that was not answered in time asks once more
//! by itself, so that one row that cannot be had holds up nobody else.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::LedgerError;
use super::connections::Connections;
use crate::gather::gather;

/// What one statement carries at most, of what callers hand over; a single caller's may be more.
const BYTES_MAX: usize = 8 << 20;

/// A statement over many rows.
pub(super) trait Statement: Send + Sync + 'static {
    /// What one caller asks.
    type Item: Send + Sync + 'static;
    /// What it gets.
    type Answer: Send + 'static;

    /// About how many bytes an item adds to the statement.
    fn bytes(item: &Self::Item) -> usize;

    /// Runs it once, for all or for none; the answers are in the order of the items.
    fn run(
        connections: &Connections,
        items: &[&Self::Item],
    ) -> impl Future<Output = Result<Vec<Self::Answer>, LedgerError>> + Send;
}

struct Asked<S: Statement> {
    item: S::Item,
    answer: oneshot::Sender<Answered<S>>,
}

/// What came of a shared statement, for one caller.
enum Answered<S: Statement> {
    Is(Result<S::Answer, LedgerError>),
    /// It was not answered in time; the item is handed back to be asked alone.
    Late(S::Item),
}

/// Where the callers of one kind of statement meet.
pub(super) struct Batches<S: Statement> {
    connections: Connections,
    /// None where each caller's statement is its own.
    asked: Option<mpsc::Sender<Asked<S>>>,
}

impl<S: Statement> Clone for Batches<S> {
    fn clone(&self) -> Self {
        Self { connections: self.connections.clone(), asked: self.asked.clone() }
    }
}

impl<S: Statement> Batches<S> {
    /// Each caller's statement is its own.
    pub(super) fn of_one(connections: Connections) -> Self {
        Self { connections, asked: None }
    }

    /// At most `max` callers share a statement. What gathers them ends with the last handle, or with
    /// `stop`; a statement that is under way then goes on to its end.
    pub(super) fn of(
        connections: Connections,
        max: usize,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        let (sender, receiver) = mpsc::channel(max);
        let gathered = run_all(connections.clone(), receiver, max, tasks.clone(), stop.clone());
        tasks.spawn(stop.clone().run_until_cancelled_owned(gathered));
        Self { connections, asked: Some(sender) }
    }

    /// Asks with the next statement.
    ///
    /// # Cancel safety
    ///
    /// Not safe: what was handed over is asked all the same.
    pub(super) async fn ask(&self, item: S::Item) -> Result<S::Answer, LedgerError> {
        let Some(asked) = &self.asked else { return self.alone(item).await };
        let (answer, answered) = oneshot::channel();
        asked.send(Asked { item, answer }).await.map_err(|_| LedgerError::Unanswered)?;
        match answered.await {
            Ok(Answered::Is(answer)) => answer,
            // Boxed, since it is rare, and many futures would have room for it.
            Ok(Answered::Late(item)) => Box::pin(self.alone(item)).await,
            Err(_) => Err(LedgerError::Unanswered),
        }
    }

    async fn alone(&self, item: S::Item) -> Result<S::Answer, LedgerError> {
        S::run(&self.connections, &[&item]).await?.pop().ok_or(LedgerError::Unanswered)
    }
}

async fn run_all<S: Statement>(
    connections: Connections,
    mut asked: mpsc::Receiver<Asked<S>>,
    max: usize,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    let mut batch = Vec::new();
    while gather(&mut asked, &mut batch, max).await > 0 {
        let (connections, stop) = (connections.clone(), stop.clone());
        let batch = std::mem::take(&mut batch);
        // On a task of its own: a panic is the end of one batch alone.
        if tasks.spawn(async move { run(&connections, batch, &stop).await }).await.is_err() {
            tracing::error!("a statement's task panicked; whoever shared it tries again");
        }
    }
}

/// Runs a batch, in parts where it is too much for one statement. A part that the server refuses is
/// split until the guilty row is alone.
async fn run<S: Statement>(
    connections: &Connections,
    batch: Vec<Asked<S>>,
    stop: &CancellationToken,
) {
    let mut parts = vec![batch];
    while let Some(part) = parts.pop()
        && !stop.is_cancelled()
    {
        let shared = part.len() > 1;
        if shared && part.iter().map(|asked| S::bytes(&asked.item)).sum::<usize>() > BYTES_MAX {
            split(part, &mut parts);
            continue;
        }
        let items: Vec<&S::Item> = part.iter().map(|asked| &asked.item).collect();
        // Whoever no longer listens has given its delivery up.
        match S::run(connections, &items).await {
            Ok(answers) => {
                for (asked, answer) in part.into_iter().zip(answers) {
                    asked.answer.send(Answered::Is(Ok(answer))).ok();
                }
            }
            Err(error) if shared && error.is_late() => {
                for Asked { item, answer } in part {
                    answer.send(Answered::Late(item)).ok();
                }
            }
            Err(error) if shared && error.is_of_a_row() => split(part, &mut parts),
            Err(error) => {
                let error = Arc::new(error);
                for asked in part {
                    let error = LedgerError::Shared(error.clone());
                    asked.answer.send(Answered::Is(Err(error))).ok();
                }
            }
        }
    }
}

/// Puts the halves of a part on the stack, the first on top.
fn split<T>(mut part: Vec<T>, parts: &mut Vec<Vec<T>>) {
    let second = part.split_off(part.len() / 2);
    parts.extend([second, part]);
}
