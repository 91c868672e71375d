//! What the pool promises, against a real RabbitMQ and a real Postgres.

#[path = "../support/mod.rs"]
mod support;

mod replay;
