//! What is made of answers.

use super::*;

const NOT_RUN: [u16; 3] = [503, 429, 425];

fn answer(status: u16, body: &str) -> Result<Exchange, String> {
    Ok(Exchange { status, replay_header: None, body: body.into() })
}

fn replay(body: &str) -> Result<Exchange, String> {
    let replay_header = Some("idempotent-replayed".to_owned());
    Ok(Exchange { status: 200, replay_header, body: body.into() })
}

fn seen(check: Check, second: Result<Exchange, String>) -> Seen {
    // Another key has another answer.
    let first = answer(200, &format!("{check:?}"));
    Seen { check, found: found(&NOT_RUN, &first, &second), first, second, state: None }
}

fn advice(
    in_a_row: Result<Exchange, String>,
    at_once: Result<Exchange, String>,
    late: Result<Exchange, String>,
) -> Advice {
    Advice::of(&[
        seen(Check::InARow, in_a_row),
        seen(Check::AtOnce, at_once),
        seen(Check::OtherBody, answer(422, "")),
        seen(Check::Late, late),
    ])
}

#[test]
fn a_repeat_is_judged_by_its_answer_and_the_first_ones() {
    let same = || answer(200, "a");
    for (first, second, expected) in [
        (same(), replay("b"), Found::Replayed),
        (same(), same(), Found::SameAnswer),
        (same(), answer(201, "b"), Found::AnotherAnswer),
        (same(), answer(409, ""), Found::Refused),
        (same(), answer(429, ""), Found::Unclear),
        (same(), answer(408, ""), Found::Unclear),
        (same(), answer(500, ""), Found::Unclear),
        (same(), answer(302, ""), Found::Unclear),
        (same(), Err("cut".to_owned()), Found::Unclear),
        // A header that every answer has tells nothing.
        (replay("a"), replay("b"), Found::AnotherAnswer),
        (replay("a"), replay("a"), Found::SameAnswer),
        (answer(401, ""), answer(401, ""), Found::NoSuccess),
        (Err("cut".to_owned()), same(), Found::NoSuccess),
    ] {
        assert_eq!(found(&NOT_RUN, &first, &second), expected, "{first:?}, {second:?}");
    }
}

#[test]
fn only_a_downstream_that_collapses_every_repeat_is_said_to() {
    let (row, once, late) =
        (|| answer(200, "InARow"), || answer(200, "AtOnce"), || answer(200, "Late"));
    assert_eq!(advice(row(), once(), late()).collapses, Some(true));
    assert_eq!(advice(row(), answer(409, ""), replay("x")).collapses, Some(true));
    // Checked, then acted: only the two at once get through.
    assert_eq!(advice(row(), answer(200, "x"), late()).collapses, Some(false));
    // Forgotten.
    assert_eq!(advice(row(), once(), answer(200, "x")).collapses, Some(false));
    assert_eq!(advice(row(), answer(500, ""), late()).collapses, None);
    assert_eq!(advice(row(), once(), Err("cut".to_owned())).collapses, None);
    let first = [seen(Check::InARow, row())];
    assert_eq!(Advice::of(&first).collapses, None, "one repeat of three");
}

#[test]
fn statuses_are_named_for_what_they_meant_and_each_once() {
    let late = || replay("Late");
    let fields = advice(replay("InARow"), answer(409, ""), late()).registry;
    assert_eq!((fields.in_progress_status, fields.duplicate_status), (vec![409], vec![]));
    assert_eq!(fields.key_reused_status, [422]);
    assert_eq!(fields.replay_header.as_deref(), Some("idempotent-replayed"));

    // The registry would refuse one status in two lists.
    let advised = advice(answer(409, ""), answer(409, ""), answer(409, ""));
    assert!(advised.notes.iter().any(|note| note.contains("a probe would tell them apart")));
    let fields = advised.registry;
    assert_eq!((fields.in_progress_status, fields.duplicate_status), (vec![], vec![409]));
    let fields = advice(answer(422, ""), answer(409, ""), late()).registry;
    assert_eq!((fields.duplicate_status, fields.key_reused_status), (vec![422], vec![]));
}
