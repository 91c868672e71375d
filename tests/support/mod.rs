//! The harness of `tests/it` and `tests/crash`: real servers, the built binary, and a small world
//! that counts effects and misbehaves on request.
//!
//! Each test makes a [`World`] first: a Postgres schema and a queue prefix of its own, removed when
//! it is dropped. So tests run in parallel, and nothing waits for a fixed time to be right.

#![allow(dead_code, unused_imports, reason = "each test binary uses its own part of the harness")]

mod downstream;
mod producer;
mod proxy;
mod registry;
mod wait;
mod worker;
mod world;

pub(crate) use downstream::{Does, Downstream, Ends, Post, Says};
pub(crate) use producer::{DeadLetter, Producer, Publication, Reply, queue_exists};
pub(crate) use proxy::Proxy;
pub(crate) use registry::Tool;
pub(crate) use wait::{DEADLINE, eventually, timely, within};
pub(crate) use worker::{Worker, WorkerBuilder};
pub(crate) use world::{Ran, Row, World, job, key_of, key_of_text, run, service};
