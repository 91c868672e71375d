//! The least of an HTTP server, for a tool to be called at: it reads each request to its end, and
//! answers all of them the same.

use std::io;
use std::net::Ipv4Addr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Heads and bodies of a benchmark are far shorter.
const REQUEST_BYTES_MAX: usize = 64 * 1024;
const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n{\"ok\":true}";

/// A server on loopback; ends when it is dropped.
pub(super) struct Downstream {
    port: u16,
    _serving: JoinSet<()>,
}

impl Downstream {
    pub(super) async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener));
        Ok(Self { port, _serving: serving })
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/bench", self.port)
    }
}

async fn serve(listener: TcpListener) {
    // Dropped with this task, and bounded by what a worker runs at a time.
    let mut connections = JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        connections.spawn(async move {
            // The other side sees a closed connection, which is all that there is to say.
            answer_all(socket).await.ok();
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn answer_all(mut socket: TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let mut read = Vec::new();
    loop {
        while let Some(length) = request_bytes(&read)? {
            read.drain(..length);
            socket.write_all(ANSWER).await?;
        }
        if socket.read_buf(&mut read).await? == 0 {
            return Ok(());
        }
    }
}

/// How long the first request is, once all of it was read.
fn request_bytes(read: &[u8]) -> io::Result<Option<usize>> {
    let Some(head) = read.windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
        return if read.len() > REQUEST_BYTES_MAX { Err(too_large()) } else { Ok(None) };
    };
    let length = head + 4 + content_length(read.get(..head).unwrap_or_default())?;
    if length > REQUEST_BYTES_MAX {
        return Err(too_large());
    }
    Ok((read.len() >= length).then_some(length))
}

/// The length of the body that a head announces; a body without one is refused.
fn content_length(head: &[u8]) -> io::Result<usize> {
    let head = std::str::from_utf8(head).map_err(|_| io::ErrorKind::InvalidData)?;
    let headers = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    let mut length = 0;
    for (name, value) in headers {
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().map_err(|_| io::ErrorKind::InvalidData)?;
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(io::ErrorKind::Unsupported.into());
        }
    }
    if length > REQUEST_BYTES_MAX { Err(too_large()) } else { Ok(length) }
}

fn too_large() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a request is too large")
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: &str =
        "POST /bench HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\n\r\n{\"a\":\"\r\n\r\n\"}";

    #[test]
    fn a_request_is_whole_with_its_last_byte() {
        for cut in 0..REQUEST.len() {
            assert_eq!(request_bytes(&REQUEST.as_bytes()[..cut]).unwrap(), None, "{cut}");
        }
        let two = REQUEST.repeat(2);
        assert_eq!(request_bytes(two.as_bytes()).unwrap(), Some(REQUEST.len()));
        assert_eq!(request_bytes(b"GET / HTTP/1.1\r\n\r\n").unwrap(), Some(18));
    }

    #[test]
    fn what_is_too_large_or_unclear_is_refused() {
        let with = |header: &str| format!("POST / HTTP/1.1\r\n{header}\r\n\r\n");
        for header in
            ["content-length: 99999999999999999999", "content-length: 1000000", "content-length: x"]
        {
            assert!(request_bytes(with(header).as_bytes()).is_err(), "{header}");
        }
        assert!(request_bytes(with("transfer-encoding: chunked").as_bytes()).is_err());
        assert!(request_bytes(&vec![b'x'; REQUEST_BYTES_MAX + 1]).is_err());
    }

    #[tokio::test]
    async fn requests_are_answered_however_they_are_split() {
        let downstream = Downstream::start().await.unwrap();
        let mut socket = TcpStream::connect(("127.0.0.1", downstream.port)).await.unwrap();
        socket.set_nodelay(true).unwrap();
        let text = REQUEST.repeat(3);
        for piece in text.as_bytes().chunks(7) {
            socket.write_all(piece).await.unwrap();
        }
        let mut answers = vec![0; ANSWER.len() * 3];
        let read = socket.read_exact(&mut answers);
        tokio::time::timeout(std::time::Duration::from_secs(30), read).await.unwrap().unwrap();
        assert_eq!(answers, ANSWER.repeat(3));
    }
}
