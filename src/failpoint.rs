//! Named points at which a test can stop a worker and kill it.
//!
//! They exist in builds with the feature `failpoints` alone. Such a build stops at the point named
//! in `CALLONCE_FAILPOINT`, says `failpoint NAME` on a line of its standard error, and stays there:
//! the whole process, as a machine that lost its power would.

/// Stops the process here for good if a test asked for this point.
#[cfg(feature = "failpoints")]
pub fn reach(name: &str) {
    use std::io::Write as _;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    static WANTED: OnceLock<Option<String>> = OnceLock::new();
    static PASSES: OnceLock<AtomicU32> = OnceLock::new();

    let wanted = WANTED.get_or_init(|| std::env::var("CALLONCE_FAILPOINT").ok());
    if wanted.as_deref() != Some(name) {
        return;
    }
    // `CALLONCE_FAILPOINT_SKIP` passes the point that many times first.
    let passes = PASSES.get_or_init(|| {
        let skip = std::env::var("CALLONCE_FAILPOINT_SKIP").ok().and_then(|skip| skip.parse().ok());
        AtomicU32::new(skip.unwrap_or(0))
    });
    if passes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
        return;
    }
    let mut stderr = std::io::stderr().lock();
    // The lock is kept for good: no other task can log past this point.
    if writeln!(stderr, "failpoint {name}").is_err() {
        std::process::abort();
    }
    loop {
        std::thread::park();
    }
}

/// Does nothing in a build without the feature.
#[cfg(not(feature = "failpoints"))]
pub fn reach(_name: &str) {}
