//! States and legal moves, pure.
//!
//! A state is a statement about the world. Every change of a row is one [`Move`]; [`permits`] says
//! when it may be made and [`apply`] what it leaves behind. The statements in
//! `statements.rs` repeat both, guard for guard, and the tests hold one against the other.
//!
//! What the guards keep, whatever workers do and whenever they die:
//! - an `unkeyed_write` is begun only while no request under its key may have been received;
//! - `not_run` is said only while no request under the key may have been received;
//! - a completion that somebody saw is never lost, and a completed row never changes.

use crate::outcome::EffectClass;

/// What a row says of the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// An attempt may be acting.
    InFlight,
    /// It happened, or was answered for good.
    Completed,
    /// It is known not to have happened.
    NotRun,
    /// It may or may not have happened.
    Unknown,
    /// Nothing was sent; a person must say whether it may be.
    Held,
}

impl State {
    /// The state's name in the ledger and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InFlight => "in_flight",
            Self::Completed => "completed",
            Self::NotRun => "not_run",
            Self::Unknown => "unknown",
            Self::Held => "held",
        }
    }

    /// The state of that name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::InFlight, Self::Completed, Self::NotRun, Self::Unknown, Self::Held]
            .into_iter()
            .find(|state| state.as_str() == name)
    }
}

/// Microseconds of the database's clock.
pub type Micros = i64;

/// The part of a row that decides what may be done with it.
///
/// `C` is the claim id's type: a UUID in the ledger, a small number in a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record<C> {
    /// What it says.
    pub state: State,
    /// The claim that acts, or acted last; none if nothing was ever claimed.
    pub claim: Option<C>,
    /// How many claims there have been.
    pub attempt: i32,
    /// Takeovers with no settling between.
    pub lapses: i32,
    /// From when an attempt before this one may have acted.
    pub maybe_since: Option<Micros>,
    /// When the last claim was made.
    pub last_claimed_at: Micros,
    /// Until when the claim stands without renewal.
    pub lease_until: Micros,
    /// The tool's class when the claim was made.
    pub effect: EffectClass,
    /// Where the request went.
    pub sent_as: [u8; 32],
    /// Whether too many attempts lapsed; such a row is never sent again.
    pub too_many: bool,
    /// Whether a completion came late and is kept in the history.
    pub late_completion: bool,
    /// Whether a person said that it may run.
    pub approved: bool,
}

/// What a caller brings to a row: its tool as it is registered now.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// The tool's class.
    pub effect: EffectClass,
    /// Where a request would go.
    pub sent_as: [u8; 32],
    /// How long one request may take.
    pub timeout: Micros,
    /// How long the downstream remembers a key; none: for ever.
    pub key_memory: Option<Micros>,
    /// How many takeovers may follow each other.
    pub max_attempts: i32,
    /// Whether a person must say of each call that it may run.
    pub approval: bool,
}

/// What evidence says of an unknown call: a probe's answer that counts, or a person's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// It was answered for good.
    Completed,
    /// No request under the key has acted, and none can any more.
    NotRun,
}

/// One change of a row. Beside the key, each names the claim that it belongs to or has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move<C> {
    /// Claim a row that is known not to have run.
    Reclaim {
        /// The claim that was read.
        seen: Option<C>,
        /// The claim that is made.
        new: C,
    },
    /// Claim an unknown keyed row, to send it again under the same key.
    Resend {
        /// The claim that was read.
        seen: Option<C>,
        /// The claim that is made.
        new: C,
    },
    /// Keep a claim.
    Renew(C),
    /// Claim a keyed row whose lease ran out.
    TakeOver {
        /// The claim that was read.
        seen: C,
        /// The claim that is made.
        new: C,
    },
    /// Say of a row whose lease ran out that it is unknown.
    Lapse {
        /// The claim that was read.
        seen: C,
        /// Whether it is so because too many attempts lapsed.
        too_many: bool,
    },
    /// Record that a claim's attempt was answered for good.
    Complete(C),
    /// Keep a claim's completion while another attempt runs.
    KeepCompletion(C),
    /// Complete a row whose lease ran out from the completion that was kept.
    Adopt {
        /// The claim that was read.
        seen: C,
    },
    /// Complete a claim's own row from the completion that was kept.
    AdoptOwn(C),
    /// Record that a claim's attempt left nothing behind.
    SettleNotRun {
        /// The attempt's claim.
        claim: C,
        /// Whether it is also evident that no attempt before it left anything behind.
        evident: bool,
    },
    /// Record that a claim's attempt may have acted.
    SettleUnknown(C),
    /// Settle an unknown row by evidence.
    Prove {
        /// The claim that was read.
        seen: Option<C>,
        /// What is evident.
        evidence: Evidence,
    },
    /// Hold a row that is known not to have run, until a person has said that it may.
    Hold {
        /// The claim that was read.
        seen: Option<C>,
    },
    /// Let a held row run.
    Approve,
}

/// Whether the row is keyed in everybody's eyes: the stricter of the row's class and the
/// registry's counts, and the same key means the same place.
fn same_key<C>(row: &Record<C>, terms: &Terms) -> bool {
    row.effect == EffectClass::KeyedWrite
        && terms.effect == EffectClass::KeyedWrite
        && row.sent_as == terms.sent_as
}

/// Whether the downstream still remembers the key when a request begun now would end.
fn remembered<C>(row: &Record<C>, now: Micros, terms: &Terms) -> bool {
    let first_request = row.maybe_since.unwrap_or(row.last_claimed_at);
    terms.key_memory.is_none_or(|memory| {
        now.saturating_add(terms.timeout) <= first_request.saturating_add(memory)
    })
}

fn may_send_again<C>(row: &Record<C>, now: Micros, terms: &Terms) -> bool {
    same_key(row, terms) && remembered(row, now, terms) && !row.too_many && !row.late_completion
}

/// Whether a move may be made on a row as it stands.
pub fn permits<C: Copy + PartialEq>(
    row: &Record<C>,
    step: Move<C>,
    now: Micros,
    terms: &Terms,
) -> bool {
    let lapsed = row.state == State::InFlight && row.lease_until < now;
    match step {
        Move::Reclaim { seen, .. } => {
            row.state == State::NotRun && row.claim == seen && (row.approved || !terms.approval)
        }
        Move::Resend { seen, .. } => {
            row.state == State::Unknown && row.claim == seen && may_send_again(row, now, terms)
        }
        Move::Renew(claim) => row.state == State::InFlight && row.claim == Some(claim),
        Move::TakeOver { seen, .. } => {
            lapsed
                && row.claim == Some(seen)
                && row.lapses < terms.max_attempts
                && may_send_again(row, now, terms)
        }
        Move::Lapse { seen, .. } => lapsed && row.claim == Some(seen) && !row.late_completion,
        Move::Complete(claim) => match row.state {
            State::InFlight => row.claim == Some(claim),
            State::Unknown | State::NotRun | State::Held => true,
            State::Completed => false,
        },
        Move::KeepCompletion(claim) => {
            row.state == State::InFlight && row.claim != Some(claim) && !row.late_completion
        }
        // While a claim's lease stands its attempt may begin a request, and nothing is begun under
        // a key that is completed.
        Move::Adopt { seen } => lapsed && row.claim == Some(seen) && row.late_completion,
        Move::AdoptOwn(claim) => {
            row.state == State::InFlight && row.claim == Some(claim) && row.late_completion
        }
        Move::SettleNotRun { claim, evident } => {
            row.claim == Some(claim)
                && match row.state {
                    State::InFlight | State::Unknown => true,
                    State::Completed | State::NotRun | State::Held => false,
                }
                && (row.maybe_since.is_none() || evident)
                && !row.late_completion
        }
        Move::SettleUnknown(claim) => {
            row.state == State::InFlight && row.claim == Some(claim) && !row.late_completion
        }
        Move::Prove { seen, .. } => row.state == State::Unknown && row.claim == seen,
        Move::Hold { seen } => {
            row.state == State::NotRun && row.claim == seen && terms.approval && !row.approved
        }
        Move::Approve => row.state == State::Held,
    }
}

/// The row that a permitted move leaves behind; `None` changes nothing.
///
/// `lease` is how long a claim that is made or kept stands.
pub fn apply<C: Copy + PartialEq>(
    row: &Record<C>,
    step: Move<C>,
    now: Micros,
    lease: Micros,
    terms: &Terms,
) -> Option<Record<C>> {
    if !permits(row, step, now, terms) {
        return None;
    }
    let mut next = row.clone();
    match step {
        Move::Reclaim { new, .. } => {
            next.effect = terms.effect;
            next.sent_as = terms.sent_as;
            claim(&mut next, new, now, lease);
        }
        Move::Resend { new, .. } => {
            next.maybe_since = row.maybe_since.or(Some(row.last_claimed_at));
            claim(&mut next, new, now, lease);
        }
        Move::TakeOver { new, .. } => {
            next.maybe_since = row.maybe_since.or(Some(row.last_claimed_at));
            next.lapses += 1;
            claim(&mut next, new, now, lease);
        }
        Move::Renew(_) => next.lease_until = now + lease,
        Move::Lapse { too_many, .. } => {
            next.state = State::Unknown;
            next.too_many = too_many;
        }
        Move::Complete(_) | Move::Adopt { .. } | Move::AdoptOwn(_) => {
            settle(&mut next, State::Completed);
        }
        Move::KeepCompletion(_) => next.late_completion = true,
        Move::SettleNotRun { evident, .. } => {
            settle(&mut next, State::NotRun);
            next.maybe_since = None;
            next.too_many &= !evident;
        }
        Move::SettleUnknown(_) => settle(&mut next, State::Unknown),
        Move::Prove { evidence: Evidence::Completed, .. } => settle(&mut next, State::Completed),
        Move::Prove { evidence: Evidence::NotRun, .. } => {
            settle(&mut next, State::NotRun);
            next.maybe_since = None;
            next.too_many = false;
        }
        Move::Hold { .. } => next.state = State::Held,
        Move::Approve => {
            next.state = State::NotRun;
            next.approved = true;
        }
    }
    Some(next)
}

fn claim<C>(row: &mut Record<C>, new: C, now: Micros, lease: Micros) {
    row.state = State::InFlight;
    row.claim = Some(new);
    row.attempt += 1;
    row.last_claimed_at = now;
    row.lease_until = now + lease;
}

fn settle<C>(row: &mut Record<C>, state: State) {
    row.state = state;
    row.lapses = 0;
}

/// What a delivery does about a row that it found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Course<C> {
    /// Answer from the row.
    Answer,
    /// Another attempt is outstanding: wait for it, then park.
    Wait,
    /// Try this move, and read again if no row changed.
    Try(Move<C>),
}

/// Chooses what a delivery does about a row; `new` is the claim that it would make.
pub fn course<C: Copy + PartialEq>(
    row: &Record<C>,
    new: C,
    now: Micros,
    terms: &Terms,
) -> Course<C> {
    let seen = row.claim;
    let choices = [
        seen.map(|seen| Move::Adopt { seen }),
        Some(Move::Hold { seen }),
        Some(Move::Reclaim { seen, new }),
        Some(Move::Resend { seen, new }),
        seen.map(|seen| Move::TakeOver { seen, new }),
        seen.map(|seen| Move::Lapse {
            seen,
            too_many: same_key(row, terms) && row.lapses >= terms.max_attempts,
        }),
    ];
    let choice = choices.into_iter().flatten().find(|&step| permits(row, step, now, terms));
    match (choice, row.state) {
        (Some(step), _) => Course::Try(step),
        (None, State::InFlight) => Course::Wait,
        (None, State::Completed | State::NotRun | State::Unknown | State::Held) => Course::Answer,
    }
}

#[cfg(test)]
mod tests;
