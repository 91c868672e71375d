//! A tool that does nothing, after a wait: for benchmarks, and to try an installation on.
//!
//! It is asked for by the registry like any other, so that a call of it goes every step that a real
//! one goes: its gate is asked before it begins, and it is given up at its time-out.

use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;

use super::gate::ShutOnDrop;
use super::{SendGate, failure, place};
use crate::call::key::KeyFormat;
use crate::call::reply::Phase;
use crate::duration;
use crate::outcome::{Branch, Outcome, Verdict};

/// A tool that waits, and answers null.
#[derive(Debug)]
pub(super) struct IdleTool {
    wait: Duration,
    timeout: Duration,
}

impl IdleTool {
    pub(super) fn new(wait: Duration, timeout: Duration) -> Self {
        Self { wait, timeout }
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Any two of them are the same place: there is nothing that could remember a key.
    pub(super) fn sent_as(&self, key_format: KeyFormat) -> [u8; 32] {
        place(["idle", key_format.name()])
    }

    /// Waits once; see [`super::Tool::call`].
    pub(super) async fn call(&self, gate: Arc<SendGate>) -> Verdict {
        let gate = ShutOnDrop(gate);
        if !gate.0.open() {
            let message = "the call was given up before it was begun";
            return Verdict::NotSent(failure(Branch::NotSent, Phase::Send, message));
        }
        // A timer wakes a millisecond late, which would be most of what no wait at all takes.
        if !self.wait.is_zero() {
            tokio::time::sleep(self.wait.min(self.timeout)).await;
        }
        if self.wait > self.timeout {
            let within = duration::show(self.timeout);
            let message = format!("the tool did not end within {within}");
            return Verdict::Ambiguous(failure(Branch::TimedOut, Phase::AwaitResponse, message));
        }
        let outcome = Outcome { content: Some(RawValue::NULL.to_owned()), ..Outcome::default() };
        Verdict::Completed { outcome, settles_resend: true, branch: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(wait: u64, timeout: u64) -> IdleTool {
        IdleTool::new(Duration::from_millis(wait), Duration::from_millis(timeout))
    }

    #[tokio::test]
    async fn it_answers_null_after_its_wait() {
        for wait in [0, 20] {
            let (begun, gate) = (std::time::Instant::now(), SendGate::new(|| true));
            let verdict = tool(wait, 1_000).call(gate.clone()).await;
            let Verdict::Completed { outcome, settles_resend: true, branch: None } = verdict else {
                panic!("{verdict:?}");
            };
            assert_eq!(outcome.content.map(|content| content.get().to_owned()).unwrap(), "null");
            assert!(!outcome.is_error && gate.opened());
            assert!(begun.elapsed() >= Duration::from_millis(wait));
        }
    }

    #[tokio::test]
    async fn it_is_given_up_at_its_time_out() {
        let verdict = tool(60_000, 20).call(SendGate::new(|| true)).await;
        let Verdict::Ambiguous(failure) = verdict else { panic!("{verdict:?}") };
        assert_eq!(
            (failure.branch, &*failure.message),
            (Branch::TimedOut, "the tool did not end within 20ms")
        );
    }

    #[tokio::test]
    async fn it_does_not_begin_when_its_lease_is_over() {
        let verdict = tool(0, 1_000).call(SendGate::new(|| false)).await;
        assert!(matches!(verdict, Verdict::NotSent(_)), "{verdict:?}");
    }
}
