//! A proxy in front of a server, so that faults of the network are real.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use url::Url;

/// How much of what a client sends first is kept, to tell its connection by.
const GREETING_BYTES_MAX: usize = 16 * 1024;

/// Passes connections on to a server until it is told not to.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Shared {
    connections: Mutex<Vec<Arc<Link>>>,
    refuses: AtomicBool,
    swallows: AtomicBool,
    accepted: AtomicU64,
    /// A request whose answer is to be lost, and how many of its kind pass before it.
    unlucky: Mutex<Option<(Vec<u8>, usize)>>,
    answers_lost: AtomicU64,
}

#[derive(Default)]
struct Link {
    greeting: Mutex<Vec<u8>>,
    cut: Notify,
    /// Whether the server's next words are not delivered, but end the connection.
    loses_answer: AtomicBool,
}

impl Shared {
    fn connections(&self) -> MutexGuard<'_, Vec<Arc<Link>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unlucky(&self) -> MutexGuard<'_, Option<(Vec<u8>, usize)>> {
        self.unlucky.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the answer to these bytes is to be lost.
    fn is_unlucky(&self, bytes: &[u8]) -> bool {
        let mut unlucky = self.unlucky();
        match unlucky.as_mut() {
            Some((text, skip)) if contains(bytes, text) => match skip.checked_sub(1) {
                Some(left) => *skip = left,
                None => {
                    *unlucky = None;
                    return true;
                }
            },
            Some(_) | None => {}
        }
        false
    }
}

impl Link {
    fn greeting(&self) -> MutexGuard<'_, Vec<u8>> {
        self.greeting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Proxy {
    /// A proxy in front of the server of a URL, and that URL by way of the proxy.
    pub(crate) async fn before(url: &str) -> (Self, String) {
        let mut url = Url::parse(url).expect("a URL");
        let default = if url.scheme().starts_with("amqp") { 5672 } else { 5432 };
        let host = url.host_str().expect("a host").to_owned();
        let server = format!("{host}:{}", url.port().unwrap_or(default));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, server, shared.clone()));
        url.set_host(Some("127.0.0.1")).expect("a legal host");
        url.set_port(Some(address.port())).expect("a legal port");
        (Self { address, shared, _tasks: tasks }, url.into())
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many connections there have been.
    pub(crate) fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Cuts every connection; new ones are passed on.
    pub(crate) fn cut(&self) {
        for link in self.shared.connections().drain(..) {
            link.cut.notify_one();
        }
    }

    /// Cuts the connections whose client said `text` when it introduced itself; how many.
    ///
    /// An AMQP client sends its connection's name.
    pub(crate) fn cut_named(&self, text: &str) -> usize {
        let mut connections = self.shared.connections();
        let before = connections.len();
        connections.retain(|link| {
            let named = contains(&link.greeting(), text.as_bytes());
            if named {
                link.cut.notify_one();
            }
            !named
        });
        before - connections.len()
    }

    /// Passes on what a client sends with `text` in it, waits for the server's answer, and cuts the
    /// connection instead of delivering it: once, after `skip` that go well.
    pub(crate) fn lose_answer_to(&self, text: &str, skip: usize) {
        *self.shared.unlucky() = Some((text.as_bytes().to_vec(), skip));
    }

    /// How many answers were lost so.
    pub(crate) fn answers_lost(&self) -> u64 {
        self.shared.answers_lost.load(Ordering::SeqCst)
    }

    /// Whether new connections are closed as soon as they are made.
    pub(crate) fn refuse(&self, refuse: bool) {
        self.shared.refuses.store(refuse, Ordering::SeqCst);
    }

    /// Whether bytes vanish in both directions, on connections that stay open.
    pub(crate) fn swallow(&self, swallow: bool) {
        self.shared.swallows.store(swallow, Ordering::SeqCst);
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

async fn accept(listener: TcpListener, server: String, shared: Arc<Shared>) {
    let mut links = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        shared.accepted.fetch_add(1, Ordering::SeqCst);
        if shared.refuses.load(Ordering::SeqCst) {
            continue;
        }
        let link = Arc::new(Link::default());
        shared.connections().push(link.clone());
        links.spawn(pass(client, server.clone(), shared.clone(), link));
        while links.try_join_next().is_some() {}
    }
}

async fn pass(client: TcpStream, server: String, shared: Arc<Shared>, link: Arc<Link>) {
    let Ok(server) = TcpStream::connect(server).await else { return };
    client.set_nodelay(true).ok();
    server.set_nodelay(true).ok();
    let ((from_client, to_client), (from_server, to_server)) =
        (client.into_split(), server.into_split());
    tokio::select! {
        () = copy(from_client, to_server, &shared, &link, true) => {}
        () = copy(from_server, to_client, &shared, &link, false) => {}
        () = link.cut.notified() => {}
    }
    shared.connections().retain(|other| !Arc::ptr_eq(other, &link));
}

async fn copy(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    link: &Link,
    asks: bool,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if asks {
            if shared.is_unlucky(&buffer[..length]) {
                link.loses_answer.store(true, Ordering::SeqCst);
            }
            let mut greeting = link.greeting();
            let left = GREETING_BYTES_MAX.saturating_sub(greeting.len());
            greeting.extend_from_slice(&buffer[..length.min(left)]);
        }
        if !asks && link.loses_answer.load(Ordering::SeqCst) {
            shared.answers_lost.fetch_add(1, Ordering::SeqCst);
            return;
        }
        if shared.swallows.load(Ordering::SeqCst) {
            continue;
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
