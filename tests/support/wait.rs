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
            match timeout(left, condition()).await {
                Ok(true) => return,
                Ok(false) => sleep(BETWEEN_LOOKS).await,
                Err(_) => panic!("{caller}: not within {deadline:?}: {what}"),
            }
        }
    }
}
