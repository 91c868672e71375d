//! Repeats of a call that is under way in this worker wait for it here: they ask the ledger nothing
//! and are answered with what it came to.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::oneshot;

use super::recorded::Recorded;
use super::{Call, Context, End};
use crate::call::key::{Digest, IdempotencyKey};
use crate::call::reply::Status;

/// The calls that are under way in this worker.
#[derive(Debug, Default)]
pub struct UnderWay(Mutex<HashMap<IdempotencyKey, First>>);

/// The delivery that came first.
#[derive(Debug)]
struct First {
    digest: Digest,
    /// Each has one of the worker's places for waiting, which bound them.
    repeats: Vec<oneshot::Sender<Arc<Recorded>>>,
}

/// What became of a delivery that may be a repeat.
pub(super) enum Joined<'a> {
    /// It is the first.
    First(Turn<'a>),
    /// The first was answered, and so is this.
    Answered(Recorded),
    /// The first goes on for longer than a repeat waits.
    Busy,
    /// The worker stops.
    Draining,
}

/// A call's place among those under way; given up on drop.
pub(super) struct Turn<'a> {
    under_way: &'a UnderWay,
    /// None for a call that any number of deliveries may make at a time.
    key: Option<IdempotencyKey>,
}

enum Met {
    First,
    Repeat(oneshot::Receiver<Arc<Recorded>>),
    /// Another call under the same key, which the ledger refuses.
    Collision,
}

impl UnderWay {
    fn calls(&self) -> MutexGuard<'_, HashMap<IdempotencyKey, First>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn meet(&self, key: IdempotencyKey, digest: &Digest) -> Met {
        match self.calls().entry(key) {
            Entry::Vacant(place) => {
                place.insert(First { digest: *digest, repeats: Vec::new() });
                Met::First
            }
            Entry::Occupied(first) if first.get().digest != *digest => Met::Collision,
            Entry::Occupied(mut first) => {
                let (sender, answer) = oneshot::channel();
                let repeats = &mut first.get_mut().repeats;
                // Whoever was parked meanwhile and came back would be here twice.
                repeats.retain(|repeat| !repeat.is_closed());
                repeats.push(sender);
                Met::Repeat(answer)
            }
        }
    }
}

/// Takes a place among the calls under way, or waits for the delivery that has it.
pub(super) async fn join<'a>(context: &'a Context, call: &Call) -> Joined<'a> {
    let (under_way, key) = (&context.under_way, call.job.key());
    if !call.tool.uses_ledger() {
        return Joined::First(Turn { under_way, key: None });
    }
    let mut waiting = None;
    loop {
        let answer = match under_way.meet(key, &call.job.digest) {
            Met::First => return Joined::First(Turn { under_way, key: Some(key) }),
            Met::Collision => return Joined::First(Turn { under_way, key: None }),
            Met::Repeat(answer) => answer,
        };
        if waiting.is_none() {
            let Ok(place) = context.waiting.try_acquire() else { return Joined::Busy };
            tracing::info!(
                "another attempt of this call is outstanding in this worker; waiting for it"
            );
            waiting = Some((Instant::now(), place));
        }
        let waited = waiting.as_ref().map_or_else(Default::default, |(since, _)| since.elapsed());
        let left = context.config.wait_for_claim.0.saturating_sub(waited);
        tokio::select! {
            biased;
            () = context.draining.cancelled() => return Joined::Draining,
            answered = tokio::time::timeout(left, answer) => match answered {
                Ok(Ok(recorded)) => return Joined::Answered(recorded.replayed_elsewhere()),
                // It came to nothing that is an answer: this delivery asks for itself.
                Ok(Err(_)) => {}
                Err(_) => return Joined::Busy,
            },
        }
    }
}

impl Turn<'_> {
    /// Tells those who wait what the call came to, if that is its answer for good.
    pub(super) fn end(mut self, end: &End) {
        let End::Say(recorded) = end else { return };
        if recorded.status() != Status::Completed {
            return;
        }
        let repeats = self.leave();
        if !repeats.is_empty() {
            let recorded = Arc::new(recorded.as_ref().clone());
            for repeat in repeats {
                // Whoever no longer listens has been parked.
                repeat.send(recorded.clone()).ok();
            }
        }
    }

    fn leave(&mut self) -> Vec<oneshot::Sender<Arc<Recorded>>> {
        let first = self.key.take().and_then(|key| self.under_way.calls().remove(&key));
        first.map(|first| first.repeats).unwrap_or_default()
    }
}

impl Drop for Turn<'_> {
    /// Whoever waits hears that there is no answer here.
    fn drop(&mut self) {
        drop(self.leave());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_no_longer_waits_leaves_no_place_behind() {
        let (under_way, digest) = (UnderWay::default(), Digest::from_bytes([7; 32]));
        let meet = || under_way.meet(digest.key(), &digest);
        assert!(matches!(meet(), Met::First));
        for _ in 0..10 {
            drop(meet());
        }
        let Met::Repeat(_waits) = meet() else { panic!("the first is under way") };
        assert_eq!(under_way.calls()[&digest.key()].repeats.len(), 1);
    }
}
