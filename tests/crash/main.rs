//! Real processes, real SIGKILL, real faults of the servers.
//!
//! A worker stops at a named point (see `src/failpoint.rs`) or while its request is outstanding, is
//! killed, and another one must bring the job to its end: deliveries, requests, effects, replies and
//! the ledger's row are held against each other. Where a server itself must fail, the test has one
//! of its own.

#[path = "../support/mod.rs"]
mod support;

mod accounting;
mod broker;
mod ledger;
mod scene;
mod servers;
mod set_aside;
mod settling;
mod table;
