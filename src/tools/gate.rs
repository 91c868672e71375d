//! Whether a request may begin: decided once, by whoever comes first.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const UNDECIDED: u8 = 0;
const OPEN: u8 = 1;
const SHUT: u8 = 2;

/// Decides, once, whether one request may begin; one gate for each request.
///
/// The request's body asks with [`SendGate::open`] when it is polled first, on whatever task that
/// is; the caller gives the request up with [`SendGate::shut`]. Exactly one of them wins, so that
/// a request that was given up is known either to be unsent or possibly to be on its way.
pub struct SendGate {
    state: AtomicU8,
    lease_stands: Box<dyn Fn() -> bool + Send + Sync>,
}

impl SendGate {
    /// A gate that opens only while `lease_stands` says so.
    pub fn new(lease_stands: impl Fn() -> bool + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { state: AtomicU8::new(UNDECIDED), lease_stands: Box::new(lease_stands) })
    }

    /// Asks for the request to begin; answers whether it may.
    ///
    /// The first call decides, for good: open while the lease stands and nobody has shut the gate.
    pub fn open(&self) -> bool {
        if self.state.load(Ordering::Acquire) == UNDECIDED {
            let wanted = if (self.lease_stands)() { OPEN } else { SHUT };
            self.decide(wanted);
        }
        self.opened()
    }

    /// Gives the request up; answers whether it is known not to have been sent.
    pub fn shut(&self) -> bool {
        self.decide(SHUT);
        !self.opened()
    }

    /// Whether the request may have begun.
    pub fn opened(&self) -> bool {
        self.state.load(Ordering::Acquire) == OPEN
    }

    /// Leaves an earlier decision as it is.
    fn decide(&self, state: u8) {
        // The loser of the race reads the winner's decision afterwards, so the error says nothing.
        self.state.compare_exchange(UNDECIDED, state, Ordering::AcqRel, Ordering::Acquire).ok();
    }
}

impl fmt::Debug for SendGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state.load(Ordering::Acquire) {
            OPEN => "open",
            SHUT => "shut",
            _ => "undecided",
        };
        f.debug_struct("SendGate").field("state", &state).finish_non_exhaustive()
    }
}

/// Shuts a gate when it is dropped: a request that nobody waits for must not begin on another task.
pub(super) struct ShutOnDrop(pub(super) Arc<SendGate>);

impl Drop for ShutOnDrop {
    fn drop(&mut self) {
        self.0.shut();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn a_gate_opens_once_and_stays_open() {
        let gate = SendGate::new(|| true);
        assert!(!gate.opened());
        assert!(gate.open());
        assert!(!gate.shut(), "a request that may have begun is not known to be unsent");
        assert!(gate.opened());
        assert!(gate.open());
    }

    #[test]
    fn a_gate_that_was_shut_never_opens() {
        let gate = SendGate::new(|| true);
        assert!(gate.shut());
        assert!(!gate.open());
        assert!(gate.shut());
        assert!(!gate.opened());
    }

    #[test]
    fn a_gate_stays_shut_when_the_lease_comes_back() {
        let lease = Arc::new(AtomicBool::new(false));
        let gate = SendGate::new({
            let lease = Arc::clone(&lease);
            move || lease.load(Ordering::SeqCst)
        });
        assert!(!gate.open());
        lease.store(true, Ordering::SeqCst);
        assert!(!gate.open());
        assert!(gate.shut());
    }

    #[test]
    fn opening_and_shutting_at_once_have_one_winner() {
        for _ in 0..2_000 {
            let gate = SendGate::new(|| true);
            let (opened, unsent) = std::thread::scope(|scope| {
                let opener = scope.spawn(|| gate.open());
                let unsent = gate.shut();
                (opener.join().unwrap(), unsent)
            });
            assert_ne!(opened, unsent);
            assert_eq!(opened, gate.opened());
        }
    }
}
