//! Answers to the deliveries of one session, all sent from one place.
//!
//! What was answered while the frames before it were written goes out together: one `multiple` ack
//! up to the low-water mark, below which every delivery has been answered, and single ones beyond a
//! gap. A `multiple` names a delivery that the broker still waits for, and hand-backs are written
//! before it, so that none acks what was not done.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::try_join_all;
use lapin::Channel;
use lapin::options::{BasicAckOptions, BasicNackOptions};
use tokio::sync::{mpsc, oneshot};

use super::consumer::AckError;
use crate::gather::gather;

/// How a delivery is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Ack,
    HandBack,
}

struct Answered {
    tag: u64,
    answer: Answer,
    sent: oneshot::Sender<Result<(), AckError>>,
}

/// What a delivery holds to be answered with.
#[derive(Debug, Clone)]
pub(super) struct Acker(mpsc::Sender<Answered>);

impl std::fmt::Debug for Answered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {}", self.answer, self.tag)
    }
}

impl Acker {
    /// Answers a delivery; comes back when that was written.
    pub(super) async fn answer(&self, tag: u64, answer: Answer) -> Result<(), AckError> {
        let (sent, written) = oneshot::channel();
        self.0.send(Answered { tag, answer, sent }).await.map_err(|_| AckError::SessionLost)?;
        written.await.unwrap_or(Err(AckError::SessionLost))
    }
}

/// The highest tag that has arrived; a channel counts them from 1, without a gap.
#[derive(Debug, Clone, Default)]
pub(super) struct Arrived(Arc<AtomicU64>);

impl Arrived {
    pub(super) fn note(&self, tag: u64) {
        self.0.fetch_max(tag, Ordering::Release);
    }
}

/// Sends the answers of one session.
pub(super) struct Acks {
    answered: mpsc::Receiver<Answered>,
    arrived: Arrived,
    open: Open,
    max: usize,
}

impl Acks {
    /// For a session that holds at most `prefetch` deliveries.
    pub(super) fn new(prefetch: u16) -> (Acker, Arrived, Self) {
        let (sender, answered) = mpsc::channel(prefetch.max(1).into());
        let arrived = Arrived::default();
        let acks = Self {
            answered,
            arrived: arrived.clone(),
            open: Open::default(),
            max: prefetch.max(1).into(),
        };
        (Acker(sender), arrived, acks)
    }

    /// Sends what is answered for as long as the channel takes it; after that nothing more is sent.
    pub(super) async fn run(mut self, channel: &Channel) {
        let mut round = Vec::with_capacity(self.max);
        while gather(&mut self.answered, &mut round, self.max).await > 0 {
            let result = self.send(channel, &round).await;
            for answered in round.drain(..) {
                // Whoever no longer listens has given its delivery up.
                answered.sent.send(result.clone().map_err(AckError::Amqp)).ok();
            }
            if result.is_err() {
                return;
            }
        }
    }

    async fn send(&mut self, channel: &Channel, round: &[Answered]) -> lapin::Result<()> {
        self.open.arrived(self.arrived.0.load(Ordering::Acquire));
        let tags = |wanted| {
            round.iter().filter(move |answered| answered.answer == wanted).map(|it| it.tag)
        };
        let Frames { hand_backs, up_to, single } =
            self.open.close(tags(Answer::Ack), tags(Answer::HandBack));
        let hand_back = BasicNackOptions { multiple: false, requeue: true };
        try_join_all(hand_backs.iter().map(|tag| channel.basic_nack(*tag, hand_back))).await?;
        if let Some(tag) = up_to {
            channel.basic_ack(tag, BasicAckOptions { multiple: true }).await?;
        }
        let ack = BasicAckOptions { multiple: false };
        try_join_all(single.iter().map(|tag| channel.basic_ack(*tag, ack))).await?;
        Ok(())
    }
}

/// The deliveries that were not answered yet.
#[derive(Debug, Default)]
struct Open {
    tags: BTreeSet<u64>,
    arrived: u64,
}

/// What is to be written, in this order.
#[derive(Debug, PartialEq, Eq)]
struct Frames {
    hand_backs: Vec<u64>,
    up_to: Option<u64>,
    single: Vec<u64>,
}

impl Open {
    fn arrived(&mut self, until: u64) {
        self.tags.extend(self.arrived + 1..=until);
        self.arrived = self.arrived.max(until);
    }

    fn close(
        &mut self,
        acks: impl Iterator<Item = u64>,
        hand_backs: impl Iterator<Item = u64>,
    ) -> Frames {
        // Each delivery is answered once: it was consumed by that.
        let mut acks: Vec<u64> = acks.filter(|tag| self.tags.remove(tag)).collect();
        let hand_backs = hand_backs.filter(|tag| self.tags.remove(tag)).collect();
        acks.sort_unstable();
        let low_water = self.tags.first().copied().unwrap_or(u64::MAX);
        let single = acks.split_off(acks.partition_point(|tag| *tag < low_water));
        Frames { hand_backs, up_to: acks.last().copied(), single }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_was_answered_below_the_first_gap_goes_as_one() {
        let mut open = Open::default();
        open.arrived(6);
        let frames = open.close([2, 1, 5, 4].into_iter(), [].into_iter());
        assert_eq!(frames, Frames { hand_backs: vec![], up_to: Some(2), single: vec![4, 5] });
        let frames = open.close([3].into_iter(), [6].into_iter());
        assert_eq!(frames, Frames { hand_backs: vec![6], up_to: Some(3), single: vec![] });
        open.arrived(7);
        let frames = open.close([7].into_iter(), [].into_iter());
        assert_eq!(frames, Frames { hand_backs: vec![], up_to: Some(7), single: vec![] });
    }

    /// What a broker makes of the frames, by its own rule: a `multiple` takes all up to the one that
    /// it names, which must be there.
    #[derive(Default)]
    struct Broker {
        waits: BTreeSet<u64>,
        acked: BTreeSet<u64>,
        back: BTreeSet<u64>,
    }

    impl Broker {
        fn take(&mut self, frames: Frames) {
            for tag in frames.hand_backs {
                assert!(self.waits.remove(&tag), "{tag} was answered before");
                self.back.insert(tag);
            }
            if let Some(up_to) = frames.up_to {
                assert!(self.waits.contains(&up_to), "{up_to} was answered before");
                let beyond = self.waits.split_off(&(up_to + 1));
                self.acked.append(&mut self.waits);
                self.waits = beyond;
            }
            for tag in frames.single {
                assert!(self.waits.remove(&tag), "{tag} was answered before");
                self.acked.insert(tag);
            }
        }
    }

    proptest! {
        #[test]
        fn in_any_order_each_delivery_is_answered_once_and_as_meant(
            order in Just((1..=60_u64).collect::<Vec<_>>()).prop_shuffle(),
            back in proptest::collection::btree_set(1..=60_u64, 0..10),
            rounds in proptest::collection::vec(1..12_usize, 60),
        ) {
            let (mut open, mut broker) = (Open::default(), Broker::default());
            let (mut order, mut arrived) = (order.into_iter().peekable(), 0);
            for size in rounds {
                let round: Vec<u64> = order.by_ref().take(size).collect();
                let until = round.iter().copied().max().unwrap_or(0).max(arrived);
                broker.waits.extend(arrived + 1..=until);
                arrived = until;
                open.arrived(arrived);
                let acks = round.iter().copied().filter(|tag| !back.contains(tag));
                let backs = round.iter().copied().filter(|tag| back.contains(tag));
                broker.take(open.close(acks, backs));
            }
            prop_assert!(order.peek().is_none());
            prop_assert_eq!(&broker.back, &back);
            prop_assert_eq!(broker.acked.len() + broker.back.len(), 60);
            prop_assert!(broker.waits.is_empty() && open.tags.is_empty());
        }
    }
}
