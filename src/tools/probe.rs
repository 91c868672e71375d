//! Asking a downstream for a call's state by its key, instead of sending the call again.

use std::time::Duration;

use crate::outcome::Outcome;

/// How long after a request was given up nothing of it can arrive any more, unless the registry says
/// otherwise.
pub const SETTLE_DELAY_DEFAULT: Duration = Duration::from_secs(2);

/// When a probe's answers count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbePolicy {
    /// How long after the last request was given up a `not_found` begins to count.
    pub settle_delay: Duration,
    /// How long one look for an answer may take, all its requests together.
    pub deadline: Duration,
    /// Whether a downstream that does not know the key has not acted; else that says nothing.
    pub not_found_is_not_run: bool,
}

/// What one probe request came to.
#[derive(Debug)]
#[must_use]
pub enum Probed {
    /// The call was answered for good, as an error or not.
    Answered(Outcome),
    /// The downstream is at work on it.
    Running,
    /// The downstream does not know the key.
    NotFound,
    /// Nothing can be read from it; why, free of arguments and secrets.
    Unclear(String),
}
