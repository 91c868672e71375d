//! callonce runs each tool call of an agent once, however often the call is delivered.
//!
//! A pool of workers takes tool-call jobs from RabbitMQ, derives each call's key from what stays
//! the same across a retry, claims the key in a Postgres ledger before acting, forwards it to the
//! tool, records the outcome, replies, and acks only then. The modules below stand in reading
//! order; [`job`] tells the story of one delivery.

pub mod call;
pub mod outcome;

pub mod job;

pub mod broker;
pub mod ledger;
pub mod tools;

pub mod config;
pub mod worker;

pub mod clock;
pub mod duration;
pub mod failpoint;
mod gather;
pub mod retry;
pub mod telemetry;

pub mod cli;

/// Whether a host's name stands for this machine alone.
fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}
