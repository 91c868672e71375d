//! What the pool promises, against a real RabbitMQ and a real Postgres.

#[path = "../support/mod.rs"]
mod support;

mod replay;

mod concurrency;
mod layers;
mod outcomes;
mod people;
mod probe;

mod cases;
mod refusal;

mod command;
mod failures;
mod matrix;
mod verify;

mod drain;

mod broker;

mod bench;

mod cli;
mod python;
