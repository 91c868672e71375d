//! Every backoff policy; the only place that imports `backoff`.
//!
//! That crate has an unmaintained notice (RUSTSEC-2025-0012). What is used of it is the schedule
//! alone, behind [`Backoff`], so that another can take its place here.

use std::time::Duration;

use backoff::backoff::Backoff as _;
use backoff::{ExponentialBackoff, ExponentialBackoffBuilder};

/// A schedule of growing waits with jitter.
#[derive(Debug)]
pub struct Backoff(ExponentialBackoff);

impl Backoff {
    /// A schedule that ends when `max_elapsed` has passed, if it is given.
    pub fn new(initial: Duration, max_interval: Duration, max_elapsed: Option<Duration>) -> Self {
        Self(
            ExponentialBackoffBuilder::new()
                .with_initial_interval(initial)
                .with_max_interval(max_interval)
                .with_max_elapsed_time(max_elapsed)
                .build(),
        )
    }

    /// For a broker that is away: from half a second up to 15 seconds, for ever.
    pub fn broker() -> Self {
        Self::new(Duration::from_millis(500), Duration::from_secs(15), None)
    }

    /// For a database that is away: from 50 milliseconds up to 5 seconds, for ever.
    pub fn database() -> Self {
        Self::new(Duration::from_millis(50), Duration::from_secs(5), None)
    }

    /// For a look at what another worker is doing: from 20 milliseconds up to half a second.
    pub fn watching() -> Self {
        Self::new(Duration::from_millis(20), Duration::from_millis(500), None)
    }

    /// The next wait, or `None` when the schedule has ended.
    pub fn next_wait(&mut self) -> Option<Duration> {
        self.0.next_backoff()
    }

    /// The next wait of a schedule that never ends.
    pub fn wait(&mut self) -> Duration {
        self.next_wait().unwrap_or(self.0.max_interval)
    }

    /// What is left of the schedule's time; `None` where it never ends.
    pub fn left(&self) -> Option<Duration> {
        self.0.max_elapsed_time.map(|max| max.saturating_sub(self.0.get_elapsed_time()))
    }

    /// Begins again with the first wait.
    pub fn reset(&mut self) {
        self.0.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_longest_and_the_schedule_ends() {
        let mut endless = Backoff::new(Duration::from_millis(100), Duration::from_secs(1), None);
        let waits: Vec<_> = (0..20).map(|_| endless.wait()).collect();
        // The jitter of the policy is half of each interval, up and down.
        assert!(waits[0] <= Duration::from_millis(150));
        assert!(waits.iter().all(|wait| *wait <= Duration::from_millis(1_500)));
        assert!(waits[19] >= Duration::from_millis(500));

        let mut ended =
            Backoff::new(Duration::from_secs(1), Duration::from_secs(1), Some(Duration::ZERO));
        assert_eq!(ended.next_wait(), None);
        assert_eq!(ended.left(), Some(Duration::ZERO));
    }
}
