//! Breadth first through every state of the small world; a broken promise is told with the
//! shortest way to it.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use super::super::{Course, Evidence, Micros, Move, Record, State, Terms, apply, course};
use super::world::{
    Attempt, Bounds, Claim, Delivery, Ended, LOST, Settling, Statement, Step, Then, World, claim_of,
};
use crate::outcome::EffectClass;

const HERE: [u8; 32] = [0; 32];
const ELSEWHERE: [u8; 32] = [1; 32];

/// Long after every lease and every memory.
const LATER: Micros = 1_000;

fn terms(effect: EffectClass, sent_as: [u8; 32], key_memory: Option<Micros>) -> Terms {
    Terms { effect, sent_as, timeout: 1, key_memory, max_attempts: 1, approval: false }
}

/// What an ordinary run of the tests has time for. With `CALLONCE_DEEP_SEARCH` set each search goes
/// on to what takes minutes.
fn bounds(terms: Vec<Terms>) -> Bounds {
    Bounds { terms, ticks: 2, claims: 3, requests: 1, faults: 1, row_may_be_lost: false }
}

#[test]
fn a_keyed_write_keeps_its_promises() {
    let keyed = terms(EffectClass::KeyedWrite, HERE, None);
    search(Bounds { requests: 2, ..bounds(vec![keyed]) }, 125_000);
}

#[test]
fn a_keyed_write_whose_key_is_forgotten_keeps_its_promises() {
    let keyed = terms(EffectClass::KeyedWrite, HERE, Some(2));
    search(Bounds { ticks: 3, claims: 2, requests: 2, ..bounds(vec![keyed]) }, 125_000);
}

#[test]
fn an_unkeyed_write_keeps_its_promises() {
    let unkeyed = terms(EffectClass::UnkeyedWrite, HERE, None);
    search(Bounds { requests: 2, faults: 2, ..bounds(vec![unkeyed]) }, 75_000);
}

#[test]
fn a_keyed_write_that_moves_keeps_its_promises() {
    let here = terms(EffectClass::KeyedWrite, HERE, None);
    search(Bounds { ticks: 1, ..bounds(vec![here, Terms { sent_as: ELSEWHERE, ..here }]) }, 75_000);
}

#[test]
fn a_write_whose_class_changes_keeps_its_promises() {
    let keyed = terms(EffectClass::KeyedWrite, HERE, None);
    let unkeyed = Terms { effect: EffectClass::UnkeyedWrite, ..keyed };
    search(Bounds { ticks: 1, ..bounds(vec![keyed, unkeyed]) }, 50_000);
}

#[test]
fn a_completion_outlives_a_lost_row() {
    let keyed = terms(EffectClass::KeyedWrite, HERE, None);
    search(Bounds { claims: 2, row_may_be_lost: true, ..bounds(vec![keyed]) }, 45_000);
}

#[test]
fn a_write_that_needs_approval_keeps_its_promises() {
    let unkeyed = terms(EffectClass::UnkeyedWrite, HERE, None);
    let held = Terms { approval: true, ..unkeyed };
    search(Bounds { ticks: 1, faults: 2, ..bounds(vec![unkeyed, held]) }, 20_000);
}

/// Goes through every state, and makes sure that there are as many as there should be.
fn search(mut bounds: Bounds, floor: usize) {
    if std::env::var_os("CALLONCE_DEEP_SEARCH").is_some() {
        bounds =
            Bounds { ticks: 3, claims: 3, requests: 2, faults: bounds.faults.max(1), ..bounds };
    }
    let bounds = &bounds;
    let mut seen: HashMap<[u64; 3], (), BuildHasherDefault<Mix>> = HashMap::default();
    // From where each state was reached first, and by which step.
    let mut reached: Vec<(usize, Step)> = vec![(0, (None, "it begins"))];
    let mut open = VecDeque::from([(World::new(), 0)]);
    seen.insert(pack(bounds, &World::new()), ());
    let (mut steps, mut found) = (0, Vec::new());
    while let Some((world, at)) = open.pop_front() {
        world.steps(bounds, &mut found);
        steps += found.len();
        for (step, taken) in found.drain(..) {
            let next = match taken {
                Ok(next) => next,
                Err(broken) => panic!("{broken}:{}", way(&reached, at, step)),
            };
            if seen.insert(pack(bounds, &next), ()).is_some() {
                continue;
            }
            if let Err(broken) = check(bounds, &next) {
                panic!("{broken}:{}\n{next:#?}", way(&reached, at, step));
            }
            reached.push((at, step));
            open.push_back((next, reached.len() - 1));
        }
    }
    eprintln!("{} states, {steps} steps", reached.len());
    assert!(reached.len() >= floor, "the search has shrunk to {} states", reached.len());
}

fn way(reached: &[(usize, Step)], mut at: usize, last: Step) -> String {
    let mut steps = vec![last];
    while at != 0 {
        steps.push(reached[at].1);
        at = reached[at].0;
    }
    let line = |(who, what): &Step| match who {
        Some(who) => format!("\n  delivery {who} {what}"),
        None => format!("\n  {what}"),
    };
    steps.iter().rev().map(line).collect()
}

/// What holds in every state.
fn check(bounds: &Bounds, world: &World) -> Result<(), &'static str> {
    let Some(row) = &world.row else { return Ok(()) };
    let record = &row.record;
    for delivery in world.deliveries {
        let (Delivery::Run(attempt) | Delivery::Sent { attempt, .. }) = delivery else { continue };
        let stands = record.claim == Some(attempt.claim)
            && record.state == State::InFlight
            && record.lease_until >= attempt.until;
        if attempt.until >= world.now && !stands && !world.row_was_lost {
            return Err("an attempt may send though its lease stands no more in the ledger");
        }
    }
    if bounds.terms.iter().all(|terms| record.lapses > terms.max_attempts) {
        return Err("too many attempts lapsed");
    }
    if record.state == State::NotRun {
        if record.maybe_since.is_some() {
            return Err("the schema refuses not_run with maybe_since");
        }
        if !world.row_was_lost && world.out().is_some() {
            return Err("the row says not_run, and a request may have been received");
        }
    }
    if record.late_completion && !matches!(record.state, State::InFlight | State::Completed) {
        return Err("the row ended otherwise than completed while a completion was kept");
    }
    if record.late_completion && world.kept == 0 {
        return Err("a completion is announced and not kept");
    }
    if (record.state == State::Completed) != (row.outcome != 0) {
        return Err("a row is completed exactly if it holds an outcome");
    }
    if world.completion_settled && record.state != State::Completed && !record.late_completion {
        return Err("a completion that was settled is lost");
    }
    for terms in &bounds.terms {
        for now in [world.now, world.now + LATER] {
            next_delivery_ends(record, now, terms)?;
        }
    }
    Ok(())
}

/// A delivery that comes to this row, undisturbed, ends it or waits for a lease that stands.
fn next_delivery_ends(row: &Record<Claim>, now: Micros, terms: &Terms) -> Result<(), &'static str> {
    const NEW: Claim = Claim::MAX;
    let mut row = row.clone();
    // A kept completion is adopted, or a claim lapses, and then the row answers or is claimed.
    for _ in 0..3 {
        let step = match course(&row, NEW, now, terms) {
            Course::Answer => return Ok(()),
            Course::Wait if row.state == State::InFlight && row.lease_until >= now => {
                return Ok(());
            }
            Course::Wait => return Err("a delivery waits for nobody"),
            Course::Try(step) => step,
        };
        let Some(next) = apply(&row, step, now, 1, terms) else {
            return Err("a delivery tries what is not permitted");
        };
        if claim_of(step).is_some() {
            return Ok(());
        }
        row = next;
    }
    Err("a delivery goes round in circles")
}

/// A state in few bits, the same for states from which the same can follow: whichever delivery is
/// which, whatever the count of attempts, and, where keys are never forgotten, whenever it was.
fn pack(bounds: &Bounds, world: &World) -> [u64; 3] {
    let mut bits = Bits {
        words: [0; 3],
        used: 0,
        now: world.now,
        forgets: bounds.terms.iter().any(|terms| terms.key_memory.is_some()),
    };
    bits.put(world.now.unsigned_abs(), 3);
    match &world.row {
        None => bits.put(0, 1),
        Some(row) => {
            let record = &row.record;
            bits.put(1, 1);
            bits.put(record.state as u64, 3);
            bits.claim(record.claim.unwrap_or_default());
            bits.put(record.lapses.unsigned_abs().into(), 2);
            bits.since(record.maybe_since);
            bits.since(Some(record.last_claimed_at));
            bits.flag(record.lease_until < world.now);
            bits.flag(record.effect == EffectClass::KeyedWrite);
            bits.flag(record.sent_as == HERE);
            bits.flag(record.too_many);
            bits.flag(record.late_completion);
            bits.flag(record.approved);
        }
    }
    bits.flag(world.kept != 0);
    bits.claim(world.claims);
    bits.since(world.first_out);
    bits.put(world.out_under.into(), 2);
    bits.put(world.effects.into(), 1);
    bits.since(world.remembered.map(|(since, _)| since));
    bits.put(world.remembered.map_or(0, |(_, by)| by).into(), 1);
    bits.flag(world.completion_settled);
    match world.delayed {
        None => bits.put(0, 1),
        Some((statement, terms)) => {
            bits.put(1, 1);
            bits.statement(statement);
            bits.put(terms.into(), 1);
        }
    }
    bits.put(world.faults.into(), 2);
    bits.flag(world.row_was_lost);
    let mut deliveries = world.deliveries.map(|delivery| {
        let mut one = Bits { words: [0; 3], used: 0, ..bits };
        one.delivery(delivery);
        one.words[0]
    });
    deliveries.sort_unstable();
    for delivery in deliveries {
        bits.put(delivery, 32);
    }
    bits.words
}

struct Bits {
    words: [u64; 3],
    used: usize,
    now: Micros,
    forgets: bool,
}

impl Bits {
    fn put(&mut self, value: u64, width: usize) {
        assert!(width < 64 && value < 1 << width, "{value} has more than {width} bits");
        let (word, shift) = (self.used / 64, self.used % 64);
        self.words[word] |= value << shift;
        if shift + width > 64 {
            self.words[word + 1] |= value >> (64 - shift);
        }
        self.used += width;
    }

    fn flag(&mut self, value: bool) {
        self.put(value.into(), 1);
    }

    fn claim(&mut self, claim: Claim) {
        self.put(claim.into(), 3);
    }

    /// A time of which only a memory could want to know how long ago it was.
    fn since(&mut self, time: Option<Micros>) {
        self.flag(time.is_some());
        if self.forgets {
            self.put(time.map_or(0, |time| (self.now - time).unsigned_abs()), 2);
        }
    }

    fn statement(&mut self, statement: Statement) {
        match statement {
            Statement::Insert(claim) => self.numbered(0, claim),
            Statement::InsertHeld => self.numbered(14, 0),
            Statement::InsertCompleted(claim) => self.numbered(1, claim),
            Statement::CompleteInFlight(claim) => self.numbered(2, claim),
            Statement::Move(step) => self.step(step),
        }
    }

    fn step(&mut self, step: Move<Claim>) {
        match step {
            Move::Renew(claim) => self.numbered(3, claim),
            Move::Complete(claim) => self.numbered(4, claim),
            Move::KeepCompletion(claim) => self.numbered(5, claim),
            Move::SettleNotRun { claim, evident } => {
                self.numbered(6, claim);
                self.flag(evident);
            }
            Move::Prove { seen, evidence } => {
                self.numbered(15, seen.unwrap_or_default());
                self.flag(evidence == Evidence::Completed);
            }
            Move::Hold { seen } => self.numbered(16, seen.unwrap_or_default()),
            Move::Approve => self.numbered(17, 0),
            Move::SettleUnknown(claim) => self.numbered(7, claim),
            Move::Adopt { seen } => self.numbered(8, seen),
            Move::AdoptOwn(claim) => self.numbered(13, claim),
            Move::Lapse { seen, too_many } => {
                self.numbered(9, seen);
                self.flag(too_many);
            }
            Move::Reclaim { seen, new } => {
                self.numbered(10, seen.unwrap_or_default());
                self.claim(new);
            }
            Move::Resend { seen, new } => {
                self.numbered(11, seen.unwrap_or_default());
                self.claim(new);
            }
            Move::TakeOver { seen, new } => {
                self.numbered(12, seen);
                self.claim(new);
            }
        }
    }

    fn numbered(&mut self, number: u64, claim: Claim) {
        self.put(number, 5);
        self.claim(claim);
    }

    fn attempt(&mut self, attempt: Attempt) {
        self.put(attempt.terms.into(), 1);
        self.claim(attempt.claim);
        self.since(attempt.maybe_since);
        self.since(Some(attempt.begun));
        self.flag(attempt.until == LOST);
        self.flag(attempt.until < self.now);
        self.flag(attempt.ambiguous);
        self.flag(attempt.evident);
        self.put(attempt.requests_left.into(), 2);
    }

    fn delivery(&mut self, delivery: Delivery) {
        match delivery {
            Delivery::Away => self.put(0, 3),
            Delivery::Look { terms, unanswered } => {
                self.put(1, 3);
                self.put(terms.into(), 1);
                self.claim(unanswered);
            }
            Delivery::Try { terms, unanswered, step } => {
                self.put(2, 3);
                self.put(terms.into(), 1);
                self.claim(unanswered);
                self.step(step);
            }
            Delivery::Confirm { terms, claim } => {
                self.put(3, 3);
                self.put(terms.into(), 1);
                self.claim(claim);
            }
            Delivery::Run(attempt) => {
                self.put(4, 3);
                self.attempt(attempt);
            }
            Delivery::Sent { attempt, at, received } => {
                self.put(5, 3);
                self.attempt(attempt);
                self.since(Some(at));
                self.flag(received);
            }
            Delivery::Settle { terms, claim, settling, then } => {
                self.put(6, 3);
                self.put(terms.into(), 1);
                self.claim(claim);
                self.settling(settling);
                self.flag(then == Then::Look);
            }
        }
    }

    fn settling(&mut self, settling: Settling) {
        let (number, ended) = match settling {
            Settling::Completed => (0, Ended::Unknown),
            Settling::CompletedRead => (1, Ended::Unknown),
            Settling::CompletedLate => (2, Ended::Unknown),
            Settling::KeepCompletion => (3, Ended::Unknown),
            Settling::InsertCompleted => (4, Ended::Unknown),
            Settling::NotRun { evident: false } => (5, Ended::Unknown),
            Settling::NotRun { evident: true } => (5, Ended::NotRun),
            Settling::Unknown { ended } => (6, ended),
            Settling::Read { ended } => (7, ended),
            Settling::Adopt { ended } => (8, ended),
        };
        self.put(number, 4);
        self.put(ended as u64, 2);
    }
}

/// A quick hash for words that are packed already; a test without optimisation feels the difference.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
