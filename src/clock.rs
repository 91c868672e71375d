//! A clock that counts suspension.
//!
//! A lease is the database's time. A worker that was suspended with its machine must not believe
//! that its lease stands because its own clock stood still, and `std::time::Instant` does stand
//! still there on Linux.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
/// Elsewhere the monotonic clock is the nearest that there is; on macOS it counts suspension.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

/// A moment of a clock that goes on while the machine is suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    /// Now.
    pub fn now() -> Self {
        let time = clock_gettime(CLOCK);
        // Neither clock goes below zero, so the conversions cannot fail.
        let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
        let nanos = u32::try_from(time.tv_nsec).unwrap_or_default();
        Self(Duration::new(seconds, nanos))
    }

    /// How long ago this moment was; zero if it is still to come.
    pub fn elapsed(self) -> Duration {
        Self::now().0.saturating_sub(self.0)
    }

    /// How long it is until this moment; zero if it has passed.
    pub fn remaining(self) -> Duration {
        self.0.saturating_sub(Self::now().0)
    }
}

impl std::ops::Add<Duration> for Moment {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_to_come_remains_and_one_that_passed_has_elapsed() {
        let now = Moment::now();
        let later = now + Duration::from_secs(60);
        assert!(later.remaining() > Duration::from_secs(59));
        assert_eq!(later.elapsed(), Duration::ZERO);
        assert_eq!(now.remaining(), Duration::ZERO);
    }
}
