//! Waiting for a condition, with a deadline.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

/// How long a test waits for what must happen. Long, since a machine may be busy: a test that
/// passes never waits for it.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Waits until the condition holds.
#[track_caller]
pub(crate) fn eventually(
    what: &str,
    condition: impl AsyncFnMut() -> bool,
) -> impl Future<Output = ()> {
    within(DEADLINE, what, condition)
}

/// Waits until the condition holds, for `deadline` at most.
#[track_caller]
pub(crate) fn within(
    deadline: Duration,
    what: &str,
    mut condition: impl AsyncFnMut() -> bool,
) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let end = Instant::now() + deadline;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if timeout(left, condition()).await == Ok(true) {
                return;
            }
            // A condition that answers at once never meets the time-out around it.
            assert!(Instant::now() < end, "{caller}: not within {deadline:?}: {what}");
            sleep(BETWEEN_LOOKS).await;
        }
    }
}

/// Waits for an answer that must come.
#[track_caller]
pub(crate) fn timely<T>(what: &str, answer: impl Future<Output = T>) -> impl Future<Output = T> {
    let caller = std::panic::Location::caller();
    async move {
        match timeout(DEADLINE, answer).await {
            Ok(answer) => answer,
            Err(_) => panic!("{caller}: not within {DEADLINE:?}: {what}"),
        }
    }
}
