//! A server that answers with bytes and ends its connections as it is told.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What follows an answer on its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The next request.
    KeepAlive,
    /// An orderly end.
    Close,
    /// A reset.
    Reset,
    /// Nothing, for ever.
    Stall,
    /// The same bytes again and again.
    Drip(&'static [u8]),
    /// The same bytes so many times without a pause, and then others and the next request.
    Many(&'static [u8], usize, &'static [u8]),
}

/// One answer.
#[derive(Debug, Clone)]
pub(super) struct Answer(pub(super) Vec<u8>, pub(super) End);

/// Where the bytes of an answer are held back for a moment, so that they arrive in pieces.
#[derive(Debug, Clone, Default)]
pub(super) struct Pauses {
    pub(super) at: Vec<usize>,
    pub(super) each: Duration,
}

/// A request that arrived whole.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) connection: usize,
    pub(super) head: String,
    pub(super) body: Vec<u8>,
}

impl Seen {
    /// The values of a header, by its name in lower case.
    pub(super) fn values(&self, name: &str) -> Vec<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        lines
            .filter(|(other, _)| other.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim())
            .collect()
    }
}

#[derive(Debug, Default)]
struct Log {
    requests: Vec<Seen>,
    bytes: usize,
    connections: usize,
    ended: usize,
}

/// Answers the n-th request with the n-th answer, later ones with the last.
pub(super) struct Server {
    address: SocketAddr,
    log: Arc<Mutex<Log>>,
    changed: watch::Receiver<()>,
    _accepting: JoinSet<()>,
}

impl Server {
    pub(super) async fn start(answers: Vec<Answer>) -> Self {
        Self::pausing(answers, Pauses::default()).await
    }

    pub(super) async fn pausing(answers: Vec<Answer>, pauses: Pauses) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let log = Arc::new(Mutex::new(Log::default()));
        let (change, changed) = watch::channel(());
        let mut accepting = JoinSet::new();
        accepting.spawn({
            let log = Arc::clone(&log);
            let answers = Arc::new((answers, pauses));
            let change = Arc::new(change);
            async move {
                let mut connections = JoinSet::new();
                while let Ok((stream, _)) = listener.accept().await {
                    let connection = {
                        let mut log = log.lock().unwrap();
                        log.connections += 1;
                        log.connections
                    };
                    let (log, answers) = (Arc::clone(&log), Arc::clone(&answers));
                    let change = Arc::clone(&change);
                    connections.spawn(async move {
                        // The client may end the connection at any time; the log says what came.
                        serve(stream, connection, &answers, &log, &change).await.ok();
                        log.lock().unwrap().ended += 1;
                        change.send_replace(());
                    });
                }
            }
        });
        Self { address, log, changed, _accepting: accepting }
    }

    /// One answer to every request.
    pub(super) async fn with(answer: impl AsRef<[u8]>, end: End) -> Self {
        Self::start(vec![Answer(answer.as_ref().to_vec(), end)]).await
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/payments", self.address)
    }

    pub(super) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(super) fn requests(&self) -> Vec<Seen> {
        self.log.lock().unwrap().requests.clone()
    }

    /// All bytes that arrived, be they a request or not.
    pub(super) fn bytes(&self) -> usize {
        self.log.lock().unwrap().bytes
    }

    /// Waits until so many connections have ended, from whichever side.
    pub(super) async fn ended(&self, connections: usize) {
        let mut changed = self.changed.clone();
        let done = changed.wait_for(|()| self.log.lock().unwrap().ended >= connections);
        tokio::time::timeout(Duration::from_secs(20), done).await.unwrap().unwrap();
    }

    /// Waits until so many requests have arrived whole.
    pub(super) async fn arrived(&self, requests: usize) {
        let mut changed = self.changed.clone();
        let done = changed.wait_for(|()| self.log.lock().unwrap().requests.len() >= requests);
        tokio::time::timeout(Duration::from_secs(20), done).await.unwrap().unwrap();
    }
}

async fn serve(
    mut stream: TcpStream,
    connection: usize,
    (answers, pauses): &(Vec<Answer>, Pauses),
    log: &Mutex<Log>,
    change: &watch::Sender<()>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut pending = Vec::new();
    while let Some((head, body)) = request(&mut stream, &mut pending, log).await? {
        let nth = {
            let mut log = log.lock().unwrap();
            log.requests.push(Seen { connection, head, body });
            log.requests.len() - 1
        };
        change.send_replace(());
        let Some(Answer(bytes, end)) = answers.get(nth).or(answers.last()) else { return Ok(()) };
        let mut sent = 0;
        for at in &pauses.at {
            stream.write_all(&bytes[sent..*at]).await?;
            tokio::time::sleep(pauses.each).await;
            sent = *at;
        }
        stream.write_all(&bytes[sent..]).await?;
        match end {
            End::KeepAlive => {}
            End::Close => {
                stream.shutdown().await?;
                return Ok(());
            }
            End::Reset => {
                stream.set_zero_linger()?;
                return Ok(());
            }
            End::Stall => {
                // Until the client gives up.
                while stream.read(&mut [0; 1024]).await? > 0 {}
                return Ok(());
            }
            End::Drip(bytes) => loop {
                stream.write_all(bytes).await?;
                tokio::time::sleep(Duration::from_millis(5)).await;
            },
            End::Many(bytes, times, then) => {
                for _ in 0..*times {
                    stream.write_all(bytes).await?;
                }
                stream.write_all(then).await?;
            }
        }
    }
    Ok(())
}

/// The next request; none where the connection ends before one is whole.
async fn request(
    stream: &mut TcpStream,
    pending: &mut Vec<u8>,
    log: &Mutex<Log>,
) -> io::Result<Option<(String, Vec<u8>)>> {
    loop {
        if let Some(end) = pending.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&pending[..end]).into_owned();
            let length = head
                .lines()
                .find_map(|line| {
                    line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok()
                })
                .unwrap_or(0);
            if pending.len() >= end + 4 + length {
                let rest = pending.split_off(end + 4 + length);
                let body = pending.split_off(end + 4);
                *pending = rest;
                return Ok(Some((head, body)));
            }
        }
        pending.reserve(64 * 1024);
        let read = stream.read_buf(pending).await?;
        if read == 0 {
            return Ok(None);
        }
        log.lock().unwrap().bytes += read;
    }
}
