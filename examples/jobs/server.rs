//! The job server: its books, and HTTP/1.1 written by hand, so that a connection can end anywhere.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How long a job takes.
const WORK: Duration = Duration::from_millis(50);

/// A job stalls no longer than this, should nobody release it.
const STALL_MAX: Duration = Duration::from_secs(60);

/// A request of more bytes than this is not read to its end.
const REQUEST_BYTES_MAX: u64 = 64 * 1024;

/// What a repeated key is to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    /// The job that it has already.
    Honoured,
    /// Nothing: each request makes a job.
    Ignored,
}

/// What a request for a job meets. A key whose job is known already meets `Reject` and nothing else
/// of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Does {
    /// Does the job, and streams its progress and `done`.
    Work,
    /// Answers 503, and takes no job.
    Reject,
    /// Does the job, and closes the connection after the first event and the announcement of a chunk
    /// that never comes.
    Cut,
    /// Does the job, and ends the stream properly without `done`.
    OmitDone,
    /// Takes the job, loses it, and ends the stream properly without `done`.
    Abandon,
    /// Does the job once it is released, and streams as ever.
    Stall,
}

impl Does {
    fn named(name: &str) -> Option<Self> {
        match name {
            "work" => Some(Self::Work),
            "reject" => Some(Self::Reject),
            "cut" => Some(Self::Cut),
            "omit-done" => Some(Self::OmitDone),
            "abandon" => Some(Self::Abandon),
            "stall" => Some(Self::Stall),
            _ => None,
        }
    }
}

/// What was asked and what was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    /// Requests for a job, repeats and refusals included.
    pub(crate) posts: usize,
    /// Jobs that were done.
    pub(crate) jobs: usize,
    /// Jobs that were taken and are not done yet.
    pub(crate) running: usize,
}

/// The books; in memory, where a real server has a table: a key that is lost with the process
/// guards nothing.
pub(crate) struct Jobs {
    keys: Keys,
    otherwise: Does,
    books: Mutex<Books>,
    released: watch::Sender<u64>,
}

#[derive(Default)]
struct Books {
    counts: Counts,
    calls: Vec<String>,
    by_key: HashMap<String, Record>,
    script: VecDeque<Does>,
}

enum Record {
    Running,
    Done(Value),
}

/// What becomes of a request for a job.
enum Taken {
    Rejected,
    /// The job of this key still runs.
    Running,
    /// The job of this key is done, and this was its answer.
    Replayed(Value),
    New(Does),
}

impl Jobs {
    /// A server whose requests meet `otherwise`, unless it is told something else of the next ones.
    pub(crate) fn new(keys: Keys, otherwise: Does) -> Self {
        let (books, released) = (Mutex::default(), watch::Sender::new(0));
        Self { keys, otherwise, books, released }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the next request meets for which nothing is said yet.
    pub(crate) fn next(&self, does: Does) {
        self.books().script.push_back(does);
    }

    /// Lets the jobs that stall now go on.
    pub(crate) fn release(&self) {
        self.released.send_modify(|released| *released += 1);
    }

    pub(crate) fn counts(&self) -> Counts {
        self.books().counts
    }

    /// The ids of the jobs that were taken, in order.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.books().calls.clone()
    }

    /// Keeps the key, before any work.
    fn take(&self, key: &str, id: &str) -> Taken {
        let mut books = self.books();
        books.counts.posts += 1;
        let does = books.script.pop_front().unwrap_or(self.otherwise);
        if does == Does::Reject {
            return Taken::Rejected;
        }
        if self.keys == Keys::Honoured {
            match books.by_key.get(key) {
                Some(Record::Running) => return Taken::Running,
                Some(Record::Done(result)) => return Taken::Replayed(result.clone()),
                None => {}
            }
            books.by_key.insert(key.to_owned(), Record::Running);
        }
        books.calls.push(id.to_owned());
        books.counts.running += 1;
        Taken::New(does)
    }

    /// Keeps the job's answer, which holds the number of the job.
    fn done(&self, key: &str, id: &str) -> Value {
        let mut books = self.books();
        books.counts.running -= 1;
        books.counts.jobs += 1;
        let result = json!({ "ok": true, "id": id, "job": books.counts.jobs });
        if self.keys == Keys::Honoured {
            books.by_key.insert(key.to_owned(), Record::Done(result.clone()));
        }
        result
    }

    /// Forgets a job that was not done.
    fn lose(&self, key: &str) {
        let mut books = self.books();
        books.counts.running -= 1;
        books.by_key.remove(key);
    }

    fn state(&self, key: &str) -> Option<Value> {
        self.books().by_key.get(key).map(|record| match record {
            Record::Running => json!({ "state": "running" }),
            Record::Done(result) => json!({ "state": "done", "result": result }),
        })
    }
}

/// Serves until it is dropped.
pub(crate) async fn serve(listener: TcpListener, jobs: Arc<Jobs>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let jobs = Arc::clone(&jobs);
        connections.spawn(async move {
            // A client that goes away is the client's affair; its job was done all the same.
            answer(stream, &jobs).await.ok();
        });
        while connections.try_join_next().is_some() {}
    }
}

struct Request {
    method: String,
    path: String,
    key: Option<String>,
    body: Vec<u8>,
}

/// Reads a request; none where the client has closed the connection before its end.
async fn read(stream: &mut TcpStream) -> io::Result<Option<Request>> {
    let mut stream = BufReader::new(stream.take(REQUEST_BYTES_MAX));
    let (mut method, mut path, mut key, mut length) = (String::new(), String::new(), None, 0);
    for number in 0.. {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        let line = line.trim_end();
        if number == 0 {
            let mut words = line.split(' ').map(str::to_owned);
            (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        } else if line.is_empty() {
            break;
        } else if let Some((name, value)) = line.split_once(':') {
            if name.eq_ignore_ascii_case("idempotency-key") {
                key = Some(value.trim().to_owned());
            } else if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().unwrap_or(0);
            }
        }
    }
    let mut body = Vec::new();
    stream.take(length).read_to_end(&mut body).await?;
    Ok(Some(Request { method, path, key, body }))
}

/// Answers one request; its connection is used for no other.
async fn answer(mut stream: TcpStream, jobs: &Jobs) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let Some(request) = read(&mut stream).await? else { return Ok(()) };
    let (status, body) = match (request.method.as_str(), request.path.as_str()) {
        ("POST", "/jobs") => return job(&mut stream, jobs, &request).await,
        ("GET", "/calls") => (200, json!(jobs.calls())),
        ("GET", "/counts") => (200, json!(jobs.counts())),
        ("POST", "/control/release") => {
            jobs.release();
            (200, json!({}))
        }
        ("POST", path) => match path.strip_prefix("/control/").and_then(Does::named) {
            Some(does) => {
                jobs.next(does);
                (200, json!({}))
            }
            None => (404, json!({ "error": "there is no such request" })),
        },
        (_, path) => match path.strip_prefix("/jobs/").and_then(|key| jobs.state(key)) {
            Some(state) => (200, state),
            None => (404, json!({ "error": "there is no such job" })),
        },
    };
    whole(&mut stream, status, &body).await
}

/// Answers a request for a job.
async fn job(stream: &mut TcpStream, jobs: &Jobs, request: &Request) -> io::Result<()> {
    let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let id = body["id"].as_str();
    let Some(key) = request.key.as_deref().or(id) else {
        let error = json!({ "error": "expected an Idempotency-Key, or an id in the body" });
        return whole(stream, 400, &error).await;
    };
    let id = id.unwrap_or(key);
    // Asked for before anybody can see the job, so that no release is missed.
    let mut released = jobs.released.subscribe();
    let does = match jobs.take(key, id) {
        Taken::Rejected => return whole(stream, 503, &json!({ "error": "busy" })).await,
        Taken::Running => {
            // To say `ok` of a job that was only taken would be a guess.
            return whole(stream, 409, &json!({ "state": "running" })).await;
        }
        Taken::Replayed(mut result) => {
            result["replay"] = json!(true);
            let head = stream_head("idempotent-replayed: true\r\n");
            let text = head + &chunk(&event("done", &result)) + LAST_CHUNK;
            return write(stream, &text).await;
        }
        Taken::New(does) => does,
    };
    // Whether the client is there to hear it or not, the job goes on.
    let first = stream_head("") + &chunk(&event("progress", &json!({ "pct": 50 })));
    let heard = write(stream, &first).await;
    if does == Does::Stall {
        tokio::time::timeout(STALL_MAX, released.changed()).await.ok();
    } else if does == Does::Abandon {
        jobs.lose(key);
        heard?;
        return write(stream, LAST_CHUNK).await;
    }
    tokio::time::sleep(WORK).await;
    let done = chunk(&event("done", &jobs.done(key, id)));
    heard?;
    match does {
        // Dropping the stream closes it.
        Does::Cut => write(stream, "40\r\n").await,
        Does::OmitDone => write(stream, LAST_CHUNK).await,
        Does::Work | Does::Stall | Does::Reject | Does::Abandon => {
            write(stream, &(done + LAST_CHUNK)).await
        }
    }
}

const LAST_CHUNK: &str = "0\r\n\r\n";

fn stream_head(header: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-store\r\n{header}\
         transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    )
}

fn event(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

async fn whole(stream: &mut TcpStream, status: u16, body: &Value) -> io::Result<()> {
    let body = format!("{body}\n");
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} Answer\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n"
    );
    write(stream, &(head + &body)).await
}

async fn write(stream: &mut TcpStream, text: &str) -> io::Result<()> {
    stream.write_all(text.as_bytes()).await?;
    stream.flush().await
}
