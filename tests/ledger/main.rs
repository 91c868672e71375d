//! Holds the ledger's statements against the pure moves that they repeat, on a real server.

#![expect(clippy::unwrap_used, reason = "a set-up that fails is a test that fails")]

mod batches;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use callonce::call::job::{Job, Limits};
use callonce::ledger::state::{Evidence, Move, Record, State, Terms, apply, permits};
use callonce::ledger::{
    ClaimAgain, ClaimRequest, Ledger, PoolSettings, Proof, ProofBy, Settle, Settling, Waits,
};
use callonce::outcome::{EffectClass, Outcome};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

const LEASE: Duration = Duration::from_secs(60);
const MEMORY: Duration = Duration::from_secs(600);
const MICROS: i64 = 1_000_000;

/// A ledger in a schema of its own, which goes at the end.
struct Place {
    ledger: Ledger,
    sql: deadpool_postgres::Pool,
    schema: String,
    url: String,
}

impl Place {
    async fn new() -> Self {
        let url = std::env::var("DATABASE_URL").unwrap_or_else(|_| {
            panic!("no DATABASE_URL: run make test, or make services and eval \"$(scripts/services env)\"")
        });
        let schema = format!("t_{}", Uuid::new_v4().simple());
        let settings = PoolSettings { size: 40, connect_timeout: LEASE, checkout_timeout: LEASE };
        let all = callonce::ledger::pool(&url, settings).unwrap();
        let create = format!("CREATE SCHEMA {schema}");
        all.get().await.unwrap().batch_execute(&create).await.unwrap();
        let separator = if url.contains('?') { '&' } else { '?' };
        let url = format!("{url}{separator}options=-c%20search_path%3D{schema}");
        let ledger = Ledger::new(&url, settings, LEASE).unwrap();
        Self { ledger, sql: callonce::ledger::pool(&url, settings).unwrap(), schema, url }
    }

    async fn migrated() -> Self {
        let place = Self::new().await;
        place.ledger.migrate().await.unwrap();
        place
    }

    async fn run(&self, sql: &str) {
        self.sql.get().await.unwrap().batch_execute(sql).await.unwrap();
    }

    async fn close(self) {
        self.run(&format!("DROP SCHEMA {} CASCADE", self.schema)).await;
    }
}

fn job(conversation: &str, args: &str) -> Arc<Job> {
    let body = format!(
        r#"{{"conversation_id":"{conversation}","turn_index":1,"name":"t","args":{args}}}"#
    );
    Arc::new(Job::decode(&Bytes::from(body), None, None, &Limits::default()).unwrap())
}

fn request(job: &Arc<Job>, terms: Terms) -> ClaimRequest {
    ClaimRequest { job: job.clone(), terms, lease: LEASE, worker: "w".into() }
}

fn terms(which: u8) -> Terms {
    let keyed = Terms {
        effect: EffectClass::KeyedWrite,
        sent_as: [1; 32],
        timeout: MICROS,
        key_memory: None,
        max_attempts: 2,
        approval: false,
    };
    let memory = i64::try_from(MEMORY.as_micros()).unwrap();
    match which {
        0 => keyed,
        1 => Terms { effect: EffectClass::UnkeyedWrite, ..keyed },
        2 => Terms { sent_as: [2; 32], ..keyed },
        3 => Terms { approval: true, ..keyed },
        _ => Terms { key_memory: Some(memory), ..keyed },
    }
}

fn outcome(text: &str) -> Outcome {
    let content = Some(RawValue::from_string(text.to_owned()).unwrap());
    Outcome { content, ..Outcome::default() }
}

/// What happens to a row: a move by one of four claims under one of four terms, or time.
#[derive(Debug, Clone, Copy)]
enum Step {
    Insert {
        claim: usize,
        terms: u8,
    },
    /// `aimed`: with the claim that the row has, whichever the move names.
    Move {
        step: Move<usize>,
        terms: u8,
        aimed: bool,
    },
    LeaseRunsOut,
    AnHourPasses,
}

fn step() -> impl Strategy<Value = Step> {
    let claim = 0..4_usize;
    let two = || (0..4_usize, 0..4_usize);
    // A completed row takes no more moves, so it is completed seldom.
    let step = prop_oneof![
        5 => two().prop_map(|(seen, new)| Move::Reclaim { seen: Some(seen), new }),
        5 => two().prop_map(|(seen, new)| Move::Resend { seen: Some(seen), new }),
        5 => claim.clone().prop_map(Move::Renew),
        5 => two().prop_map(|(seen, new)| Move::TakeOver { seen, new }),
        5 => (claim.clone(), any::<bool>()).prop_map(|(seen, too_many)| Move::Lapse { seen, too_many }),
        1 => claim.clone().prop_map(Move::Complete),
        5 => claim.clone().prop_map(Move::KeepCompletion),
        5 => claim.clone().prop_map(|seen| Move::Adopt { seen }),
        5 => claim.clone().prop_map(Move::AdoptOwn),
        5 => (claim.clone(), any::<bool>())
            .prop_map(|(claim, evident)| Move::SettleNotRun { claim, evident }),
        5 => claim.clone().prop_map(Move::SettleUnknown),
        1 => claim.clone().prop_map(|seen| Move::Prove { seen: Some(seen), evidence: Evidence::Completed }),
        5 => claim.clone().prop_map(|seen| Move::Prove { seen: Some(seen), evidence: Evidence::NotRun }),
        20 => claim.prop_map(|seen| Move::Hold { seen: Some(seen) }),
        5 => Just(Move::Approve),
    ];
    prop_oneof![
        1 => (0..4_usize, 0..5_u8).prop_map(|(claim, terms)| Step::Insert { claim, terms }),
        12 => (step, 0..5_u8, proptest::bool::weighted(0.6))
            .prop_map(|(step, terms, aimed)| Step::Move { step, terms, aimed }),
        3 => Just(Step::LeaseRunsOut),
        1 => Just(Step::AnHourPasses),
    ]
}

/// One key's row on a real server.
struct OneRow<'a> {
    place: &'a Place,
    job: Arc<Job>,
    claims: [Uuid; 4],
}

impl OneRow<'_> {
    async fn read(&self) -> Option<(Record<usize>, i64)> {
        let row = self.place.ledger.read(self.job.key(), Some(&self.job)).await.unwrap()?;
        let record = row.record;
        let claim =
            record.claim.map(|claim| self.claims.iter().position(|id| *id == claim).unwrap());
        let record = Record {
            claim,
            state: record.state,
            attempt: record.attempt,
            lapses: record.lapses,
            maybe_since: record.maybe_since,
            last_claimed_at: record.last_claimed_at,
            lease_until: record.lease_until,
            effect: record.effect,
            sent_as: record.sent_as,
            too_many: record.too_many,
            late_completion: record.late_completion,
            approved: record.approved,
        };
        Some((record, row.now))
    }

    /// Makes the move on the server; whether a row changed.
    async fn make(&self, step: Move<usize>, terms: &Terms) -> bool {
        let (ledger, request) = (&self.place.ledger, request(&self.job, *terms));
        let id = |claim: usize| self.claims[claim];
        let again = async |seen: Option<usize>, new: usize, how| {
            ledger.claim_again(&request, seen.map(id), id(new), how).await.unwrap().is_some()
        };
        let settle = async |claim: usize, how, evident| {
            let settling = Settling { evident, ..settling(&request, id(claim), 1, "1") };
            ledger.settle(&settling, how).await.unwrap()
        };
        let key = self.job.key();
        match step {
            Move::Reclaim { seen, new } => again(seen, new, ClaimAgain::NotRun).await,
            Move::Resend { seen, new } => again(seen, new, ClaimAgain::Unknown).await,
            Move::TakeOver { seen, new } => again(Some(seen), new, ClaimAgain::Lapsed).await,
            Move::Renew(claim) => {
                !ledger.renew(&[(key, id(claim), LEASE)]).await.unwrap().is_empty()
            }
            Move::Lapse { seen, too_many } => {
                ledger.lapse(key, id(seen), too_many, &outcome("2")).await.unwrap()
            }
            Move::Complete(claim) => {
                settle(claim, Settle::Completed, false).await
                    || settle(claim, Settle::CompletedLate, false).await
            }
            Move::KeepCompletion(claim) => settle(claim, Settle::KeepCompletion, false).await,
            Move::Adopt { seen } => ledger.adopt(key, id(seen), false).await.unwrap(),
            Move::AdoptOwn(claim) => ledger.adopt(key, id(claim), true).await.unwrap(),
            Move::SettleNotRun { claim, evident } => settle(claim, Settle::NotRun, evident).await,
            Move::SettleUnknown(claim) => settle(claim, Settle::Unknown, false).await,
            Move::Prove { seen, evidence } => {
                let by = ProofBy::Probe { worker: "w" };
                let proof = Proof { evidence, outcome: outcome("3"), by };
                ledger.prove(key, seen.map(id), &proof).await.unwrap()
            }
            // What asks to hold a row has seen that its tool needs approval.
            Move::Hold { seen } => terms.approval && ledger.hold(key, seen.map(id)).await.unwrap(),
            Move::Approve => ledger.approve(key, "me", "it may").await.unwrap(),
        }
    }

    async fn check(&self, step: Step) -> Result<Option<State>, TestCaseError> {
        let before = self.read().await;
        match step {
            Step::Insert { claim, terms: which } => {
                let request = request(&self.job, terms(which));
                let granted = self.place.ledger.claim(&request, self.claims[claim]).await.unwrap();
                prop_assert_eq!(granted.is_some(), before.is_none());
            }
            Step::LeaseRunsOut => {
                self.place
                    .run("UPDATE callonce_calls SET lease_until = now() - interval '1 second'")
                    .await;
            }
            Step::AnHourPasses => {
                let earlier = "UPDATE callonce_calls SET last_claimed_at = last_claimed_at - interval '1 hour',
                               maybe_since = maybe_since - interval '1 hour'";
                self.place.run(earlier).await;
            }
            Step::Move { step, terms: which, aimed } => {
                let Some((record, now)) = before else { return Ok(None) };
                let step = record.claim.filter(|_| aimed).map_or(step, |claim| aim(step, claim));
                let terms = terms(which);
                let lease = i64::try_from(LEASE.as_micros()).unwrap();
                let expected = apply(&record, step, now, lease, &terms);
                let changed = self.make(step, &terms).await;
                prop_assert_eq!(
                    changed,
                    permits(&record, step, now, &terms),
                    "{:?} on {:?}",
                    step,
                    record
                );
                let (after, _) = self.read().await.unwrap();
                let expected = expected.unwrap_or(record);
                prop_assert_eq!(told(&after), told(&expected), "after {:?}", step);
                return Ok(changed.then_some(after.state));
            }
        }
        Ok(None)
    }
}

/// The same move, belonging to this claim or having seen it.
fn aim(step: Move<usize>, claim: usize) -> Move<usize> {
    match step {
        Move::Reclaim { new, .. } => Move::Reclaim { seen: Some(claim), new },
        Move::Resend { new, .. } => Move::Resend { seen: Some(claim), new },
        Move::TakeOver { new, .. } => Move::TakeOver { seen: claim, new },
        Move::Lapse { too_many, .. } => Move::Lapse { seen: claim, too_many },
        Move::Adopt { .. } => Move::Adopt { seen: claim },
        Move::AdoptOwn(_) => Move::AdoptOwn(claim),
        Move::Renew(_) => Move::Renew(claim),
        Move::Complete(_) => Move::Complete(claim),
        Move::SettleNotRun { evident, .. } => Move::SettleNotRun { claim, evident },
        Move::SettleUnknown(_) => Move::SettleUnknown(claim),
        Move::Prove { evidence, .. } => Move::Prove { seen: Some(claim), evidence },
        Move::Hold { .. } => Move::Hold { seen: Some(claim) },
        Move::Approve => step,
        // A completion is kept of a claim that the row no longer has.
        Move::KeepCompletion(_) => step,
    }
}

/// All of a record but the moments, of which the server has its own.
fn told(record: &Record<usize>) -> impl PartialEq + std::fmt::Debug {
    (
        (record.state, record.claim, record.attempt, record.lapses),
        (record.maybe_since.is_some(), record.effect, record.sent_as),
        (record.too_many, record.late_completion, record.approved),
    )
}

#[test]
fn every_statement_does_what_its_move_says() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let place = runtime.block_on(Place::migrated());
    let (mut steps, mut ends) = (0, [0; 5]);
    let config = Config { cases: 200, failure_persistence: None, ..Config::default() };
    let (counted, ended) =
        (std::cell::RefCell::new(&mut steps), std::cell::RefCell::new(&mut ends));
    let sequence = (0..5_u8, proptest::collection::vec(step(), 10..30));
    let ran = TestRunner::new(config).run(&sequence, |(first, sequence)| {
        runtime.block_on(async {
            let claims = std::array::from_fn(|_| Uuid::new_v4());
            let row = OneRow { place: &place, job: job(&Uuid::new_v4().to_string(), "{}"), claims };
            row.check(Step::Insert { claim: 0, terms: first }).await?;
            for step in sequence {
                let state = row.check(step).await?;
                **counted.borrow_mut() += usize::from(state.is_some());
                let end = match state {
                    Some(State::InFlight) => 0,
                    Some(State::Completed) => 1,
                    Some(State::NotRun) => 2,
                    Some(State::Unknown) => 3,
                    Some(State::Held) => 4,
                    None => continue,
                };
                ended.borrow_mut()[end] += 1;
            }
            place.run("DELETE FROM callonce_calls").await;
            Ok(())
        })
    });
    runtime.block_on(place.close());
    ran.unwrap();
    // About 375 change a row, and 15 to `held`, the rarest: bounds that chance does not reach.
    assert!(
        steps > 250 && ends.iter().all(|count| *count > 0),
        "{steps} moves changed a row, to {ends:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_hundred_claims_at_once_one_is_granted() {
    let place = Place::migrated().await;
    let request = request(&job("c", "{}"), terms(0));
    let claims = (0..100).map(|_| {
        let (ledger, request) = (place.ledger.clone(), request.clone());
        async move { ledger.claim(&request, Uuid::new_v4()).await.unwrap().is_some() }
    });
    let granted = futures_util::future::join_all(claims).await;
    assert_eq!(granted.iter().filter(|granted| **granted).count(), 1);
    place.close().await;
}

#[tokio::test]
async fn a_claim_that_was_not_answered_is_confirmed_and_not_granted_twice() {
    let place = Place::migrated().await;
    let (request, claim) = (request(&job("c", r#"{"a": 1.50}"#), terms(0)), Uuid::new_v4());
    assert!(place.ledger.claim(&request, claim).await.unwrap().is_some());
    assert!(place.ledger.claim(&request, claim).await.unwrap().is_none());
    let confirmed = place.ledger.confirm(&request, claim).await.unwrap().unwrap();
    assert_eq!((confirmed.attempt, &confirmed.args[..]), (1, &br#"{"a": 1.50}"#[..]));
    assert!(place.ledger.confirm(&request, Uuid::new_v4()).await.unwrap().is_none());
    place.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn renewals_in_opposite_order_never_wait_for_each_other_for_ever() {
    let place = Place::migrated().await;
    let mut held = Vec::new();
    for n in 0..40 {
        let (request, claim) = (request(&job(&format!("c{n}"), "{}"), terms(0)), Uuid::new_v4());
        place.ledger.claim(&request, claim).await.unwrap().unwrap();
        held.push((request.job.key(), claim, LEASE));
    }
    let stranger = (held[0].0, Uuid::new_v4(), LEASE);
    let forth: Vec<_> = held.iter().copied().chain([stranger]).collect();
    let back: Vec<_> = held.iter().rev().copied().collect();
    for _ in 0..30 {
        let (first, second) = tokio::join!(place.ledger.renew(&forth), place.ledger.renew(&back));
        assert_eq!((first.unwrap().len(), second.unwrap().len()), (held.len(), held.len()));
    }
    place.close().await;
}

#[tokio::test]
async fn what_text_would_refuse_is_stored_byte_for_byte() {
    let place = Place::migrated().await;
    let deep = format!("{}1{}", "[".repeat(100), "]".repeat(100));
    let large = format!(r#""{}""#, "\\u0000".repeat(170_000));
    let numbers = ["1.50", "123456789012345678901234567890", "-0.0"];
    let texts = [r#""a\u0000b""#, r#""\ud800""#, deep.as_str(), large.as_str()];
    for (n, content) in texts.into_iter().chain(numbers).enumerate() {
        // A lone surrogate is refused in arguments, and a tool may answer one all the same.
        let args = if content.contains("ud800") {
            "{}".to_owned()
        } else {
            format!(r#"{{"t":{content}}}"#)
        };
        let (request, claim) = (request(&job(&format!("c{n}"), &args), terms(0)), Uuid::new_v4());
        let granted = place.ledger.claim(&request, claim).await.unwrap().unwrap();
        let settling = Settling { args: granted.args, ..settling(&request, claim, 1, content) };
        assert!(place.ledger.settle(&settling, Settle::Completed).await.unwrap());
        let row = place.ledger.read(request.job.key(), Some(&request.job)).await.unwrap().unwrap();
        assert_eq!(row.outcome.unwrap().content.unwrap().get(), content);
        let shown = place.ledger.show(request.job.key()).await.unwrap().unwrap();
        assert_eq!(shown.args.unwrap().get(), args);
    }
    place.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_migrations_at_once_make_one_schema() {
    let place = Place::new().await;
    let missing = place.ledger.check().await.unwrap_err().to_string();
    assert!(missing.contains("create_ledger") && missing.contains("callonce migrate"), "{missing}");
    let migrations = (0..10).map(|_| place.ledger.migrate());
    let applied = futures_util::future::join_all(migrations).await;
    let applied: usize = applied.into_iter().map(|applied| applied.unwrap().len()).sum();
    assert_eq!(applied, 2);
    place.ledger.check().await.unwrap();
    place.close().await;
}

fn settling(request: &ClaimRequest, claim: Uuid, attempt: i32, text: &str) -> Settling {
    let (request, args) = (request.clone(), request.job.args.clone());
    Settling { request, claim, attempt, args, outcome: outcome(text), evident: false, trail: None }
}

async fn answer(place: &Place, request: &ClaimRequest) -> (State, Option<String>) {
    let row = place.ledger.read(request.job.key(), Some(&request.job)).await.unwrap().unwrap();
    let content = row.outcome.and_then(|outcome| outcome.content);
    (row.record.state, content.map(|content| content.get().to_owned()))
}

async fn events(place: &Place, request: &ClaimRequest) -> Vec<String> {
    let shown = place.ledger.show(request.job.key()).await.unwrap().unwrap();
    shown.history.into_iter().map(|entry| entry.event).collect()
}

#[tokio::test]
async fn a_completion_is_inserted_where_its_row_was_lost_and_nowhere_else() {
    let place = Place::migrated().await;
    let (request, claim) = (request(&job("c", r#"{"a": 1.50}"#), terms(1)), Uuid::new_v4());
    place.ledger.claim(&request, claim).await.unwrap().unwrap();
    let settling = settling(&request, claim, 3, "1.50");
    assert!(!place.ledger.settle(&settling, Settle::InsertCompleted).await.unwrap());
    assert_eq!(answer(&place, &request).await, (State::InFlight, None));

    place.run("DELETE FROM callonce_calls").await;
    assert!(place.ledger.settle(&settling, Settle::InsertCompleted).await.unwrap());
    assert!(!place.ledger.settle(&settling, Settle::InsertCompleted).await.unwrap());
    assert_eq!(answer(&place, &request).await, (State::Completed, Some("1.50".to_owned())));
    let row = place.ledger.read(request.job.key(), Some(&request.job)).await.unwrap().unwrap();
    assert_eq!((row.record.claim, row.record.attempt, row.same_call), (Some(claim), 3, true));
    assert_eq!(events(&place, &request).await, ["row_was_lost"]);
    assert!(place.ledger.claim(&request, Uuid::new_v4()).await.unwrap().is_none());
    place.close().await;
}

/// A row whose first attempt was taken over: the request, the first claim and the second.
async fn taken_over(place: &Place) -> (ClaimRequest, Uuid, Uuid) {
    let request = request(&job("c", "{}"), terms(0));
    let (first, second) = (Uuid::new_v4(), Uuid::new_v4());
    place.ledger.claim(&request, first).await.unwrap().unwrap();
    place.run("UPDATE callonce_calls SET lease_until = now() - interval '1 second'").await;
    let taken = place.ledger.claim_again(&request, Some(first), second, ClaimAgain::Lapsed).await;
    assert_eq!(taken.unwrap().unwrap().attempt, 2);
    (request, first, second)
}

/// Runs statements that wait for one row, in this order.
struct Queue<'a> {
    place: &'a Place,
    lock: deadpool_postgres::Object,
}

impl<'a> Queue<'a> {
    async fn new(place: &'a Place) -> Self {
        let lock = place.sql.get().await.unwrap();
        lock.batch_execute("BEGIN; SELECT 1 FROM callonce_calls FOR UPDATE").await.unwrap();
        Self { place, lock }
    }

    /// Comes back when so many statements wait for the row.
    async fn waiting(&self, count: i64) {
        let waiting = "SELECT count(*) FROM pg_stat_activity
                       WHERE wait_event_type = 'Lock' AND query LIKE '%callonce_calls%'
                         AND pg_blocking_pids(pid) <> '{}'
                         AND pid IN (SELECT pid FROM pg_locks WHERE relation = $1::text::regclass)";
        let calls = format!("{}.callonce_calls", self.place.schema);
        let deadline = tokio::time::Instant::now() + LEASE;
        let client = self.place.sql.get().await.unwrap();
        while client.query_one(waiting, &[&calls]).await.unwrap().get::<_, i64>(0) != count {
            assert!(tokio::time::Instant::now() < deadline, "nobody waits for the row");
            tokio::task::yield_now().await;
        }
    }

    async fn run<A, B>(
        self,
        first: impl Future<Output = A>,
        second: impl Future<Output = B>,
    ) -> (A, B) {
        let second = async {
            self.waiting(1).await;
            second.await
        };
        let go = async {
            self.waiting(2).await;
            self.lock.batch_execute("COMMIT").await.unwrap();
        };
        let (first, second, ()) = tokio::join!(first, second, go);
        (first, second)
    }
}

#[tokio::test]
async fn a_completion_that_comes_before_a_settling_as_unknown_is_adopted() {
    let place = Place::migrated().await;
    let (request, first, second) = taken_over(&place).await;
    let late = settling(&request, first, 1, r#""late""#);
    let unknown = settling(&request, second, 2, r#""unknown""#);
    let (kept, settled) = Queue::new(&place)
        .await
        .run(
            place.ledger.settle(&late, Settle::KeepCompletion),
            place.ledger.settle(&unknown, Settle::Unknown),
        )
        .await;
    assert!(kept.unwrap() && !settled.unwrap());
    assert!(!place.ledger.settle(&unknown, Settle::NotRun).await.unwrap());
    assert!(place.ledger.adopt(request.job.key(), second, true).await.unwrap());
    assert_eq!(answer(&place, &request).await, (State::Completed, Some(r#""late""#.to_owned())));
    assert_eq!(events(&place, &request).await, ["takeover", "late_completion"]);
    place.close().await;
}

#[tokio::test]
async fn a_completion_that_comes_after_a_settling_as_unknown_settles_the_row() {
    let place = Place::migrated().await;
    let (request, first, second) = taken_over(&place).await;
    let late = settling(&request, first, 1, r#""late""#);
    let unknown = settling(&request, second, 2, r#""unknown""#);
    let (settled, kept) = Queue::new(&place)
        .await
        .run(
            place.ledger.settle(&unknown, Settle::Unknown),
            place.ledger.settle(&late, Settle::KeepCompletion),
        )
        .await;
    assert!(settled.unwrap() && !kept.unwrap());
    assert!(place.ledger.settle(&late, Settle::CompletedLate).await.unwrap());
    assert_eq!(answer(&place, &request).await, (State::Completed, Some(r#""late""#.to_owned())));
    let events = events(&place, &request).await;
    assert_eq!(events, ["takeover", "became_unknown", "late_completion"]);
    place.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_takeovers_at_once_one_is_granted_and_all_send_the_rows_own_arguments() {
    let place = Place::migrated().await;
    let (request, _, second) = taken_over(&place).await;
    place.run("UPDATE callonce_calls SET lease_until = now() - interval '1 second'").await;
    let other = ClaimRequest { job: job("c", "{  }"), ..request.clone() };
    assert_eq!(other.job.key(), request.job.key());
    let takeovers = (0..30).map(|_| {
        let (ledger, other) = (place.ledger.clone(), other.clone());
        async move {
            let claim = Uuid::new_v4();
            ledger.claim_again(&other, Some(second), claim, ClaimAgain::Lapsed).await.unwrap()
        }
    });
    let granted: Vec<_> =
        futures_util::future::join_all(takeovers).await.into_iter().flatten().collect();
    let [granted] = &granted[..] else { panic!("{} were granted", granted.len()) };
    assert_eq!((granted.attempt, &granted.args[..]), (3, &b"{}"[..]));
    assert!(granted.maybe_age.is_some());
    place.close().await;
}

/// Everybody who waits in a worker is looked for at once, and each wait ends with its own row's change.
#[tokio::test(flavor = "multi_thread")]
async fn many_waits_share_one_query_and_each_ends_with_its_own_row() {
    let place = Place::migrated().await;
    let (waits, stop) = (Waits::new(), CancellationToken::new());
    let mut rows = Vec::new();
    for n in 0..100 {
        let (request, claim) = (request(&job(&format!("c{n}"), "{}"), terms(0)), Uuid::new_v4());
        place.ledger.claim(&request, claim).await.unwrap().unwrap();
        rows.push((request, claim));
    }
    // One connection: a query for each wait would be seen as connections that wait.
    let url = std::env::var("DATABASE_URL").unwrap();
    let separator = if url.contains('?') { '&' } else { '?' };
    let url = format!("{url}{separator}options=-c%20search_path%3D{}", place.schema);
    let settings = PoolSettings { size: 1, connect_timeout: LEASE, checkout_timeout: LEASE };
    let one = Ledger::new(&url, settings, LEASE).unwrap();
    let looks = waits.run(&one, stop.clone());
    let waiting = async {
        let mut all: FuturesUnordered<_> = rows
            .iter()
            .enumerate()
            .map(|(n, (request, claim))| {
                let waits = &waits;
                async move {
                    waits.changed(request.job.key(), *claim).await;
                    n
                }
            })
            .collect();
        // Each way in which a row can change.
        let (request, claim) = &rows[3];
        let completed = settling(request, *claim, 1, "1");
        let changed = async {
            assert!(place.ledger.settle(&completed, Settle::Completed).await.unwrap());
            let key = rows[5].0.job.key();
            let lapse = format!(
                "UPDATE callonce_calls SET lease_until = now() - interval '1 second' \
                 WHERE key = '\\x{key}'; DELETE FROM callonce_calls WHERE key = '\\x{}'",
                rows[7].0.job.key()
            );
            place.run(&lapse).await;
        };
        let ends = async {
            let mut ended: Vec<usize> = (&mut all).take(3).collect().await;
            ended.sort_unstable();
            ended
        };
        let ((), ended) = tokio::join!(changed, ends);
        assert_eq!(ended, [3, 5, 7]);
        stop.cancel();
    };
    tokio::time::timeout(LEASE, async { tokio::join!(looks, waiting) }).await.unwrap();
    place.close().await;
}
