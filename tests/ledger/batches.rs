//! Many callers share a statement, and each gets its own answer.

use futures_util::future::join_all;
use tokio_util::task::TaskTracker;

use super::*;

/// A ledger whose callers share statements, while its place lasts.
fn batched(place: &Place) -> Ledger {
    place.ledger.clone().batched(500, &TaskTracker::new(), &CancellationToken::new())
}

fn requests(count: usize) -> Vec<(ClaimRequest, Uuid)> {
    let of = |n| (request(&job(&format!("c{n}"), "{}"), terms(0)), Uuid::new_v4());
    (0..count).map(of).collect()
}

impl Place {
    /// Runs `asked` while nobody can write, so that what is asked queues.
    async fn while_locked<T>(&self, asked: impl Future<Output = T>, waiting: i64) -> T {
        let lock = self.sql.get().await.unwrap();
        lock.batch_execute("BEGIN; LOCK TABLE callonce_calls IN SHARE MODE").await.unwrap();
        let unlock = async {
            self.wait_for_waiting(waiting).await;
            lock.batch_execute("COMMIT").await.unwrap();
        };
        tokio::join!(asked, unlock).0
    }

    /// Comes back when so many statements wait for the table.
    async fn wait_for_waiting(&self, count: i64) {
        let waiting = "SELECT count(*) FROM pg_locks
                       WHERE NOT granted AND relation = $1::text::regclass";
        let calls = format!("{}.callonce_calls", self.schema);
        let sql = self.sql.get().await.unwrap();
        while sql.query_one(waiting, &[&calls]).await.unwrap().get::<_, i64>(0) < count {
            tokio::task::yield_now().await;
        }
    }

    async fn count(&self, sql: &str) -> i64 {
        self.sql.get().await.unwrap().query_one(sql, &[]).await.unwrap().get(0)
    }
}

#[tokio::test]
async fn what_queues_while_a_statement_is_under_way_shares_the_next() {
    let place = Place::migrated().await;
    let (ledger, calls) = (batched(&place), requests(300));
    let claims = join_all(calls.iter().map(|(request, claim)| ledger.claim(request, *claim)));
    let granted = place.while_locked(claims, 1).await;
    assert!(granted.into_iter().all(|granted| granted.unwrap().unwrap().attempt == 1));
    let written = "SELECT count(DISTINCT xmin::text) FROM callonce_calls";
    let claims = place.count(written).await;
    assert!(claims <= 4, "300 claims took {claims} statements");

    let settlings: Vec<_> =
        calls.iter().map(|(request, claim)| settling(request, *claim, 1, "1")).collect();
    let settled = join_all(settlings.iter().map(|it| ledger.settle(it, Settle::Completed)));
    assert!(place.while_locked(settled, 1).await.into_iter().all(|settled| settled.unwrap()));
    let settlings = place.count(written).await;
    assert!(settlings <= 4, "300 settlings took {settlings} statements");

    let rows = join_all(
        calls.iter().map(|(request, _)| ledger.read(request.job.key(), Some(&request.job))),
    );
    for row in rows.await {
        let row = row.unwrap().unwrap();
        assert_eq!((row.record.state, row.same_call), (State::Completed, true));
    }
    place.close().await;
}

#[tokio::test]
async fn alone_each_callers_statement_is_its_own() {
    let place = Place::migrated().await;
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let (ledger, calls) = (place.ledger.clone().batched(1, &tasks, &stop), requests(20));
    let claims = join_all(calls.iter().map(|(request, claim)| ledger.claim(request, *claim)));
    let granted = place.while_locked(claims, 20).await;
    assert!(granted.into_iter().all(|granted| granted.unwrap().is_some()));
    assert_eq!(place.count("SELECT count(DISTINCT xmin::text) FROM callonce_calls").await, 20);
    assert!(tasks.is_empty());
    place.close().await;
}

#[tokio::test]
async fn a_row_that_the_server_refuses_fails_none_of_its_neighbours() {
    let place = Place::migrated().await;
    place.run("ALTER TABLE callonce_calls ADD CHECK (conversation_id NOT IN ('c7', 'c200'))").await;
    let (ledger, calls) = (batched(&place), requests(250));
    let claims = join_all(calls.iter().map(|(request, claim)| ledger.claim(request, *claim)));
    let granted = place.while_locked(claims, 1).await;
    for (n, granted) in granted.into_iter().enumerate() {
        match (n, granted) {
            (7 | 200, Err(error)) => assert!(error.to_string().contains("check constraint")),
            (7 | 200, Ok(_)) => panic!("{n} was granted"),
            (_, granted) => assert!(granted.unwrap().is_some(), "{n} was not granted"),
        }
    }
    assert_eq!(place.count("SELECT count(*) FROM callonce_calls").await, 248);

    place.run("ALTER TABLE callonce_calls ADD CHECK (name <> 't' OR outcome IS NULL OR conversation_id <> 'c9')").await;
    let settlings: Vec<_> =
        calls.iter().map(|(request, claim)| settling(request, *claim, 1, "1")).collect();
    let settled = join_all(settlings.iter().map(|it| ledger.settle(it, Settle::Completed)));
    for (n, settled) in place.while_locked(settled, 1).await.into_iter().enumerate() {
        match n {
            7 | 200 => assert!(!settled.unwrap(), "{n} has no row"),
            9 => assert!(settled.unwrap_err().to_string().contains("check constraint")),
            _ => assert!(settled.unwrap(), "{n} was not settled"),
        }
    }
    place.close().await;
}

/// What is wrong with the server or the session is no row's fault: the batch is not tried in parts.
#[tokio::test]
async fn a_batch_that_no_row_is_to_blame_for_is_not_split() {
    let place = Place::migrated().await;
    place
        .run(
            "CREATE SEQUENCE tries;
             CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 PERFORM nextval('tries');
                 RAISE EXCEPTION 'refused' USING ERRCODE = 'insufficient_privilege';
             END $$;
             CREATE TRIGGER refuse BEFORE INSERT ON callonce_calls EXECUTE FUNCTION refuse()",
        )
        .await;
    let (ledger, calls) = (batched(&place), requests(250));
    let claims = join_all(calls.iter().map(|(request, claim)| ledger.claim(request, *claim)));
    for refused in claims.await {
        assert!(refused.unwrap_err().to_string().contains("refused (42501)"));
    }
    let tries = place.count("SELECT last_value FROM tries").await;
    assert!(tries <= 4, "250 claims were refused with {tries} statements");
    place.close().await;
}

/// A statement is bounded in bytes as well.
#[tokio::test]
async fn what_is_too_much_for_one_statement_takes_several() {
    let place = Place::migrated().await;
    let args = format!(r#"{{"text":"{}"}}"#, "x".repeat(1_000_000));
    let of = |n| (request(&job(&format!("c{n}"), &args), terms(0)), Uuid::new_v4());
    let calls: Vec<_> = (0..32).map(of).collect();
    let ledger = batched(&place);
    let claims = join_all(calls.iter().map(|(request, claim)| ledger.claim(request, *claim)));
    let granted = place.while_locked(claims, 1).await;
    assert!(granted.into_iter().all(|granted| granted.unwrap().is_some()));
    let statements = "SELECT count(DISTINCT xmin::text) FROM callonce_calls";
    let written = place.count(statements).await;
    assert!((4..=9).contains(&written), "32 MB of claims took {written} statements");

    let settling = |(request, claim): &(ClaimRequest, Uuid)| settling(request, *claim, 1, &args);
    let settlings: Vec<_> = calls.iter().map(settling).collect();
    let settled = join_all(settlings.iter().map(|it| ledger.settle(it, Settle::Completed)));
    assert!(place.while_locked(settled, 1).await.into_iter().all(|settled| settled.unwrap()));
    let written = place.count(statements).await;
    assert!((4..=9).contains(&written), "32 MB of outcomes took {written} statements");
    place.close().await;
}

/// Somebody has a row locked and goes away for lunch: its own call waits, and no other.
#[tokio::test]
async fn a_row_that_somebody_else_keeps_locked_holds_up_its_own_call_alone() {
    let place = Place::migrated().await;
    let (ledger, calls) = (batched(&place), requests(100));
    let claims = join_all(calls.iter().map(|(request, claim)| ledger.claim(request, *claim)));
    assert!(claims.await.into_iter().all(|granted| granted.unwrap().is_some()));
    let lock = place.sql.get().await.unwrap();
    let locked = "BEGIN; SELECT FROM callonce_calls WHERE conversation_id = 'c50' FOR UPDATE";
    lock.batch_execute(locked).await.unwrap();

    let settlings: Vec<_> =
        calls.iter().map(|(request, claim)| settling(request, *claim, 1, "1")).collect();
    let mut settled: FuturesUnordered<_> = settlings
        .iter()
        .enumerate()
        .map(async |(n, it)| (n, ledger.settle(it, Settle::Completed).await))
        .collect();
    for _ in 0..99 {
        let (n, settled) = settled.next().await.unwrap();
        assert!(settled.unwrap(), "{n} was not settled");
        assert_ne!(n, 50);
    }
    let (n, refused) = settled.next().await.unwrap();
    assert!(refused.unwrap_err().to_string().contains("lock timeout"));
    lock.batch_execute("COMMIT").await.unwrap();
    assert!(ledger.settle(&settlings[n], Settle::Completed).await.unwrap());
    place.close().await;
}

/// A plan that was made when the table had one row looks up keys, and nothing else, when it has many.
#[tokio::test]
async fn a_plan_of_a_small_table_serves_a_large_one() {
    let place = Place::migrated().await;
    let url = format!("{}&application_name={}", place.url, place.schema);
    let settings = PoolSettings { size: 1, connect_timeout: LEASE, checkout_timeout: LEASE };
    let ledger = Ledger::new(&url, settings, LEASE).unwrap();
    let shared = ledger.batched(500, &TaskTracker::new(), &CancellationToken::new());
    let claim = async |calls: &[(ClaimRequest, Uuid)]| {
        let claims = calls.iter().map(|(request, claim)| shared.claim(request, *claim));
        assert!(join_all(claims).await.into_iter().all(|granted| granted.unwrap().is_some()));
    };
    let look_up = async |(request, claim): &(ClaimRequest, Uuid)| {
        let key = request.job.key();
        assert!(shared.watch(&[(key, *claim)]).await.unwrap().is_empty());
        assert_eq!(shared.renew(&[(key, *claim, LEASE)]).await.unwrap(), [*claim]);
        assert!(shared.read(key, None).await.unwrap().is_some());
        let settling = settling(request, *claim, 1, "1");
        assert!(shared.settle(&settling, Settle::Completed).await.unwrap());
    };
    let calls = requests(2_000);
    place.run("ALTER TABLE callonce_calls SET (autovacuum_enabled = false)").await;
    claim(&calls[..1]).await;
    place.run("ANALYZE callonce_calls").await;
    look_up(&calls[0]).await;
    claim(&calls[1..]).await;
    for call in &calls[1..20] {
        look_up(call).await;
    }
    drop(shared);
    // A session's counts are complete once it has ended.
    let sessions = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{}'",
        place.schema
    );
    while place.count(&sessions).await > 0 {
        tokio::task::yield_now().await;
    }
    let read = "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes
                WHERE indexrelid = 'callonce_calls_pkey'::regclass";
    let read = place.count(read).await;
    assert!((20..2_000).contains(&read), "{read} rows were read for 20 calls");
    place.close().await;
}

/// A settling answers for each key by itself whether its claim still stood.
#[tokio::test]
async fn a_lost_claim_shows_for_its_own_key() {
    let place = Place::migrated().await;
    let (ledger, calls) = (batched(&place), requests(60));
    for (request, claim) in &calls {
        ledger.claim(request, *claim).await.unwrap().unwrap();
    }
    place
        .run("UPDATE callonce_calls SET claim = gen_random_uuid() WHERE conversation_id LIKE 'c%1'")
        .await;
    place.run("UPDATE callonce_calls SET state = 'unknown', settled_at = now() WHERE conversation_id LIKE 'c%2'").await;
    place.run("DELETE FROM callonce_calls WHERE conversation_id LIKE 'c%3'").await;
    let settlings: Vec<_> =
        calls.iter().map(|(request, claim)| settling(request, *claim, 1, "1")).collect();
    let settled = join_all(settlings.iter().map(|it| ledger.settle(it, Settle::Completed)));
    for (n, settled) in place.while_locked(settled, 1).await.into_iter().enumerate() {
        assert_eq!(settled.unwrap(), !matches!(n % 10, 1..=3), "{n}");
    }
    place.close().await;
}

/// Two workers that claim, settle and renew the same keys in opposite orders never wait for each other
/// for ever, and of each key one claim is granted.
#[tokio::test(flavor = "multi_thread")]
async fn batches_of_two_workers_over_the_same_keys_never_deadlock() {
    let (place, tasks) = (Place::migrated().await, TaskTracker::new());
    for round in 0..8 {
        let (one, two) = (batched(&place), batched(&place));
        let calls: Vec<_> =
            (0..200).map(|n| request(&job(&format!("r{round} c{n}"), "{}"), terms(0))).collect();
        let claim = async |ledger: Ledger, requests: Vec<ClaimRequest>| {
            join_all(requests.into_iter().map(|request| {
                let (ledger, claim) = (ledger.clone(), Uuid::new_v4());
                tasks.spawn(async move {
                    let granted = ledger.claim(&request, claim).await.unwrap();
                    granted.map(|_| (request, claim))
                })
            }))
            .await
            .into_iter()
            .filter_map(|granted| granted.unwrap())
            .collect::<Vec<_>>()
        };
        let backwards = calls.iter().rev().cloned().collect();
        let (first, second) =
            tokio::join!(claim(one.clone(), calls.clone()), claim(two.clone(), backwards));
        let granted: Vec<_> = first.into_iter().chain(second).collect();
        assert_eq!(granted.len(), calls.len());

        let mut renewed: Vec<_> =
            granted.iter().map(|(request, claim)| (request.job.key(), *claim, LEASE)).collect();
        renewed.reverse();
        let settlings: Vec<_> =
            granted.iter().map(|(request, claim)| settling(request, *claim, 1, "1")).collect();
        let (renewed, settled) = tokio::join!(
            place.ledger.renew(&renewed),
            join_all(settlings.iter().map(|it| one.settle(it, Settle::Completed)))
        );
        renewed.unwrap();
        assert!(settled.into_iter().all(|settled| settled.unwrap()));
    }
    place.close().await;
}

/// The server ends the connection of a batch: nobody knows whether it was carried out, and each claim
/// stands once all the same.
#[tokio::test]
async fn claims_whose_connection_was_lost_are_made_once() {
    let place = Place::migrated().await;
    let (ledger, calls) = (batched(&place), requests(100));
    let lock = place.sql.get().await.unwrap();
    lock.batch_execute("BEGIN; LOCK TABLE callonce_calls IN SHARE MODE").await.unwrap();
    let lost = async {
        place.wait_for_waiting(1).await;
        let end = "SELECT pg_terminate_backend(pid) FROM pg_locks
                   WHERE NOT granted AND relation = 'callonce_calls'::regclass";
        lock.batch_execute(end).await.unwrap();
        lock.batch_execute("COMMIT").await.unwrap();
    };
    let claim = |(request, claim): &(ClaimRequest, Uuid)| {
        let (ledger, request, claim) = (ledger.clone(), request.clone(), *claim);
        async move {
            loop {
                match ledger.claim(&request, claim).await {
                    Ok(Some(granted)) => return granted,
                    Ok(None) => return ledger.confirm(&request, claim).await.unwrap().unwrap(),
                    Err(error) => assert!(error.may_have_been_sent(), "{error}"),
                }
            }
        }
    };
    let (granted, ()) = tokio::join!(join_all(calls.iter().map(claim)), lost);
    assert!(granted.into_iter().zip(&calls).all(|(it, (_, claim))| it.claim == *claim));
    let standing = "SELECT count(*) FROM callonce_calls WHERE state = 'in_flight' AND attempt = 1";
    assert_eq!(place.count(standing).await, 100);
    place.close().await;
}
