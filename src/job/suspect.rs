//! Deliveries that may be what ends workers: written down before they are decoded, and run while
//! nothing else starts, so that a prefetched neighbour is not blamed.

use sha2::{Digest as _, Sha256};
use tokio::sync::RwLockWriteGuard;

use super::recorded::Recorded;
use super::{Context, End};
use crate::broker::Delivery;
use crate::retry::Backoff;
use crate::telemetry::chain;

/// How often the broker has given a message back before it is a suspect.
const RETURNS_OF_A_SUSPECT: u64 = 3;

/// What a delivery holds until its end: a suspect keeps every other start waiting.
pub(super) struct Alone<'a> {
    _starts: Option<RwLockWriteGuard<'a, ()>>,
}

/// Writes a suspect down and makes it run alone; any other delivery passes at once.
///
/// A suspect that has been started too often ends here, undecoded.
pub(super) async fn write_down<'a>(
    context: &'a Context,
    delivery: &Delivery,
) -> Result<Alone<'a>, End> {
    if delivery.origin.returns < RETURNS_OF_A_SUSPECT {
        drop(context.starts.read().await);
        return Ok(Alone { _starts: None });
    }
    let starts = tokio::select! {
        starts = context.starts.write() => starts,
        () = context.draining.cancelled() => return Err(End::HandBack),
    };
    let digest = digest(delivery);
    let mut backoff = Backoff::database();
    let started = loop {
        match context.ledger.count_start(&digest).await {
            Ok(started) => break started,
            Err(error) if context.ledger_is_away(&error, &mut backoff).await => {}
            Err(_) => return Err(End::HandBack),
        }
    };
    if started > context.config.max_attempts.0 {
        tracing::error!(
            returns = delivery.origin.returns,
            started,
            "this delivery was under way each time when a worker ended; it is set aside"
        );
        let message = "this job was under way each time when a worker ended";
        return Err(End::Bury(Box::new(Recorded::undecoded(message))));
    }
    tracing::warn!(
        returns = delivery.origin.returns,
        started,
        "this delivery came back several times; it runs alone"
    );
    Ok(Alone { _starts: Some(starts) })
}

/// Forgets a suspect that came to an end.
pub(super) async fn clear(context: &Context, delivery: &Delivery) {
    if delivery.origin.returns < RETURNS_OF_A_SUSPECT {
        return;
    }
    if let Err(error) = context.ledger.clear_suspect(&digest(delivery)).await {
        tracing::warn!(
            error = %chain(&error),
            "a suspect that came to an end was not forgotten"
        );
    }
}

fn digest(delivery: &Delivery) -> [u8; 32] {
    Sha256::digest(&delivery.body).into()
}
