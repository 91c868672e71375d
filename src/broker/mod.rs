//! RabbitMQ. Nothing else imports lapin, and nothing here knows of the ledger or of tools.
//!
//! Two connections: one consumes and acks, one publishes, so that a broker that blocks publishers
//! never blocks acks. Each is lost and rebuilt whole; an ack never crosses sessions.

mod acks;
mod bench;
mod connect;
mod consumer;
mod dead;
mod message;
mod publisher;
mod replies;
mod session;
mod topology;

pub use bench::{BenchQueues, Depth, broker_version};
pub use connect::{BrokerError, BrokerSettings};
pub use consumer::{AckError, Delivery};
pub use dead::{DeadLetter, peek_dead};
pub use message::{Message, Origin, Trips};
pub use publisher::{Published, Publisher};
pub use replies::Replies;
pub use session::{Consume, consume};
pub use topology::{LONGEST_WAY_BACK, Topology};
