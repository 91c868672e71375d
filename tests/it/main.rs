//! What the pool promises, against a real RabbitMQ and a real Postgres.

#[path = "../support/mod.rs"]
mod support;

mod replay;

mod concurrency;
mod layers;

mod cases;
mod refusal;

mod failures;

mod drain;

mod broker;

mod cli;
mod python;
