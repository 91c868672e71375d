//! 2. Ask the ledger: fresh, done, claimed by another, unknown.
//!
//! A permit to run the tool is taken before the claim, so that a claim is followed by its send at
//! once. Who would have to wait for a permit looks the row up first, so that a replay never waits
//! behind running tools.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::SemaphorePermit;
use uuid::Uuid;

use super::Context;
use super::permits::Permit;
use super::probe::{self, Found};
use super::receive::Call;
use super::recorded::{Recorded, failed, unknown};
use super::trail::Trail;
use crate::broker::Delivery;
use crate::call::reply::{CallError, ErrorKind};
use crate::clock::Moment;
use crate::ledger::lease::KeptLease;
use crate::ledger::state::{self, Course, Evidence, Move, State, Terms};
use crate::ledger::{
    CallRow, ClaimAgain, ClaimRequest, Granted, LedgerError, Note, Proof, ProofBy,
};
use crate::outcome::Outcome;
use crate::retry::Backoff;
use crate::telemetry::Names;
use crate::tools::Tool;

/// The right to act, and how it was come by.
pub(super) struct Claim {
    /// What the ledger granted; none for a tool without a ledger row.
    pub(super) granted: Option<ClaimOfRow>,
    /// Given back when the attempt has ended.
    pub(super) permit: Permit,
}

/// A claim on a row.
pub(super) struct ClaimOfRow {
    pub(super) request: ClaimRequest,
    pub(super) granted: Granted,
    pub(super) lease: KeptLease,
}

/// What asking the ledger came to.
pub(super) enum Claimed {
    /// This attempt may act.
    Mine(Claim),
    /// The row answers.
    Recorded(Recorded),
    /// The job itself says that it must not begin.
    Refused(Recorded),
    /// Too many attempts lapsed; the row was settled as unknown, and the job is to be set aside.
    TooMany(Recorded),
    /// Somebody else acts, or no permit came free in time.
    Busy,
    /// Too many calls of the same tool wait; this one makes room for other tools.
    Crowded,
    /// The worker stops, and nothing was begun.
    Draining,
}

/// Claims the call, or says why not.
pub(super) async fn claim(context: &Context, call: &Call, delivery: &Delivery) -> Claimed {
    if !call.tool.uses_ledger() {
        return without_row(context, call, delivery).await;
    }
    let mut asking = Asking {
        context,
        call,
        request: request(context, call),
        claim: Uuid::new_v4(),
        permit: context.permits.try_take(&call.tool),
        received: delivery.received,
        unanswered: false,
        may_have_set_aside: delivery.redelivered,
        waiting: None,
        doubt: None,
    };
    let claimed = asking.ask().await;
    match claimed {
        Claimed::Mine(_) | Claimed::Recorded(_) | Claimed::Refused(_) | Claimed::TooMany(_) => {}
        // A claim whose answer never came may stand: nothing is left behind.
        Claimed::Busy | Claimed::Crowded | Claimed::Draining => asking.release().await,
    }
    claimed
}

/// A tool without a row needs a permit alone.
async fn without_row(context: &Context, call: &Call, delivery: &Delivery) -> Claimed {
    let mut backoff = Backoff::database();
    loop {
        match context.ledger.expired(&call.job).await {
            Ok(false) => break,
            Ok(true) => return Claimed::Refused(expired()),
            Err(error) if context.ledger_is_away(&error, &mut backoff).await => {}
            Err(_) => return Claimed::Draining,
        }
    }
    match wait_for_permit(context, &call.tool, delivery.received).await {
        Ok(permit) => Claimed::Mine(Claim { granted: None, permit }),
        Err(claimed) => claimed,
    }
}

async fn wait_for_permit(
    context: &Context,
    tool: &Tool,
    received: Instant,
) -> Result<Permit, Claimed> {
    let left = context.config.hold_max.0.saturating_sub(received.elapsed());
    let place = context.permits.place();
    tokio::select! {
        biased;
        () = context.draining.cancelled() => Err(Claimed::Draining),
        permit = context.permits.take(tool) => permit.ok_or(Claimed::Busy),
        () = context.permits.give_way(), if place.is_none() => Err(Claimed::Crowded),
        () = tokio::time::sleep(left) => Err(Claimed::Busy),
    }
}

fn request(context: &Context, call: &Call) -> ClaimRequest {
    let micros = |duration: Duration| i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
    ClaimRequest {
        job: call.job.clone(),
        terms: Terms {
            effect: call.tool.effect(),
            sent_as: call.tool.sent_as(),
            timeout: micros(call.tool.timeout()),
            key_memory: call.tool.key_memory().map(micros),
            max_attempts: context.config.max_attempts.0,
            approval: call.tool.needs_approval(),
        },
        lease: call.tool.lease(),
        worker: Arc::clone(&context.worker),
    }
}

/// One delivery's dealings with the row of its key.
struct Asking<'a> {
    context: &'a Context,
    call: &'a Call,
    request: ClaimRequest,
    claim: Uuid,
    permit: Option<Permit>,
    received: Instant,
    /// Whether a claim was sent and its answer never came.
    unanswered: bool,
    /// Whether this job, or this delivery's statement of which no answer came, may have settled the
    /// row as one of too many attempts without going to the dead queue yet.
    may_have_set_aside: bool,
    /// Since when this delivery waits for another attempt, in one of the worker's places for that.
    waiting: Option<(Instant, SemaphorePermit<'a>)>,
    /// The claim under which the call may have acted, when that was seen first.
    doubt: Option<Doubt>,
}

/// A claim whose attempt has ended without saying what it did.
struct Doubt {
    claim: Option<Uuid>,
    /// When this delivery first saw that, on this worker's own clock.
    seen: Moment,
    /// Whether the downstream was asked and could not say.
    asked: bool,
}

/// What one look at the ledger came to.
enum Look {
    Ended(Box<Claimed>),
    /// The row has changed: look again at once.
    Again,
    /// Another attempt is outstanding, under this claim.
    Wait(Uuid),
    /// It may be claimed, once there is a permit.
    NeedsPermit,
}

impl Look {
    fn ended(claimed: Claimed) -> Self {
        Self::Ended(Box::new(claimed))
    }
}

impl Asking<'_> {
    async fn ask(&mut self) -> Claimed {
        let mut away = Backoff::database();
        loop {
            if self.context.draining.is_cancelled() {
                return Claimed::Draining;
            }
            match self.look().await {
                Ok(Look::Ended(claimed)) => return *claimed,
                Ok(Look::Again) => {}
                Ok(Look::NeedsPermit) => {
                    match wait_for_permit(self.context, &self.call.tool, self.received).await {
                        Ok(permit) => self.permit = Some(permit),
                        Err(claimed) => return claimed,
                    }
                }
                Ok(Look::Wait(claim)) => {
                    // Whoever waits for another attempt holds no permit that a third could use.
                    self.permit = None;
                    let Some(left) = self.left_to_wait() else { return Claimed::Busy };
                    let changed = self.context.waits.changed(self.request.job.key(), claim);
                    tokio::select! {
                        () = self.context.draining.cancelled() => return Claimed::Draining,
                        // Over or changed: either way the row is looked at once more.
                        _ = tokio::time::timeout(left, changed) => {}
                    }
                }
                Err(_) if self.received.elapsed() > self.context.config.hold_max.0 => {
                    return Claimed::Busy;
                }
                Err(error) => {
                    if !self.context.ledger_is_away(&error, &mut away).await {
                        return Claimed::Draining;
                    }
                }
            }
        }
    }

    /// How long this delivery may go on waiting for another attempt, if it may.
    fn left_to_wait(&mut self) -> Option<Duration> {
        let longest = self.context.config.wait_for_claim.0;
        if let Some((since, _)) = &self.waiting {
            let left = longest.saturating_sub(since.elapsed());
            return (!left.is_zero()).then_some(left);
        }
        tracing::info!(
            "another attempt of this call is outstanding; waiting for it, nothing is sent"
        );
        let place = self.context.waiting.try_acquire().ok()?;
        self.waiting = Some((Instant::now(), place));
        Some(longest)
    }

    async fn look(&mut self) -> Result<Look, LedgerError> {
        // Who waits has seen the row: an insert would only be in its way.
        if self.permit.is_some() && self.waiting.is_none() && !self.request.terms.approval {
            let granted = self.context.ledger.claim(&self.request, self.claim).await;
            if let Some(granted) = self.answered(granted)? {
                return Ok(self.mine(granted));
            }
        }
        match self.context.ledger.read(self.request.job.key(), Some(&self.request.job)).await? {
            Some(row) => self.judge(row).await,
            None if self.context.ledger.expired(&self.request.job).await? => {
                Ok(Look::ended(Claimed::Refused(expired())))
            }
            None if self.request.terms.approval => {
                if self.context.ledger.insert_held(&self.request).await? {
                    tracing::info!("held: a person must say whether this call may run");
                }
                Ok(Look::Again)
            }
            None if self.permit.is_some() => {
                self.waiting = None;
                Ok(Look::Again)
            }
            None => Ok(Look::NeedsPermit),
        }
    }

    async fn judge(&mut self, row: CallRow) -> Result<Look, LedgerError> {
        if !row.same_call {
            return Ok(Look::ended(Claimed::Refused(self.collision())));
        }
        if row.record.claim == Some(self.claim) {
            // Only a claim whose answer was lost is found here, by whatever connection it was sent.
            self.unanswered = true;
            match row.record.state {
                State::InFlight => {
                    let confirmed = self.context.ledger.confirm(&self.request, self.claim).await?;
                    return Ok(confirmed.map_or(Look::Again, |granted| self.mine(granted)));
                }
                State::Unknown => return Ok(self.begin_again().await),
                State::Completed | State::NotRun | State::Held => {}
            }
        }
        if row.record.state == State::NotRun && row.expired {
            return Ok(Look::ended(Claimed::Refused(expired())));
        }
        if let Some(look) = self.probe(&row).await? {
            return Ok(look);
        }
        match state::course(&row.record, self.claim, row.now, &self.request.terms) {
            Course::Wait => Ok(row.record.claim.map_or(Look::Again, Look::Wait)),
            Course::Answer => Ok(self.answer(row)),
            Course::Try(Move::Lapse { seen, too_many }) => self.lapse(seen, too_many).await,
            Course::Try(Move::Adopt { seen }) => {
                self.context.ledger.adopt(self.request.job.key(), seen, false).await?;
                Ok(Look::Again)
            }
            Course::Try(Move::Hold { seen }) => {
                if self.context.ledger.hold(self.request.job.key(), seen).await? {
                    tracing::info!("held: a person must say whether this call may run");
                }
                Ok(Look::Again)
            }
            Course::Try(Move::Reclaim { seen, .. }) => {
                self.claim_again(seen, ClaimAgain::NotRun).await
            }
            Course::Try(Move::Resend { seen, .. }) => {
                self.claim_again(seen, ClaimAgain::Unknown).await
            }
            Course::Try(Move::TakeOver { seen, .. }) => {
                self.claim_again(Some(seen), ClaimAgain::Lapsed).await
            }
            // A delivery that has not claimed can make none of these.
            Course::Try(
                Move::Renew(_)
                | Move::Complete(_)
                | Move::KeepCompletion(_)
                | Move::AdoptOwn(_)
                | Move::SettleNotRun { .. }
                | Move::SettleUnknown(_)
                | Move::Prove { .. }
                | Move::Approve,
            ) => Ok(Look::Again),
        }
    }

    /// Asks the downstream what became of a call that is unknown, where it can be asked. `None`: it
    /// cannot, or could not say, and the row decides.
    async fn probe(&mut self, row: &CallRow) -> Result<Option<Look>, LedgerError> {
        let lapsed = row.record.state == State::InFlight && row.record.lease_until < row.now;
        if !lapsed && row.record.state != State::Unknown {
            return Ok(None);
        }
        let doubt = match self.doubt.take() {
            Some(doubt) if doubt.claim == row.record.claim => doubt,
            Some(_) | None => Doubt { claim: row.record.claim, seen: Moment::now(), asked: false },
        };
        let (seen, asked) = (doubt.seen, doubt.asked);
        self.doubt = Some(doubt);
        let tool = &self.call.tool;
        let Some(policy) = tool.probe() else { return Ok(None) };
        // Another place has not heard of the key.
        if lapsed || asked || row.record.sent_as != self.request.terms.sent_as {
            return Ok(None);
        }
        if self.permit.is_none() {
            return Ok(Some(Look::NeedsPermit));
        }
        let key = self.request.job.digest.render(tool.key_format());
        let counts_from = seen + row.timeout + policy.settle_delay;
        let mut trail = Trail::default();
        let stop = &self.context.draining;
        let found = probe::ask(tool, policy, &key, counts_from, &mut trail, stop).await;
        let (evidence, outcome) = match found {
            Found::Stopped => return Ok(Some(Look::ended(Claimed::Draining))),
            Found::NotRun if probe::key_was_known(self.context, self.request.job.key()).await? => {
                return self.asked_in_vain(row, seen, trail).await;
            }
            Found::Nothing => return self.asked_in_vain(row, seen, trail).await,
            Found::Answered(outcome) => (Evidence::Completed, outcome),
            Found::NotRun => {
                let message = "the tool does not know this call: nothing has happened";
                (Evidence::NotRun, failed(ErrorKind::NotSent, None, message))
            }
        };
        let by = ProofBy::Probe { worker: &self.context.worker };
        let proof = Proof { evidence, outcome, by };
        if self.context.ledger.prove(self.request.job.key(), row.record.claim, &proof).await? {
            tracing::warn!(?evidence, "the call was unknown; the tool was asked by its key");
        }
        Ok(Some(Look::Again))
    }

    /// Keeps a probe's answers that did not decide, and looks again: they took their time, and the row
    /// may say something else by now.
    async fn asked_in_vain(
        &mut self,
        row: &CallRow,
        seen: Moment,
        trail: Trail,
    ) -> Result<Option<Look>, LedgerError> {
        self.doubt = Some(Doubt { claim: row.record.claim, seen, asked: true });
        let Some(detail) = trail.into_json() else { return Ok(Some(Look::Again)) };
        let note = Note {
            key: self.request.job.key(),
            event: "probe",
            claim: row.record.claim,
            attempt: row.record.attempt,
            worker: &self.context.worker,
            detail: &detail,
        };
        self.context.ledger.note(&note).await?;
        Ok(Some(Look::Again))
    }

    async fn claim_again(
        &mut self,
        seen: Option<Uuid>,
        how: ClaimAgain,
    ) -> Result<Look, LedgerError> {
        if self.permit.is_none() {
            return Ok(Look::NeedsPermit);
        }
        let granted = self.context.ledger.claim_again(&self.request, seen, self.claim, how).await;
        let Some(granted) = self.answered(granted)? else { return Ok(Look::Again) };
        match how {
            ClaimAgain::Lapsed => {
                self.context.counters.takeovers.count();
                tracing::warn!(
                    attempt = granted.attempt,
                    "the lease of the attempt before this one ran out; taken over, sending again under the same key"
                );
            }
            ClaimAgain::Unknown => {
                tracing::warn!(
                    attempt = granted.attempt,
                    "the call is unknown; sending again under the same key"
                );
            }
            ClaimAgain::NotRun => {}
        }
        Ok(self.mine(granted))
    }

    /// Remembers a claim that was sent and whose answer never came.
    fn answered(
        &mut self,
        granted: Result<Option<Granted>, LedgerError>,
    ) -> Result<Option<Granted>, LedgerError> {
        self.unanswered |= granted.as_ref().is_err_and(|error| error.may_have_been_sent());
        granted
    }

    fn answer(&self, row: CallRow) -> Look {
        let set_aside = row.record.state == State::Unknown && row.record.too_many;
        let Some(recorded) = Recorded::row(row, false) else { return Look::Again };
        Look::ended(if set_aside && self.may_have_set_aside {
            Claimed::TooMany(recorded)
        } else {
            Claimed::Recorded(recorded)
        })
    }

    /// The lease ran out and nobody may send again.
    async fn lapse(&mut self, seen: Uuid, too_many: bool) -> Result<Look, LedgerError> {
        let key = self.request.job.key();
        let outcome = lapsed(too_many);
        self.may_have_set_aside |= too_many;
        if !self.context.ledger.lapse(key, seen, too_many, &outcome).await? {
            return Ok(Look::Again);
        }
        crate::failpoint::reach("lapsed");
        self.context.counters.unknowns.count();
        tracing::warn!(
            too_many,
            "the lease of the last attempt ran out, and it may have acted; the call is unknown"
        );
        Ok(Look::Again)
    }

    fn mine(&mut self, granted: Granted) -> Look {
        let Some(permit) = self.permit.take() else { return Look::NeedsPermit };
        crate::failpoint::reach("claimed");
        let (key, length) = (self.request.job.key(), self.request.lease);
        let lease = self.context.leases.keep(key, granted.claim, granted.asked, length);
        Names::attempt(granted.attempt, granted.claim);
        let row = ClaimOfRow { request: self.request.clone(), granted, lease };
        Look::ended(Claimed::Mine(Claim { granted: Some(row), permit }))
    }

    fn collision(&self) -> Recorded {
        self.context.counters.collisions.count();
        tracing::error!(
            "another call has this key: refused; nothing was run and nothing is replayed"
        );
        let message = "another call has the same key; nothing was run";
        Recorded::refusal(CallError::new(ErrorKind::BadJob, None, message))
    }

    /// This delivery's own claim lapsed before it could be confirmed, and another delivery said so.
    /// Nothing was sent under it, which nobody else can know: it is given back, and never made again.
    async fn begin_again(&mut self) -> Look {
        self.release().await;
        self.claim = Uuid::new_v4();
        self.unanswered = false;
        Look::Again
    }

    /// Gives back a claim whose answer never came, so that nobody has to wait for its lease.
    async fn release(&self) {
        if self.unanswered {
            super::settle::release(self.context, &self.request, self.claim).await;
        }
    }
}

/// What is known of an attempt whose lease ran out.
pub(super) fn lapsed(too_many: bool) -> Outcome {
    if too_many {
        unknown(
            ErrorKind::TooManyAttempts,
            None,
            "the workers that ran this call were lost too often",
        )
    } else {
        unknown(ErrorKind::WorkerLost, None, "the worker that ran this call was lost")
    }
}

fn expired() -> Recorded {
    Recorded::refusal(CallError::new(
        ErrorKind::Expired,
        None,
        "expires_at had passed before the call was begun",
    ))
}
