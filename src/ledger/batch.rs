//! One statement for all who wait: each caller asks for itself and gets its own answer.
//!
//! A batch is what queued while the statement before it was under way; nothing waits for a timer.
//! So a lone caller waits for nobody, and under load the batches fill by themselves. Of each kind one
//! batch is under way at a time: calls leave in the order in which they came, and deliveries that end
//! in order are acked as one.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::LedgerError;
use super::connections::Connections;
use crate::gather::gather;

/// A statement over many rows.
pub(super) trait Statement: Send + Sync + 'static {
    /// What one caller asks.
    type Item: Send + Sync + 'static;
    /// What it gets.
    type Answer: Send + 'static;

    /// Runs it once, for all or for none; the answers are in the order of the items.
    fn run(
        connections: &Connections,
        items: &[&Self::Item],
    ) -> impl Future<Output = Result<Vec<Self::Answer>, LedgerError>> + Send;
}

struct Asked<S: Statement> {
    item: S::Item,
    answer: oneshot::Sender<Result<S::Answer, LedgerError>>,
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
        let gathered = run_all(connections.clone(), receiver, max, tasks.clone());
        tasks.spawn(stop.clone().run_until_cancelled_owned(gathered));
        Self { connections, asked: Some(sender) }
    }

    /// Asks with the next statement.
    ///
    /// # Cancel safety
    ///
    /// Not safe: what was handed over is asked all the same.
    pub(super) async fn ask(&self, item: S::Item) -> Result<S::Answer, LedgerError> {
        let Some(asked) = &self.asked else {
            let answer = S::run(&self.connections, &[&item]).await?.pop();
            return answer.ok_or(LedgerError::Unanswered);
        };
        let (answer, answered) = oneshot::channel();
        asked.send(Asked { item, answer }).await.map_err(|_| LedgerError::Unanswered)?;
        answered.await.unwrap_or(Err(LedgerError::Unanswered))
    }
}

async fn run_all<S: Statement>(
    connections: Connections,
    mut asked: mpsc::Receiver<Asked<S>>,
    max: usize,
    tasks: TaskTracker,
) {
    let mut batch = Vec::new();
    while gather(&mut asked, &mut batch, max).await > 0 {
        let (connections, batch) = (connections.clone(), std::mem::take(&mut batch));
        // On a task of its own: a panic is the end of one batch alone.
        if tasks.spawn(async move { run(&connections, batch).await }).await.is_err() {
            tracing::error!("a statement's task panicked; whoever shared it tries again");
        }
    }
}

/// Runs a batch. One that the server refuses is split until the guilty row is alone.
async fn run<S: Statement>(connections: &Connections, batch: Vec<Asked<S>>) {
    let mut parts = vec![batch];
    while let Some(mut part) = parts.pop() {
        let items: Vec<&S::Item> = part.iter().map(|asked| &asked.item).collect();
        match S::run(connections, &items).await {
            Ok(answers) => {
                for (asked, answer) in part.into_iter().zip(answers) {
                    // Whoever no longer listens has given its delivery up.
                    asked.answer.send(Ok(answer)).ok();
                }
            }
            Err(error) if part.len() > 1 && error.is_of_a_row() => {
                parts.push(part.split_off(part.len() / 2));
                parts.push(part);
            }
            Err(error) => {
                let error = Arc::new(error);
                for asked in part {
                    asked.answer.send(Err(LedgerError::Shared(error.clone()))).ok();
                }
            }
        }
    }
}
