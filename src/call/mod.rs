//! What a call is: its job, its key and its reply.
//!
//! Pure code without I/O that imports nothing else of this crate, so that a producer can use it
//! as it stands and a worker and a producer can never derive two keys for one call.
//!
//! ```text
//! body ── job ──> conversation, turn, name, ordinal ──────────┐
//!          └────> args ── canonical ──> canonical text ── key ┴─> digest ──> key ──> reply
//! ```

pub mod job;

pub mod canonical;

pub mod key;

pub mod reply;

#[cfg(test)]
mod tests;
