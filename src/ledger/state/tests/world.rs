//! A small world: one key, two deliveries at a time, a few claims, a downstream and a clock.
//!
//! A delivery takes the steps of `job/claim.rs`, `job/execute.rs` and `job/settle.rs`, one statement
//! or one event of a request at a time, and decides with the same functions as they do. Everything
//! that may come between is a step too: another delivery's statement, the clock, a worker's death,
//! an answer that is lost, a statement that arrives when nobody waits for it any more.

use super::super::{Course, Evidence, Micros, Move, Record, State, Terms, apply, course, permits};
use crate::call::reply::Phase;
use crate::outcome::{
    Branch, EffectClass, Failure, Next, Outcome, Standing, Verdict, may_begin, next,
};

/// A claim's id; zero is none.
pub(super) type Claim = u8;

/// How long a claim stands without renewal: to the end of its tick.
const LEASE: Micros = 0;

/// The end of a lease that the ledger no longer knows.
pub(super) const LOST: Micros = -1;

/// What may happen in one search.
pub(super) struct Bounds {
    /// The registries that workers may have; each delivery is taken under one of them.
    pub(super) terms: Vec<Terms>,
    pub(super) ticks: Micros,
    pub(super) claims: Claim,
    /// Requests that one attempt may send.
    pub(super) requests: u8,
    /// Deaths of workers, and statements whose answer is lost, whether or not they are carried out.
    pub(super) faults: u8,
    /// Whether a failover may lose the row, once.
    pub(super) row_may_be_lost: bool,
}

/// A row, and whose answer it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) record: Record<Claim>,
    /// The claim of which it holds the completion.
    pub(super) outcome: Claim,
}

/// One statement to the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Statement {
    Insert(Claim),
    InsertHeld,
    Move(Move<Claim>),
    /// [`Move::Complete`] the ordinary way: only of a row that is still in flight.
    CompleteInFlight(Claim),
    InsertCompleted(Claim),
}

/// What an attempt has in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Attempt {
    pub(super) terms: u8,
    pub(super) claim: Claim,
    /// From when an attempt before this one may have acted.
    pub(super) maybe_since: Option<Micros>,
    pub(super) begun: Micros,
    /// Until when its lease stands, on its own clock.
    pub(super) until: Micros,
    pub(super) ambiguous: bool,
    /// Whether a probe's answer has shown that no request up to then acted.
    pub(super) evident: bool,
    pub(super) requests_left: u8,
}

/// What is to be recorded of an attempt that was not completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    Unknown,
    NotRun,
    EvidentlyNotRun,
}

/// Where a settling stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Settling {
    Completed,
    CompletedRead,
    CompletedLate,
    KeepCompletion,
    InsertCompleted,
    NotRun {
        evident: bool,
    },
    /// As unknown, perhaps because it could not be settled as not run.
    Unknown {
        ended: Ended,
    },
    Read {
        ended: Ended,
    },
    Adopt {
        ended: Ended,
    },
}

/// What follows a settling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    End,
    /// Look at the row again, with another claim id.
    Look,
}

/// Where a delivery stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivery {
    /// In a queue.
    Away,
    /// Asks the ledger, having sent a claim of which no answer came.
    Look {
        terms: u8,
        unanswered: Claim,
    },
    /// Makes the move that it chose when it read the row.
    Try {
        terms: u8,
        unanswered: Claim,
        step: Move<Claim>,
    },
    /// Confirms its own claim.
    Confirm {
        terms: u8,
        claim: Claim,
    },
    /// Runs an attempt; between two requests.
    Run(Attempt),
    /// Runs an attempt; a request is under way, which the downstream has received and acted upon,
    /// or not.
    Sent {
        attempt: Attempt,
        at: Micros,
        received: bool,
    },
    Settle {
        terms: u8,
        claim: Claim,
        settling: Settling,
        then: Then,
    },
}

/// A state of the world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct World {
    pub(super) now: Micros,
    pub(super) row: Option<Row>,
    /// The claim whose completion the history keeps.
    pub(super) kept: Claim,
    pub(super) claims: Claim,
    pub(super) deliveries: [Delivery; 2],
    /// When a request first went out of which it is not known that it came to nothing, and the
    /// registries under which such requests went out, a bit each. Requests that are under way are
    /// not counted yet.
    pub(super) first_out: Option<Micros>,
    pub(super) out_under: u8,
    pub(super) effects: u8,
    /// What the downstream remembers of the key: since when, and the registry of the request.
    pub(super) remembered: Option<(Micros, u8)>,
    /// Whether an attempt saw a completion and came to the end of its settling.
    pub(super) completion_settled: bool,
    /// A statement that nobody waits for and that has not arrived yet.
    pub(super) delayed: Option<(Statement, u8)>,
    pub(super) faults: u8,
    pub(super) row_was_lost: bool,
}

/// A step: which delivery took it, if one did, and its name.
pub(super) type Step = (Option<usize>, &'static str);

/// What a step led to, or which promise it broke.
pub(super) type Taken = Result<World, &'static str>;

impl World {
    pub(super) fn new() -> Self {
        Self {
            now: 0,
            row: None,
            kept: 0,
            claims: 0,
            deliveries: [Delivery::Away; 2],

            first_out: None,
            out_under: 0,
            effects: 0,
            remembered: None,
            completion_settled: false,
            delayed: None,
            faults: 0,
            row_was_lost: false,
        }
    }

    /// Every step that may come next.
    pub(super) fn steps(&self, bounds: &Bounds, found: &mut Vec<(Step, Taken)>) {
        self.outside(bounds, found);
        for who in 0..self.deliveries.len() {
            self.delivery(bounds, who, found);
        }
    }

    /// What nobody of ours does.
    fn outside(&self, bounds: &Bounds, found: &mut Vec<(Step, Taken)>) {
        if self.now < bounds.ticks {
            let mut world = self.clone();
            world.now += 1;
            found.push(((None, "the clock ticks"), Ok(world)));
        }

        if let Some((statement, terms)) = self.delayed {
            let mut world = self.clone();
            world.delayed = None;
            let taken = world.carry_out(bounds, statement, terms).map(|_| world);
            found.push(((None, "a delayed statement arrives"), taken));
        }
        self.evidence(bounds, found);
        if bounds.row_may_be_lost && !self.row_was_lost && self.row.is_some() {
            let mut world = self.clone();
            world.row = None;
            world.row_was_lost = true;
            // What was settled is lost with it; what is settled from now on is not.
            world.completion_settled = false;
            found.push(((None, "a failover loses the row"), Ok(world)));
        }
    }

    /// A probe's answer that counts, or a person, settles what is unknown; a person lets run what is
    /// held. That nothing happened counts only when no request is under way any more.
    fn evidence(&self, bounds: &Bounds, found: &mut Vec<(Step, Taken)>) {
        let Some(row) = &self.row else { return };
        let seen = row.record.claim;
        let mut put = |name, step| {
            let mut world = self.clone();
            let taken = world.carry_out(bounds, Statement::Move(step), 0).map(|_| {
                if let Move::Prove { evidence, .. } = step {
                    match evidence {
                        Evidence::NotRun => world.nothing_is_out(),
                        Evidence::Completed => world.completion_settled = true,
                    }
                }
                world
            });
            found.push(((None, name), taken));
        };
        if row.record.state == State::Held {
            put("a person approves", Move::Approve);
        }
        if row.record.state != State::Unknown {
            return;
        }
        if self.effects > 0 {
            put(
                "it is evident that it happened",
                Move::Prove { seen, evidence: Evidence::Completed },
            );
        } else if self.nothing_is_under_way() {
            put(
                "it is evident that nothing happened",
                Move::Prove { seen, evidence: Evidence::NotRun },
            );
        }
    }

    fn nothing_is_under_way(&self) -> bool {
        self.deliveries.iter().all(|delivery| !matches!(delivery, Delivery::Sent { .. }))
    }

    fn nothing_is_out(&mut self) {
        self.first_out = None;
        self.out_under = 0;
    }

    /// The downstream acts upon a request, unless it knows the key.
    fn act(&mut self, bounds: &Bounds, under: u8) -> Result<(), &'static str> {
        let collapses = self.remembered.is_some_and(|(since, by)| {
            let (first, now) = (&bounds.terms[usize::from(by)], &bounds.terms[usize::from(under)]);
            first.effect == EffectClass::KeyedWrite
                && now.effect == EffectClass::KeyedWrite
                && first.sent_as == now.sent_as
                && now.key_memory.is_none_or(|memory| self.now <= since + memory)
        });
        if collapses {
            return Ok(());
        }
        if self.effects > 0 {
            return Err("two effects");
        }
        self.effects = 1;
        self.remembered = Some((self.now, under));
        Ok(())
    }

    fn delivery(&self, bounds: &Bounds, who: usize, found: &mut Vec<(Step, Taken)>) {
        let mut put = |name, taken: Taken| found.push(((Some(who), name), taken));
        let leaves_something = match self.deliveries[who] {
            Delivery::Away => false,
            Delivery::Try { unanswered, .. } => unanswered != 0,
            Delivery::Look { .. }
            | Delivery::Confirm { .. }
            | Delivery::Run(_)
            | Delivery::Sent { .. }
            | Delivery::Settle { .. } => true,
        };
        if leaves_something && self.faults < bounds.faults {
            let mut world = self.with(who, Delivery::Away);
            world.faults += 1;
            if let Delivery::Sent { attempt, at, .. } = self.deliveries[who] {
                world.went_out(attempt.terms, at);
            }
            put("its worker dies", Ok(world));
        }
        match self.deliveries[who] {
            Delivery::Away => {
                for terms in 0..bounds.terms.len() {
                    let terms = u8::try_from(terms).expect("a handful");
                    self.look(bounds, who, terms, 0, found);
                }
            }
            Delivery::Look { terms, unanswered } => {
                put("gives up waiting", Ok(self.give_up(who, terms, unanswered)));
                self.look(bounds, who, terms, unanswered, found);
            }

            Delivery::Try { terms, unanswered, step } => {
                let mine = claim_of(step).unwrap_or(unanswered);
                let tried = |world: &Self, changed| match (changed, claim_of(step)) {
                    (true, Some(claim)) => world.run(who, bounds, terms, claim),
                    (_, _) => world.with(who, looks(terms, unanswered)),
                };
                let lost = looks(terms, mine);
                self.send(bounds, who, Statement::Move(step), terms, lost, tried, found);
            }
            Delivery::Confirm { terms, claim } => {
                let lost = Delivery::Look { terms, unanswered: claim };
                let confirmed = |world: &Self, changed| {
                    if changed {
                        world.run(who, bounds, terms, claim)
                    } else {
                        world.with(who, lost)
                    }
                };
                let statement = Statement::Move(Move::Renew(claim));
                self.send(bounds, who, statement, terms, lost, confirmed, found);
            }
            Delivery::Run(attempt) => self.attempt(bounds, who, attempt, found),
            Delivery::Sent { attempt, at, received } => {
                let back = |attempt| Delivery::Sent { attempt, at, received };
                self.renew(bounds, who, attempt, back, found);
                self.answers(bounds, who, found);
            }
            Delivery::Settle { .. } => self.settle(bounds, who, found),
        }
    }

    /// Sends a statement: it is answered, or its answer is lost, or it was lost itself, or it
    /// arrives later.
    #[expect(clippy::too_many_arguments, reason = "each is a part of one statement's fate")]
    fn send(
        &self,
        bounds: &Bounds,
        who: usize,
        statement: Statement,
        terms: u8,
        lost: Delivery,
        answered: impl Fn(&Self, bool) -> Self,
        found: &mut Vec<(Step, Taken)>,
    ) {
        let mut put = |name, taken: Taken| found.push(((Some(who), name), taken));
        let mut world = self.clone();
        match world.carry_out(bounds, statement, terms) {
            Err(broken) => put(name(statement), Err(broken)),
            Ok(changed) => {
                put(name(statement), Ok(answered(&world, changed)));
                if self.faults < bounds.faults {
                    world.faults += 1;
                    put("a statement's answer is lost", Ok(world.with(who, lost)));
                }
            }
        }
        if self.faults < bounds.faults {
            let mut world = self.with(who, lost);
            world.faults += 1;
            put("a statement is lost", Ok(world.clone()));
            if self.delayed.is_none() {
                world.delayed = Some((statement, terms));
                put("a statement is delayed", Ok(world));
            }
        }
    }

    /// Carries out a statement, and says whether a row changed.
    fn carry_out(
        &mut self,
        bounds: &Bounds,
        statement: Statement,
        by: u8,
    ) -> Result<bool, &'static str> {
        let terms = &bounds.terms[usize::from(by)];
        let before = self.row.clone();
        let after = match (statement, &before) {
            (Statement::Insert(claim), None) => {
                Some(Row { record: inserted(claim, self.now, terms), outcome: 0 })
            }
            (Statement::InsertHeld, None) => {
                let record = inserted(0, self.now, terms);
                let record = Record { state: State::Held, claim: None, attempt: 0, ..record };
                Some(Row { record, outcome: 0 })
            }
            (Statement::InsertCompleted(claim), None) => {
                let record = inserted(claim, self.now, terms);
                Some(Row { record: Record { state: State::Completed, ..record }, outcome: claim })
            }
            (Statement::CompleteInFlight(claim), Some(row))
                if row.record.state == State::InFlight =>
            {
                self.moved(row, Move::Complete(claim), terms)
            }
            (Statement::Move(step), Some(row)) => self.moved(row, step, terms),
            (
                Statement::Insert(_) | Statement::InsertHeld | Statement::InsertCompleted(_),
                Some(_),
            )
            | (Statement::CompleteInFlight(_) | Statement::Move(_), _) => None,
        };
        let Some(after) = after else { return Ok(false) };
        if before.as_ref().is_some_and(|row| row.record.state == State::Completed && *row != after)
        {
            return Err("a completed row changed");
        }
        if let Some(before) = before.filter(|before| before.record.claim != after.record.claim) {
            self.claimed(bounds, &before.record, &after.record, terms)?;
        }
        if let Statement::Move(Move::KeepCompletion(claim)) = statement {
            self.kept = claim;
        }
        self.row = Some(after);
        Ok(true)
    }

    /// What holds of a claim that is granted on a row that was there before.
    fn claimed(
        &self,
        bounds: &Bounds,
        before: &Record<Claim>,
        after: &Record<Claim>,
        terms: &Terms,
    ) -> Result<(), &'static str> {
        if before.too_many {
            return Err("a call that too many attempts lapsed of was claimed");
        }
        // Under other terms a claim may have lapsed for another reason.
        if bounds.terms.len() == 1 && before.lapses >= terms.max_attempts {
            return Err("a call was claimed though too many attempts lapsed");
        }
        if before.late_completion {
            return Err("a call was claimed though its completion is kept");
        }
        let Some(first) = after.maybe_since else { return Ok(()) };
        let remembered =
            terms.key_memory.is_none_or(|memory| self.now + terms.timeout <= first + memory);
        if may_begin(terms.effect, true, remembered) {
            Ok(())
        } else {
            Err("a claim was granted under which nothing may be sent")
        }
    }

    fn moved(&self, row: &Row, step: Move<Claim>, terms: &Terms) -> Option<Row> {
        let record = apply(&row.record, step, self.now, LEASE, terms)?;
        let outcome = match step {
            Move::Complete(claim) => claim,
            Move::Prove { seen, evidence: Evidence::Completed } => seen.unwrap_or(1),
            Move::Adopt { .. } | Move::AdoptOwn(_) => self.kept,
            Move::Reclaim { .. }
            | Move::Resend { .. }
            | Move::Renew(_)
            | Move::TakeOver { .. }
            | Move::Lapse { .. }
            | Move::KeepCompletion(_)
            | Move::SettleNotRun { .. }
            | Move::SettleUnknown(_)
            | Move::Prove { evidence: Evidence::NotRun, .. }
            | Move::Hold { .. }
            | Move::Approve => row.outcome,
        };
        Some(Row { record, outcome })
    }

    /// `job/claim.rs`: an insert, or a look at the row.
    fn look(
        &self,
        bounds: &Bounds,
        who: usize,
        terms: u8,
        unanswered: Claim,
        found: &mut Vec<(Step, Taken)>,
    ) {
        let mut world = self.clone();
        let claim = if unanswered == 0 { world.claims + 1 } else { unanswered };
        world.claims = world.claims.max(claim);
        let may_claim = claim <= bounds.claims;
        let Some(row) = &self.row else {
            if bounds.terms[usize::from(terms)].approval {
                let asks = looks(terms, unanswered);
                let held = |world: &Self, _| world.with(who, asks);
                world.send(bounds, who, Statement::InsertHeld, terms, asks, held, found);
            } else if may_claim {
                let lost = Delivery::Look { terms, unanswered: claim };
                let tried = |world: &Self, changed| {
                    if changed {
                        world.run(who, bounds, terms, claim)
                    } else {
                        world.with(who, lost)
                    }
                };
                world.send(bounds, who, Statement::Insert(claim), terms, lost, tried, found);
            }
            return;
        };
        let mut put = |name, taken: Taken| found.push(((Some(who), name), taken));
        let record = &row.record;
        if unanswered != 0 && record.claim == Some(unanswered) {
            if record.state == State::InFlight {
                let claim = unanswered;
                put("finds its own claim", Ok(self.with(who, Delivery::Confirm { terms, claim })));
                return;
            }
            if record.state == State::Unknown {
                let then = Then::Look;
                let settling = Settling::NotRun { evident: false };
                let delivery = Delivery::Settle { terms, claim, settling, then };
                put("finds its own claim lapsed", Ok(self.with(who, delivery)));
                return;
            }
        }
        match course(record, claim, self.now, &bounds.terms[usize::from(terms)]) {
            // It goes on looking, or gives up.
            Course::Wait => {}
            Course::Answer => put("is answered from the row", Ok(self.end(who, Then::End, terms))),
            Course::Try(step) if claim_of(step).is_none() => {
                put("chooses", Ok(self.with(who, Delivery::Try { terms, unanswered, step })));
            }
            Course::Try(step) => {
                if may_claim {
                    put("chooses", Ok(world.with(who, Delivery::Try { terms, unanswered, step })));
                }
            }
        }
    }

    /// A claim that was sent and not answered is given back.
    fn give_up(&self, who: usize, terms: u8, unanswered: Claim) -> Self {
        if unanswered == 0 {
            return self.with(who, Delivery::Away);
        }
        let settling = Settling::NotRun { evident: false };
        let (claim, then) = (unanswered, Then::End);
        self.with(who, Delivery::Settle { terms, claim, settling, then })
    }

    /// A claim was granted.
    fn run(&self, who: usize, bounds: &Bounds, terms: u8, claim: Claim) -> Self {
        let attempt = Attempt {
            terms,
            claim,
            maybe_since: self.row.as_ref().and_then(|row| row.record.maybe_since),
            begun: self.now,
            until: self.now + LEASE,
            ambiguous: false,
            evident: false,
            requests_left: bounds.requests,
        };
        self.with(who, Delivery::Run(attempt))
    }

    /// `job/execute.rs`, between two requests.
    fn attempt(
        &self,
        bounds: &Bounds,
        who: usize,
        attempt: Attempt,
        found: &mut Vec<(Step, Taken)>,
    ) {
        self.renew(bounds, who, attempt, Delivery::Run, found);
        let mut put = |name, taken: Taken| found.push(((Some(who), name), taken));
        put("begins no other request", Ok(self.ended(who, attempt)));
        if attempt.maybe_acted() && self.effects == 0 && self.nothing_is_under_way() {
            let attempt = Attempt { maybe_since: None, ambiguous: false, evident: true, ..attempt };
            let mut world = self.with(who, Delivery::Run(attempt));
            world.nothing_is_out();
            put("is told by a probe that nothing happened", Ok(world));
        }
        if self.now > attempt.until || attempt.requests_left == 0 {
            return;
        }
        let mut tried = attempt;
        tried.requests_left -= 1;
        put("cannot connect", Ok(self.judged(bounds, who, tried, &Verdict::NotSent(failure()))));
        let terms = &bounds.terms[usize::from(attempt.terms)];
        if may_begin(terms.effect, attempt.maybe_acted(), attempt.remembered(terms, self.now)) {
            put("sends a request that is lost", self.begin(bounds, who, tried, false));
            put("sends a request that is acted upon", self.begin(bounds, who, tried, true));
        }
    }

    fn begin(&self, bounds: &Bounds, who: usize, attempt: Attempt, received: bool) -> Taken {
        let mut world = self.with(who, Delivery::Sent { attempt, at: self.now, received });
        let before = self.out();
        if received {
            world.act(bounds, attempt.terms)?;
        }
        let Some((first, under)) = before else { return Ok(world) };
        if self.row_was_lost {
            return Ok(world);
        }

        let terms = &bounds.terms[usize::from(attempt.terms)];
        if terms.effect == EffectClass::UnkeyedWrite {
            return Err(
                "an unkeyed_write was begun though an earlier request may have been received",
            );
        }
        let others = bounds.terms.iter().enumerate().filter(|(index, _)| under & (1 << index) != 0);
        for (_, other) in others {
            if other.effect != EffectClass::KeyedWrite || other.sent_as != terms.sent_as {
                return Err(
                    "a request was repeated though it does not collapse with an earlier one",
                );
            }
        }
        match terms.key_memory {
            Some(memory) if self.now + terms.timeout > first + memory => {
                Err("a request was repeated though its key may have been forgotten")
            }
            Some(_) | None => Ok(world),
        }
    }

    /// When the first request went out that may have been received, and under which registries.
    pub(super) fn out(&self) -> Option<(Micros, u8)> {
        let mut world = self.clone();
        for delivery in self.deliveries {
            if let Delivery::Sent { attempt, at, .. } = delivery {
                world.went_out(attempt.terms, at);
            }
        }
        world.first_out.map(|first| (first, world.out_under))
    }

    /// A request is no longer under way, and may have been received.
    fn went_out(&mut self, under: u8, at: Micros) {
        self.out_under |= 1 << under;
        self.first_out = Some(self.first_out.map_or(at, |first| first.min(at)));
    }

    /// What may become of the request that is under way.
    fn answers(&self, bounds: &Bounds, who: usize, found: &mut Vec<(Step, Taken)>) {
        let Delivery::Sent { attempt, at, received } = self.deliveries[who] else { return };
        let mut put = |name, world: &Self, verdict| {
            let judged = world.judged(bounds, who, attempt, &verdict);
            found.push(((Some(who), name), Ok(judged)));
        };
        let nothing = self.with(who, Delivery::Away);
        let mut unresolved = nothing.clone();
        unresolved.went_out(attempt.terms, at);
        if received {
            let verdict =
                Verdict::Completed { outcome: outcome(), settles_resend: true, branch: None };
            put("is answered", &unresolved, verdict);
        } else {
            let verdict =
                Verdict::Completed { outcome: outcome(), settles_resend: false, branch: None };
            put("is answered with an error", &nothing, verdict);
            put("is refused", &nothing, Verdict::Refused(failure()));
            if nothing.out().is_some() {
                put("is told of another", &unresolved, Verdict::InProgress(failure()));
            }
        }
        put("is not answered", &unresolved, Verdict::Ambiguous(failure()));
    }

    fn judged(&self, bounds: &Bounds, who: usize, attempt: Attempt, verdict: &Verdict) -> Self {
        let terms = &bounds.terms[usize::from(attempt.terms)];
        let standing = Standing {
            class: terms.effect,
            ambiguous_before: attempt.maybe_acted(),
            key_remembered: attempt.remembered(terms, self.now),
            can_probe: false,
        };
        let step = next(verdict, standing);
        if step == Next::Complete {
            return self.settling(who, attempt, Settling::Completed);
        }
        let mut attempt = attempt;
        match verdict {
            Verdict::NotSent(_) | Verdict::Refused(_) => {}
            Verdict::InProgress(_)
            | Verdict::Ambiguous(_)
            | Verdict::Presumed(_)
            | Verdict::Completed { .. } => {
                attempt.ambiguous = true;
            }
        }
        match step {
            Next::Retry { .. } if attempt.requests_left > 0 => {
                self.with(who, Delivery::Run(attempt))
            }
            Next::Retry { .. } | Next::Stop | Next::Complete | Next::Probe => {
                self.ended(who, attempt)
            }
        }
    }

    /// No other request follows.
    fn ended(&self, who: usize, attempt: Attempt) -> Self {
        let settling = if attempt.maybe_acted() {
            Settling::Unknown { ended: Ended::Unknown }
        } else {
            Settling::NotRun { evident: attempt.evident }
        };
        self.settling(who, attempt, settling)
    }

    fn settling(&self, who: usize, attempt: Attempt, settling: Settling) -> Self {
        let (terms, claim, then) = (attempt.terms, attempt.claim, Then::End);
        self.with(who, Delivery::Settle { terms, claim, settling, then })
    }

    fn renew(
        &self,
        bounds: &Bounds,
        who: usize,
        attempt: Attempt,
        back: impl Fn(Attempt) -> Delivery,
        found: &mut Vec<(Step, Taken)>,
    ) {
        // Nothing changes by a renewal in the same tick, and a lost lease is asked for no more.
        if attempt.until == LOST || attempt.until == self.now + LEASE {
            return;
        }
        let mut world = self.clone();
        let renewed =
            world.carry_out(bounds, Statement::Move(Move::Renew(attempt.claim)), attempt.terms);
        let taken = renewed.map(|changed| {
            let until = if changed { world.now + LEASE } else { LOST };
            world.with(who, back(Attempt { until, ..attempt }))
        });
        found.push(((Some(who), "renews"), taken));
    }

    /// `job/settle.rs`.
    fn settle(&self, bounds: &Bounds, who: usize, found: &mut Vec<(Step, Taken)>) {
        let Delivery::Settle { terms, claim, settling, then } = self.deliveries[who] else {
            return;
        };
        let at = |settling| Delivery::Settle { terms, claim, settling, then };
        let mut put = |name, taken: Taken| found.push(((Some(who), name), taken));
        let record = self.row.as_ref().map(|row| &row.record);
        let first = |ended| {
            at(match ended {
                Ended::Unknown => Settling::Unknown { ended },
                Ended::NotRun => Settling::NotRun { evident: false },
                Ended::EvidentlyNotRun => Settling::NotRun { evident: true },
            })
        };
        let statement = match settling {
            Settling::CompletedRead => {
                let may = |step| {
                    record.is_some_and(|row| {
                        permits(row, step, self.now, &bounds.terms[usize::from(terms)])
                    })
                };
                let world = if record.is_none() {
                    self.with(who, at(Settling::InsertCompleted))
                } else if may(Move::Complete(claim)) {
                    self.with(who, at(Settling::CompletedLate))
                } else if may(Move::KeepCompletion(claim)) {
                    self.with(who, at(Settling::KeepCompletion))
                } else {
                    self.completion_settled(who)
                };
                return put("reads the row", Ok(world));
            }
            Settling::Read { ended } => {
                let kept =
                    record.is_some_and(|row| row.late_completion && row.claim == Some(claim));
                let world = if kept {
                    self.with(who, at(Settling::Adopt { ended }))
                } else {
                    self.end(who, then, terms)
                };
                return put("reads the row", Ok(world));
            }
            Settling::Completed => Statement::CompleteInFlight(claim),
            Settling::CompletedLate => Statement::Move(Move::Complete(claim)),
            Settling::KeepCompletion => Statement::Move(Move::KeepCompletion(claim)),
            Settling::InsertCompleted => Statement::InsertCompleted(claim),
            Settling::NotRun { evident } => Statement::Move(Move::SettleNotRun { claim, evident }),
            Settling::Unknown { .. } => Statement::Move(Move::SettleUnknown(claim)),
            Settling::Adopt { .. } => Statement::Move(Move::AdoptOwn(claim)),
        };
        let (lost, refused) = match settling {
            Settling::Completed | Settling::CompletedRead => {
                (at(Settling::Completed), at(Settling::CompletedRead))
            }
            Settling::CompletedLate | Settling::KeepCompletion | Settling::InsertCompleted => {
                (at(Settling::Completed), at(Settling::CompletedRead))
            }
            Settling::NotRun { evident } => {
                let ended = if evident { Ended::EvidentlyNotRun } else { Ended::NotRun };
                (first(ended), at(Settling::Unknown { ended }))
            }
            Settling::Unknown { ended } | Settling::Read { ended } | Settling::Adopt { ended } => {
                (first(ended), at(Settling::Read { ended }))
            }
        };
        let completes = lost == at(Settling::Completed);
        let answered = |world: &Self, changed: bool| match (changed, settling) {
            (_, Settling::Adopt { .. }) | (false, _) => world.with(who, refused),
            (true, _) if completes => world.completion_settled(who),
            (true, _) => world.end(who, then, terms),
        };
        self.send(bounds, who, statement, terms, lost, answered, found);
    }

    fn completion_settled(&self, who: usize) -> Self {
        let mut world = self.with(who, Delivery::Away);
        world.completion_settled = true;
        world
    }

    fn end(&self, who: usize, then: Then, terms: u8) -> Self {
        match then {
            Then::End => self.with(who, Delivery::Away),
            Then::Look => self.with(who, looks(terms, 0)),
        }
    }

    fn with(&self, who: usize, delivery: Delivery) -> Self {
        let mut world = self.clone();
        world.deliveries[who] = delivery;
        world
    }
}

/// Who has sent no claim is in no other place than a delivery that has yet to arrive.
fn looks(terms: u8, unanswered: Claim) -> Delivery {
    if unanswered == 0 { Delivery::Away } else { Delivery::Look { terms, unanswered } }
}

impl Attempt {
    fn maybe_acted(&self) -> bool {
        self.maybe_since.is_some() || self.ambiguous
    }

    fn remembered(&self, terms: &Terms, now: Micros) -> bool {
        let first = self.maybe_since.unwrap_or(self.begun);
        terms.key_memory.is_none_or(|memory| now + terms.timeout <= first + memory)
    }
}

fn inserted(claim: Claim, now: Micros, terms: &Terms) -> Record<Claim> {
    Record {
        state: State::InFlight,
        claim: Some(claim),
        attempt: 1,
        lapses: 0,
        maybe_since: None,
        last_claimed_at: now,
        lease_until: now + LEASE,
        effect: terms.effect,
        sent_as: terms.sent_as,
        too_many: false,
        late_completion: false,
        approved: false,
    }
}

/// The claim that a move makes, if it makes one.
pub(super) fn claim_of(step: Move<Claim>) -> Option<Claim> {
    match step {
        Move::Reclaim { new, .. } | Move::Resend { new, .. } | Move::TakeOver { new, .. } => {
            Some(new)
        }
        Move::Renew(_)
        | Move::Lapse { .. }
        | Move::Complete(_)
        | Move::KeepCompletion(_)
        | Move::Adopt { .. }
        | Move::AdoptOwn(_)
        | Move::SettleNotRun { .. }
        | Move::SettleUnknown(_)
        | Move::Prove { .. }
        | Move::Hold { .. }
        | Move::Approve => None,
    }
}

fn name(statement: Statement) -> &'static str {
    match statement {
        Statement::Insert(_) => "claims",
        Statement::InsertHeld => "inserts the row as held",
        Statement::Move(Move::Reclaim { .. }) => "claims what was not run",
        Statement::Move(Move::Resend { .. }) => "claims what is unknown",
        Statement::Move(Move::TakeOver { .. }) => "takes over",
        Statement::Move(Move::Renew(_)) => "renews",
        Statement::Move(Move::Lapse { .. }) => "says that a lapsed claim is unknown",
        Statement::Move(Move::Complete(_)) => "completes the row late",
        Statement::Move(Move::KeepCompletion(_)) => "keeps its completion",
        Statement::Move(Move::Adopt { .. }) => "adopts the kept completion",
        Statement::Move(Move::AdoptOwn(_)) => "adopts the completion kept for it",
        Statement::Move(Move::SettleNotRun { .. }) => "settles as not run",
        Statement::Move(Move::Prove { .. }) => "settles by evidence",
        Statement::Move(Move::Hold { .. }) => "holds the row",
        Statement::Move(Move::Approve) => "approves",
        Statement::Move(Move::SettleUnknown(_)) => "settles as unknown",
        Statement::CompleteInFlight(_) => "completes the row",
        Statement::InsertCompleted(_) => "inserts a completed row",
    }
}

fn failure() -> Failure {
    Failure { branch: Branch::Lost, phase: Phase::Send, message: String::new(), retry_after: None }
}

fn outcome() -> Outcome {
    Outcome::default()
}
