//! Properties of single moves on random rows, reachable or not.

use proptest::prelude::*;

use super::super::{Course, Evidence, Micros, Move, Record, State, Terms, apply, course, permits};
use crate::outcome::EffectClass;

const MAX_ATTEMPTS: i32 = 3;

fn effect() -> impl Strategy<Value = EffectClass> {
    prop_oneof![4 => Just(EffectClass::KeyedWrite), 1 => Just(EffectClass::UnkeyedWrite)]
}

fn place() -> impl Strategy<Value = [u8; 32]> {
    prop_oneof![4 => Just([0; 32]), 1 => Just([1; 32])]
}

prop_compose! {
    /// A row as the schema lets it be, times around zero.
    fn record()(
        state in prop_oneof![
            4 => Just(State::InFlight),
            1 => Just(State::Completed),
            2 => Just(State::NotRun),
            2 => Just(State::Unknown),
            1 => Just(State::Held),
        ],
        claim in prop::option::of(0..3_u8),
        attempt in 0..9_i32,
        lapses in 0..=MAX_ATTEMPTS + 1,
        maybe_since in prop::option::of(-20..0_i64),
        last_claimed_at in -20..0_i64,
        lease_until in -20..20_i64,
        effect in effect(),
        sent_as in place(),
        too_many in prop::bool::weighted(0.1),
        late_completion in prop::bool::weighted(0.1),
        approved in any::<bool>(),
    ) -> Record<u8> {
        let not_run = matches!(state, State::NotRun | State::Held);
        Record {
            state,
            claim: if state == State::InFlight { Some(claim.unwrap_or(0)) } else { claim },
            attempt,
            lapses,
            maybe_since: maybe_since.filter(|_| !not_run),
            last_claimed_at,
            lease_until,
            effect,
            sent_as,
            too_many,
            late_completion,
            approved,
        }
    }
}

prop_compose! {
    fn terms()(
        effect in effect(),
        sent_as in place(),
        timeout in 1..5_i64,
        key_memory in prop::option::of(0..30_i64),
        approval in prop::bool::weighted(0.2),
    ) -> Terms {
        Terms { effect, sent_as, timeout, key_memory, max_attempts: MAX_ATTEMPTS, approval }
    }
}

fn step() -> impl Strategy<Value = Move<u8>> {
    let (claim, new) = (0..3_u8, 3..6_u8);
    prop_oneof![
        (prop::option::of(claim.clone()), new.clone())
            .prop_map(|(seen, new)| Move::Reclaim { seen, new }),
        (prop::option::of(claim.clone()), new.clone())
            .prop_map(|(seen, new)| Move::Resend { seen, new }),
        claim.clone().prop_map(Move::Renew),
        (claim.clone(), new).prop_map(|(seen, new)| Move::TakeOver { seen, new }),
        (claim.clone(), any::<bool>()).prop_map(|(seen, too_many)| Move::Lapse { seen, too_many }),
        claim.clone().prop_map(Move::Complete),
        claim.clone().prop_map(Move::KeepCompletion),
        claim.clone().prop_map(|seen| Move::Adopt { seen }),
        claim.clone().prop_map(Move::AdoptOwn),
        (claim.clone(), any::<bool>())
            .prop_map(|(claim, evident)| Move::SettleNotRun { claim, evident }),
        claim.clone().prop_map(Move::SettleUnknown),
        (prop::option::of(claim.clone()), evidence())
            .prop_map(|(seen, evidence)| Move::Prove { seen, evidence }),
        prop::option::of(claim).prop_map(|seen| Move::Hold { seen }),
        Just(Move::Approve),
    ]
}

fn evidence() -> impl Strategy<Value = Evidence> {
    prop_oneof![Just(Evidence::Completed), Just(Evidence::NotRun)]
}

/// The claim that a move belongs to or has seen, and the claim that it makes.
fn claims(step: Move<u8>) -> (Option<Option<u8>>, Option<u8>) {
    match step {
        Move::Reclaim { seen, new } | Move::Resend { seen, new } => (Some(seen), Some(new)),
        Move::TakeOver { seen, new } => (Some(Some(seen)), Some(new)),
        Move::Lapse { seen, .. } => (Some(Some(seen)), None),
        Move::Adopt { seen } => (Some(Some(seen)), None),
        Move::Renew(claim)
        | Move::AdoptOwn(claim)
        | Move::SettleNotRun { claim, .. }
        | Move::SettleUnknown(claim) => (Some(Some(claim)), None),
        Move::Prove { seen, .. } | Move::Hold { seen } => (Some(seen), None),
        // A completion is kept whatever became of its claim, and a person approves a call.
        Move::Complete(_) | Move::KeepCompletion(_) | Move::Approve => (None, None),
    }
}

const NOW: Micros = 0;
const LEASE: Micros = 10;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn a_move_is_applied_exactly_if_it_is_permitted(
        row in record(), step in step(), terms in terms()
    ) {
        let next = apply(&row, step, NOW, LEASE, &terms);
        prop_assert_eq!(next.is_some(), permits(&row, step, NOW, &terms));
    }

    #[test]
    fn a_completed_row_never_changes(
        mut row in record(), step in step(), terms in terms()
    ) {
        row.state = State::Completed;
        prop_assert_eq!(apply(&row, step, NOW, LEASE, &terms), None);
    }

    #[test]
    fn a_held_row_waits_for_a_person_or_for_the_truth(
        mut row in record(), step in step(), terms in terms()
    ) {
        row.state = State::Held;
        let next = apply(&row, step, NOW, LEASE, &terms).map(|next| next.state);
        let expected = match step {
            Move::Approve => Some(State::NotRun),
            Move::Complete(_) => Some(State::Completed),
            Move::Reclaim { .. }
            | Move::Resend { .. }
            | Move::Renew(_)
            | Move::TakeOver { .. }
            | Move::Lapse { .. }
            | Move::KeepCompletion(_)
            | Move::Adopt { .. }
            | Move::AdoptOwn(_)
            | Move::SettleNotRun { .. }
            | Move::SettleUnknown(_)
            | Move::Prove { .. }
            | Move::Hold { .. } => None,
        };
        prop_assert_eq!(next, expected);
    }

    #[test]
    fn what_needs_approval_is_claimed_afresh_only_with_it(
        row in record(), seen in prop::option::of(0..3_u8), mut terms in terms()
    ) {
        terms.approval = true;
        if !row.approved {
            let reclaim = Move::Reclaim { seen, new: 9 };
            prop_assert!(!permits(&row, reclaim, NOW, &terms));
        }
    }

    #[test]
    fn a_move_that_names_another_claim_is_never_permitted(
        row in record(), step in step(), terms in terms()
    ) {
        if let (Some(named), _) = claims(step) && named != row.claim {
            prop_assert!(!permits(&row, step, NOW, &terms));
        }
    }

    #[test]
    fn only_claiming_moves_change_claim_and_attempt_and_each_by_one(
        row in record(), step in step(), terms in terms()
    ) {
        let Some(next) = apply(&row, step, NOW, LEASE, &terms) else { return Ok(()) };
        let (_, made) = claims(step);
        prop_assert_eq!(next.claim, made.or(row.claim));
        prop_assert_eq!(next.attempt - row.attempt, i32::from(made.is_some()));
        if made.is_some() {
            prop_assert_eq!(next.state, State::InFlight);
            prop_assert_eq!((next.last_claimed_at, next.lease_until), (NOW, NOW + LEASE));
        } else {
            prop_assert_eq!(next.last_claimed_at, row.last_claimed_at);
        }
    }

    #[test]
    fn what_may_have_acted_is_never_forgotten(
        row in record(), step in step(), terms in terms()
    ) {
        let Some(next) = apply(&row, step, NOW, LEASE, &terms) else { return Ok(()) };
        let by_evidence = matches!(
            step,
            Move::Prove { evidence: Evidence::NotRun, .. } | Move::SettleNotRun { evident: true, .. }
        );
        if row.maybe_since.is_some() && !by_evidence {
            prop_assert_eq!(next.maybe_since, row.maybe_since);
        }
        if matches!(step, Move::Resend { .. } | Move::TakeOver { .. }) {
            prop_assert_eq!(next.maybe_since, row.maybe_since.or(Some(row.last_claimed_at)));
        }
        prop_assert!(next.state != State::NotRun || next.maybe_since.is_none());
        prop_assert!(!row.late_completion || next.late_completion);
    }

    #[test]
    fn only_keyed_rows_of_the_same_place_are_sent_again_while_the_key_is_remembered(
        row in record(), step in step(), terms in terms()
    ) {
        let Some(next) = apply(&row, step, NOW, LEASE, &terms) else { return Ok(()) };
        if !matches!(step, Move::Resend { .. } | Move::TakeOver { .. }) {
            return Ok(());
        }
        prop_assert_eq!((row.effect, terms.effect), (EffectClass::KeyedWrite, EffectClass::KeyedWrite));
        prop_assert_eq!(row.sent_as, terms.sent_as);
        let ends = NOW + terms.timeout;
        let first = next.maybe_since.unwrap();
        prop_assert!(terms.key_memory.is_none_or(|memory| ends <= first + memory));
        prop_assert!(!row.too_many && !row.late_completion);
    }

    #[test]
    fn a_lease_that_stands_is_nobody_elses(
        row in record(), step in step(), terms in terms()
    ) {
        if row.state == State::InFlight
            && row.lease_until >= NOW
            && matches!(step, Move::TakeOver { .. } | Move::Lapse { .. })
        {
            prop_assert!(!permits(&row, step, NOW, &terms));
        }
    }

    #[test]
    fn a_delivery_chooses_what_is_permitted_and_waits_for_live_leases_alone(
        row in record(), terms in terms()
    ) {
        match course(&row, 9, NOW, &terms) {
            Course::Try(step) => prop_assert!(permits(&row, step, NOW, &terms)),
            Course::Wait => {
                prop_assert_eq!(row.state, State::InFlight);
                prop_assert!(row.lease_until >= NOW);
            }
            Course::Answer => prop_assert_ne!(row.state, State::InFlight),
        }
    }

    #[test]
    fn a_row_that_was_not_run_is_claimed_as_the_tool_is_now(
        mut row in record(), terms in terms()
    ) {
        row.state = State::NotRun;
        row.maybe_since = None;
        row.late_completion = false;
        row.approved |= terms.approval;
        let Course::Try(step @ Move::Reclaim { .. }) = course(&row, 9, NOW, &terms) else {
            return Err(TestCaseError::fail("it was not claimed"));
        };
        let next = apply(&row, step, NOW, LEASE, &terms).unwrap();
        prop_assert_eq!((next.effect, next.sent_as), (terms.effect, terms.sent_as));
    }
}
