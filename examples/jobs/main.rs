//! A job server that misbehaves on demand: what a client of a stream has to live with.
//!
//!     jobs [PORT]             listens on loopback; port 8000 by default, 0 takes a free one
//!     jobs --naive [PORT]     ignores keys, and ends every stream without its terminal event
//!
//! | request | does |
//! |---|---|
//! | `POST /jobs` | takes a job, and streams its progress and then `done` |
//! | `GET /jobs/{key}` | says whether the job of that key runs or is done; 404 for another key |
//! | `GET /calls` | says the ids of the jobs that were taken, in order |
//! | `GET /counts` | says how many requests for a job there were, and how many jobs |
//! | `POST /control/{what}` | the next request meets `reject`, `cut`, `omit-done`, `abandon` or `stall` |
//! | `POST /control/release` | lets all jobs that stall go on |
//!
//! A job's key is the header `Idempotency-Key`, else the body's `id`. It is kept before the work
//! begins, so that a repeat makes no second job: it gets `done` with `"replay": true`, or 409 while
//! the job still runs.

mod server;

use std::io::Write as _;
use std::net::Ipv4Addr;
use std::sync::Arc;

use tokio::net::TcpListener;

use server::{Does, Jobs, Keys};

const DEFAULT_PORT: u16 = 8000;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let naive = args.first().is_some_and(|arg| arg == "--naive");
    if naive {
        args.remove(0);
    }
    let port = match args.as_slice() {
        [] => Some(DEFAULT_PORT),
        [port] => port.parse().ok(),
        [_, _, ..] => None,
    };
    let port = port.ok_or_else(|| anyhow::anyhow!("usage: jobs [--naive] [PORT]"))?;
    let jobs = if naive {
        Jobs::new(Keys::Ignored, Does::OmitDone)
    } else {
        Jobs::new(Keys::Honoured, Does::Work)
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    writeln!(std::io::stdout(), "http://{}", listener.local_addr()?)?;
    server::serve(listener, Arc::new(jobs)).await;
    Ok(())
}
