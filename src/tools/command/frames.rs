//! What a worker and a supervisor say to each other: frames of a length and that many bytes.
//!
//! The worker asks once; the supervisor tells what happens. Both are the same binary, so that the
//! form of a frame is nobody else's business and may change with every version.

use std::io;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// No message of the broker is larger (128 MiB by default), and all else is written by hand.
const FRAME_BYTES_MAX: usize = 256 * 1024 * 1024;

/// What is to be run, beside the bytes of its standard input. It holds secrets, so it is never shown.
#[derive(Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) program: String,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    pub(super) dir: Option<String>,
    /// After which SIGTERM is sent.
    pub(super) timeout: Duration,
    /// After which SIGKILL follows.
    pub(super) grace: Duration,
}

/// What the supervisor tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Event {
    /// It waits for the request.
    Ready,
    /// The program was not started; it is over.
    NotSpawned {
        /// The system's reason, if it has one.
        errno: Option<i32>,
    },
    /// The program runs.
    Spawned {
        /// Its process, which leads its group.
        pid: i32,
    },
    /// Its time is over; it is being ended.
    TimedOut,
    /// Its process has exited.
    Exited {
        /// Its exit code.
        code: i32,
    },
    /// Its process was ended by a signal.
    Signalled {
        /// The signal's number.
        signal: i32,
    },
    /// All that it has started was ended; the last word.
    Ended {
        /// Whether something could not be.
        left_behind: bool,
    },
}

pub(super) async fn write_request(
    to: &mut (impl AsyncWrite + Unpin),
    request: &Request,
    input: &[u8],
) -> io::Result<()> {
    write(to, &serde_json::to_vec(request)?).await?;
    write(to, input).await
}

/// The request and its input; none where the other side has closed before it had asked.
pub(super) async fn read_request(
    from: &mut (impl AsyncRead + Unpin),
) -> io::Result<Option<(Request, Vec<u8>)>> {
    let Some(request) = read_json(from).await? else {
        return Ok(None);
    };
    Ok(read(from).await?.map(|input| (request, input)))
}

pub(super) async fn write_event(
    to: &mut (impl AsyncWrite + Unpin),
    event: Event,
) -> io::Result<()> {
    write(to, &serde_json::to_vec(&event)?).await
}

/// The next event; none where the other side has closed.
pub(super) async fn read_event(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Event>> {
    read_json(from).await
}

async fn write(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    to.write_all(&length.to_be_bytes()).await?;
    to.write_all(bytes).await
}

async fn read_json<T: DeserializeOwned>(
    from: &mut (impl AsyncRead + Unpin),
) -> io::Result<Option<T>> {
    match read(from).await? {
        Some(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        None => Ok(None),
    }
}

/// One frame; none where there is no whole one.
async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length).await {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = Vec::new();
    from.take(length as u64).read_to_end(&mut bytes).await?;
    Ok((bytes.len() == length).then_some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        Request {
            program: "/bin/true".to_owned(),
            args: vec!["ü".to_owned(), String::new()],
            env: vec![("A".to_owned(), "b\nc".to_owned())],
            dir: None,
            timeout: Duration::from_millis(1500),
            grace: Duration::from_secs(2),
        }
    }

    #[tokio::test]
    async fn what_is_written_is_read() {
        let mut wire = Vec::new();
        write_request(&mut wire, &request(), b"{\"a\":1}").await.unwrap();
        let (read, input) = read_request(&mut &wire[..]).await.unwrap().unwrap();
        let (read, written) = (serde_json::to_value(read), serde_json::to_value(request()));
        assert_eq!((read.unwrap(), &*input), (written.unwrap(), &b"{\"a\":1}"[..]));

        let events = [Event::NotSpawned { errno: Some(2) }, Event::Ended { left_behind: true }];
        let mut wire = Vec::new();
        for event in events {
            write_event(&mut wire, event).await.unwrap();
        }
        let mut from = &wire[..];
        for event in events {
            assert_eq!(read_event(&mut from).await.unwrap(), Some(event));
        }
        assert_eq!(read_event(&mut from).await.unwrap(), None);
    }

    /// Whatever of a request is missing, it is none: nothing is started by half of one.
    #[tokio::test]
    async fn a_part_of_a_request_is_no_request() {
        let mut wire = Vec::new();
        write_request(&mut wire, &request(), b"{\"a\":1}").await.unwrap();
        for end in 0..wire.len() {
            assert!(read_request(&mut &wire[..end]).await.unwrap().is_none(), "{end}");
        }
    }
}
