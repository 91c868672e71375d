//! A payments API that remembers keys and counts what it does: the demo's downstream.
//!
//!     payments [PORT]      listens on loopback; port 8080 by default, 0 takes a free one
//!
//! | request | does |
//! |---|---|
//! | `POST /payments` | makes a payment; the same `Idempotency-Key` again gets the first answer |
//! | `POST /tickets` | opens a ticket each time and ignores keys |
//! | `GET /tickets/KEY` | the ticket that was opened by a request with this key, or 404 |
//! | `POST /orders/search` | finds the one order that there is |
//! | `GET /counts` | says what was asked and what was done, in all and for each key |
//! | `POST /control/stall` | the next payment is made, and its answer held back |
//! | `POST /control/release` | lets go of all answers that are held back |
//! | `POST /control/lose` | the next ticket is opened, and a gateway's 504 stands in for its answer |

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Notify;

const DEFAULT_PORT: u16 = 8080;

/// An answer is held back no longer than this, should nobody release it.
const STALL_MAX: Duration = Duration::from_secs(60);

/// What was asked and what was done.
#[derive(Default, Serialize)]
struct Books {
    /// Requests to pay, repeats included.
    posts: u64,
    /// Payments made.
    payments: u64,
    tickets: u64,
    searches: u64,
    /// Answers that were held back so far.
    stalls: u64,
    keys: BTreeMap<String, OfKey>,
    #[serde(skip)]
    stall_next: bool,
    #[serde(skip)]
    lose_next: bool,
}

#[derive(Default, Serialize)]
struct OfKey {
    posts: u64,
    /// Payments made, or tickets opened.
    effects: u64,
    /// The first answer, which every repeat gets.
    #[serde(skip)]
    answer: Value,
}

#[derive(Default)]
struct Api {
    books: Mutex<Books>,
    release: Notify,
}

impl Api {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    /// Makes a payment, unless this key has made one; the answer, and whether it is a repeat's.
    fn pay(&mut self, key: Option<String>, order: &Value) -> (Value, bool) {
        self.posts += 1;
        let known = key.as_ref().and_then(|key| self.keys.get_mut(key));
        if let Some(known) = known {
            known.posts += 1;
            return (known.answer.clone(), true);
        }
        self.payments += 1;
        let answer = json!({
            "payment": format!("pay_{}", self.payments),
            "invoice": order["invoice"],
            "amount": order["amount"],
        });
        if let Some(key) = key {
            self.keys.insert(key, OfKey { posts: 1, effects: 1, answer: answer.clone() });
        }
        (answer, false)
    }
}

type Replayed = [(&'static str, &'static str); 1];

async fn pay(
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    Json(order): Json<Value>,
) -> (Replayed, Json<Value>) {
    let key = key(&headers);
    // Made before anybody can see the stall, so that no release is missed.
    let released = api.release.notified();
    let (answer, replayed, stalls) = {
        let mut books = api.books();
        let (answer, replayed) = books.pay(key, &order);
        let stalls = std::mem::take(&mut books.stall_next);
        books.stalls += u64::from(stalls);
        (answer, replayed, stalls)
    };
    if stalls {
        tokio::time::timeout(STALL_MAX, released).await.ok();
    }
    ([("idempotent-replayed", if replayed { "true" } else { "false" })], Json(answer))
}

async fn open_ticket(
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
) -> Result<Json<Value>, StatusCode> {
    let mut books = api.books();
    books.tickets += 1;
    let answer = json!({ "ticket": format!("ticket_{}", books.tickets) });
    if let Some(key) = key(&headers) {
        let known = books.keys.entry(key).or_default();
        known.posts += 1;
        known.effects += 1;
        known.answer = answer.clone();
    }
    match std::mem::take(&mut books.lose_next) {
        true => Err(StatusCode::GATEWAY_TIMEOUT),
        false => Ok(Json(answer)),
    }
}

async fn ticket(
    State(api): State<Arc<Api>>,
    Path(key): Path<String>,
) -> Result<Json<Value>, StatusCode> {
    let books = api.books();
    books.keys.get(&key).map(|known| Json(known.answer.clone())).ok_or(StatusCode::NOT_FOUND)
}

fn key(headers: &HeaderMap) -> Option<String> {
    headers.get("idempotency-key").and_then(|key| key.to_str().ok()).map(str::to_owned)
}

async fn search(State(api): State<Arc<Api>>) -> Json<Value> {
    api.books().searches += 1;
    Json(json!({ "orders": [{ "order": "order_1", "invoice": "INV-1", "amount": "120.00" }] }))
}

async fn counts(State(api): State<Arc<Api>>) -> Json<Value> {
    Json(json!(*api.books()))
}

async fn stall(State(api): State<Arc<Api>>) {
    api.books().stall_next = true;
}

async fn lose(State(api): State<Arc<Api>>) {
    api.books().lose_next = true;
}

async fn release(State(api): State<Arc<Api>>) {
    api.release.notify_waiters();
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let port = match std::env::args().nth(1) {
        Some(port) => port.parse().map_err(|_| anyhow::anyhow!("usage: payments [PORT]"))?,
        None => DEFAULT_PORT,
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    writeln!(std::io::stdout(), "http://{}", listener.local_addr()?)?;
    let api = Router::new()
        .route("/payments", post(pay))
        .route("/tickets", post(open_ticket))
        .route("/tickets/{key}", get(ticket))
        .route("/orders/search", post(search))
        .route("/counts", get(counts))
        .route("/control/stall", post(stall))
        .route("/control/release", post(release))
        .route("/control/lose", post(lose))
        .with_state(Arc::new(Api::default()));
    Ok(axum::serve(listener, api).await?)
}
