//! The world that tools act on: a server on loopback that counts requests and effects, and
//! misbehaves on request.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::eventually;

/// What the downstream does with one request.
#[derive(Debug, Clone)]
pub(crate) enum Does {
    /// Acts, and answers 200.
    Act,
    /// Acts, and answers this.
    ActAndAnswer(u16, String),
    /// Does nothing, and answers this.
    Answer(u16, String),
    /// Does nothing, and answers this with one more header line.
    AnswerWith(u16, &'static str, String),
    /// Acts, and answers once it is released.
    ActAndStall,
    /// Acts, and answers after this time.
    ActAndDelay(Duration),
    /// Acts, and closes the connection before it answers.
    ActAndClose,
    /// Acts, and closes the connection in the middle of its answer.
    ActAndCut,
    /// Reads the request, does nothing, and closes the connection.
    Close,
    /// Acts, sends these bytes, and ends the connection like this.
    ActAndSend(String, Ends),
}

/// How a connection ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ends {
    /// In order.
    Closed,
    /// By a reset.
    Reset,
    /// Not at all: it falls silent.
    Never,
}

/// How the downstream answers one question for a call's state (`GET …/KEY`).
#[derive(Debug, Clone)]
pub(crate) enum Says {
    /// What it knows: `{"state": "done", "result": …}` of a key that acted, else 404.
    TheTruth,
    /// `{"state": "running"}`.
    Running,
    /// 404, whatever it did.
    NotFound,
    /// This, with status 200.
    This(String),
    /// This status and nothing more.
    Status(u16),
}

/// A request that arrived whole.
#[derive(Debug, Clone)]
pub(crate) struct Post {
    method: String,
    /// Every value of the header `Idempotency-Key`.
    pub(crate) keys: Vec<String>,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Post {
    pub(crate) fn key(&self) -> &str {
        self.keys.first().map_or("", String::as_str)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(other, _)| other.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}

/// A server that acts once for each request, or once for each key.
pub(crate) struct Downstream {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    released: watch::Sender<usize>,
    socket: Option<TcpSocket>,
    tasks: JoinSet<()>,
}

struct State {
    posts: Vec<Post>,
    /// The effects' answers, in order.
    effects: Vec<String>,
    /// Which effect a key had first.
    by_key: HashMap<String, usize>,
    collapses: bool,
    script: VecDeque<Does>,
    otherwise: Does,
    questions: usize,
    says: VecDeque<Says>,
    says_otherwise: Says,
    /// How many requests have stalled.
    stalled: usize,
    running: usize,
    running_max: usize,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Downstream {
    /// One that collapses repeats of a key.
    pub(crate) async fn collapsing() -> Self {
        let mut downstream = Self::refusing(true).await;
        downstream.listen();
        downstream
    }

    /// One that ignores keys: each request is an effect.
    pub(crate) async fn forgetful() -> Self {
        let mut downstream = Self::refusing(false).await;
        downstream.listen();
        downstream
    }

    /// One that refuses connections until it is told to listen.
    pub(crate) async fn refusing(collapses: bool) -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        // Bound and not listening: the port is ours, and connections to it are refused.
        socket.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
        let address = socket.local_addr().expect("it is bound");
        let state = State {
            posts: Vec::new(),
            effects: Vec::new(),
            by_key: HashMap::new(),
            collapses,
            script: VecDeque::new(),
            otherwise: Does::Act,
            questions: 0,
            says: VecDeque::new(),
            says_otherwise: Says::TheTruth,
            stalled: 0,
            running: 0,
            running_max: 0,
        };
        Self {
            address,
            state: Arc::new(Mutex::new(state)),
            released: watch::Sender::new(0),
            socket: Some(socket),
            tasks: JoinSet::new(),
        }
    }

    /// Begins to take connections.
    pub(crate) fn listen(&mut self) {
        let Some(socket) = self.socket.take() else { return };
        let listener = socket.listen(1024).expect("it is bound");
        self.tasks.spawn(accept(listener, self.state.clone(), self.released.subscribe()));
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// What happens to the next requests, one each; after them what happens otherwise.
    pub(crate) fn script(&self, script: impl IntoIterator<Item = Does>) {
        lock(&self.state).script.extend(script);
    }

    /// What happens to every request that no script is for.
    pub(crate) fn otherwise(&self, does: Does) {
        lock(&self.state).otherwise = does;
    }

    /// How the next questions for a state are answered, one each; after them with the truth.
    pub(crate) fn says(&self, says: impl IntoIterator<Item = Says>) {
        lock(&self.state).says.extend(says);
    }

    /// How every question is answered for which nothing else was said.
    pub(crate) fn says_otherwise(&self, says: Says) {
        lock(&self.state).says_otherwise = says;
    }

    /// How often it was asked for a state.
    pub(crate) fn questions(&self) -> usize {
        lock(&self.state).questions
    }

    /// Lets what stalls answer, now and from now on.
    pub(crate) fn release(&self) {
        self.released.send_replace(usize::MAX);
    }

    /// Lets as many more of what stalls answer, in the order in which they came.
    pub(crate) fn release_next(&self, requests: usize) {
        self.released.send_modify(|released| *released = released.saturating_add(requests));
    }

    /// Every request so far.
    pub(crate) fn all(&self) -> Vec<Post> {
        lock(&self.state).posts.clone()
    }

    /// How many requests arrived.
    pub(crate) fn posts(&self) -> usize {
        lock(&self.state).posts.len()
    }

    /// How many requests arrived under a key.
    pub(crate) fn posts_of(&self, key: &str) -> usize {
        lock(&self.state).posts.iter().filter(|post| post.key() == key).count()
    }

    /// How often it acted.
    pub(crate) fn effects(&self) -> usize {
        lock(&self.state).effects.len()
    }

    /// The most requests that it had at the same time.
    pub(crate) fn running_max(&self) -> usize {
        lock(&self.state).running_max
    }

    /// Requests and effects, to be held against `(posts, effects)`.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let state = lock(&self.state);
        (state.posts.len(), state.effects.len())
    }

    pub(crate) async fn wait_for_posts(&self, posts: usize) {
        eventually(&format!("{posts} requests"), async || self.posts() >= posts).await;
    }
}

async fn accept(listener: TcpListener, state: Arc<Mutex<State>>, released: watch::Receiver<usize>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let (state, released) = (state.clone(), released.clone());
        connections.spawn(async move {
            // A client that goes away is the client's affair.
            serve(stream, &state, released).await.ok();
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(
    stream: TcpStream,
    state: &Mutex<State>,
    mut released: watch::Receiver<usize>,
) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    while let Some(post) = read(&mut stream).await? {
        if post.method == "GET" {
            let (status, body) = tell(&mut lock(state), &post);
            write(&mut stream, status, None, &body).await?;
            continue;
        }
        let does = {
            let mut state = lock(state);
            state.running += 1;
            state.running_max = state.running_max.max(state.running);
            state.posts.push(post.clone());
            state.script.pop_front().unwrap_or_else(|| state.otherwise.clone())
        };
        let answered = answer(&mut stream, state, &post, does, &mut released).await;
        lock(state).running -= 1;
        if !answered? {
            return Ok(());
        }
    }
    Ok(())
}

/// Reads a request; `None` where the client has closed the connection.
async fn read(stream: &mut BufReader<TcpStream>) -> std::io::Result<Option<Post>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        lines.push(line.to_owned());
    }
    let mut words = lines[0].split(' ');
    let method = words.next().unwrap_or_default().to_owned();
    let path = words.next().unwrap_or_default().to_owned();
    let headers: Vec<(String, String)> = lines[1..]
        .iter()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect();
    let values = |wanted: &str| {
        let wanted = wanted.to_owned();
        headers
            .iter()
            .filter(move |(name, _)| name.eq_ignore_ascii_case(&wanted))
            .map(|(_, value)| value.clone())
            .collect::<Vec<_>>()
    };
    let length = values("content-length").first().and_then(|length| length.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await?;
    Ok(Some(Post {
        method,
        keys: values("idempotency-key"),
        path,
        body: String::from_utf8_lossy(&body).into_owned(),
        headers: headers.clone(),
    }))
}

/// Does what it should and says whether the connection stays open.
async fn answer(
    stream: &mut BufReader<TcpStream>,
    state: &Mutex<State>,
    post: &Post,
    does: Does,
    released: &mut watch::Receiver<usize>,
) -> std::io::Result<bool> {
    let act = || act(&mut lock(state), post);
    match does {
        Does::Act => write(stream, 200, None, &act()).await?,
        Does::ActAndAnswer(status, body) => {
            act();
            write(stream, status, None, &body).await?;
        }
        Does::Answer(status, body) => write(stream, status, None, &body).await?,
        Does::AnswerWith(status, header, body) => {
            write(stream, status, Some(header), &body).await?;
        }
        Does::ActAndStall => {
            let body = act();
            let turn = {
                let mut state = lock(state);
                state.stalled += 1;
                state.stalled
            };
            if released.wait_for(|released| turn <= *released).await.is_err() {
                return Ok(false);
            }
            write(stream, 200, None, &body).await?;
        }
        Does::ActAndDelay(time) => {
            let body = act();
            tokio::time::sleep(time).await;
            write(stream, 200, None, &body).await?;
        }
        Does::ActAndClose => {
            act();
            return Ok(false);
        }
        Does::ActAndCut => {
            let answer = head(200, None, act().len() + 20) + "{\"id\":";
            stream.write_all(answer.as_bytes()).await?;
            stream.flush().await?;
            return Ok(false);
        }
        Does::Close => return Ok(false),
        Does::ActAndSend(bytes, ends) => {
            act();
            stream.write_all(bytes.as_bytes()).await?;
            stream.flush().await?;
            match ends {
                Ends::Closed => {}
                Ends::Reset => stream.get_ref().set_zero_linger()?,
                // Until the client goes away.
                Ends::Never => while read(stream).await?.is_some() {},
            }
            return Ok(false);
        }
    }
    Ok(true)
}

/// Acts, unless the key has acted before and that counts; answers as it did then.
fn act(state: &mut State, post: &Post) -> String {
    let known = state.by_key.get(post.key()).copied().filter(|_| state.collapses);
    let effect = known.unwrap_or_else(|| {
        let number = state.effects.len();
        // The spaces are to be kept by whoever stores it.
        state.effects.push(format!("{{\"id\": \"pay_{}\",  \"ok\":true}}", number + 1));
        state.by_key.insert(post.key().to_owned(), number);
        number
    });
    state.effects[effect].clone()
}

/// Says what became of the key at the end of the path.
fn tell(state: &mut State, post: &Post) -> (u16, String) {
    state.questions += 1;
    let says = state.says.pop_front().unwrap_or_else(|| state.says_otherwise.clone());
    match says {
        Says::TheTruth => {
            let key = post.path.rsplit('/').next().unwrap_or_default();
            match state.by_key.get(key) {
                Some(effect) => {
                    let result = &state.effects[*effect];
                    (200, format!("{{\"state\": \"done\", \"result\": {result}}}"))
                }
                None => (404, "{}".to_owned()),
            }
        }
        Says::Running => (200, "{\"state\":\"running\"}".to_owned()),
        Says::NotFound => (404, "{}".to_owned()),
        Says::This(body) => (200, body),
        Says::Status(status) => (status, "{}".to_owned()),
    }
}

fn head(status: u16, header: Option<&str>, length: usize) -> String {
    let kind = "content-type: application/json";
    let header = match header {
        Some(header) if header.starts_with("content-type:") => header.to_owned(),
        Some(header) => format!("{kind}\r\n{header}"),
        None => kind.to_owned(),
    };
    format!("HTTP/1.1 {status} Answer\r\n{header}\r\ncontent-length: {length}\r\n\r\n")
}

async fn write(
    stream: &mut BufReader<TcpStream>,
    status: u16,
    header: Option<&str>,
    body: &str,
) -> std::io::Result<()> {
    stream.write_all((head(status, header, body.len()) + body).as_bytes()).await?;
    stream.flush().await
}
