//! 3. Run the tool under lease and deadline; judge what happened.
//!
//! Requests repeat under one claim, inside the tool's budget, as far as [`crate::outcome::next`]
//! permits. From the first request on, "may have acted" outlives every later answer that does not
//! say what became of it; a tool with a probe is asked what did before anything is sent again.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use super::Context;
use super::claim::Claim;
use super::probe::{self, Found};
use super::receive::Call;
use super::recorded::{failed, unknown};
use super::trail::Trail;
use crate::broker::Delivery;
use crate::call::reply::{ErrorKind, Phase};
use crate::clock::Moment;
use crate::outcome::{
    Branch, EffectClass, Failure, Next, Outcome, Standing, Verdict, may_begin, next,
};
use crate::retry::Backoff;
use crate::telemetry::chain;
use crate::tools::{SendGate, ToolCall};

/// What an attempt came to.
pub(super) enum Judged {
    /// Answered for good.
    Completed(Outcome),
    /// Nothing was left behind.
    NotRun(Outcome),
    /// It may have acted.
    Unknown(Outcome),
    /// The worker stops, and nothing was sent.
    HandBack,
    /// The worker ends at once; the claim is left for the next one to judge.
    Left,
}

/// An attempt that has ended.
pub(super) struct Attempted {
    /// What it came to.
    pub(super) judged: Judged,
    /// Whether a probe has shown that no attempt before this one left anything behind.
    pub(super) evident: bool,
    /// What of it did not go the ordinary way.
    pub(super) trail: Trail,
}

/// Runs one attempt.
pub(super) async fn execute(
    context: &Context,
    call: &Call,
    delivery: &Delivery,
    claim: &Claim,
) -> Attempted {
    context.counters.attempts.count();
    let maybe_age = claim.granted.as_ref().and_then(|row| row.granted.maybe_age);
    let args = claim
        .granted
        .as_ref()
        .map_or_else(|| call.job.args.clone(), |row| row.granted.args.clone());
    let mut attempt = Attempt {
        context,
        call,
        claim,
        request: ToolCall {
            key: call.job.digest.render(call.tool.key_format()),
            args,
            traceparent: delivery.origin.traceparent.clone(),
        },
        begun: claim.granted.as_ref().map_or_else(Moment::now, |row| row.granted.asked),
        maybe_age,
        ambiguous: None,
        evident: false,
        key_is_known: false,
        last: None,
        trail: Trail::default(),
    };
    let judged = attempt.run().await;
    Attempted { judged, evident: attempt.evident, trail: attempt.trail }
}

struct Attempt<'a> {
    context: &'a Context,
    call: &'a Call,
    claim: &'a Claim,
    request: ToolCall,
    begun: Moment,
    /// How long before `begun` an earlier attempt may first have acted, if one may have.
    maybe_age: Option<Duration>,
    /// The last request of this attempt that may have acted.
    ambiguous: Option<Failure>,
    /// Whether a probe has shown that no request before it acted, in this attempt or an earlier one.
    evident: bool,
    /// Whether the downstream has said that it has the key: then a probe that does not know it decides
    /// nothing.
    key_is_known: bool,
    /// Why the last request that is known not to have acted did not.
    last: Option<(ErrorKind, Failure)>,
    trail: Trail,
}

/// What one request came to, beside a verdict.
enum Sent {
    Verdict(Verdict),
    /// The lease ended before the request began: no other may begin under this claim.
    LeaseEnded,
    /// The second stop came; whether the request had begun.
    Ended {
        begun: bool,
    },
}

impl Attempt<'_> {
    async fn run(&mut self) -> Judged {
        let budget = *self.call.tool.retry();
        let mut backoff =
            Backoff::new(budget.initial, budget.max_interval, Some(budget.max_elapsed));
        loop {
            let verdict = match self.send().await {
                Sent::Verdict(verdict) => verdict,
                Sent::LeaseEnded => {
                    tracing::warn!(
                        "the lease ended before the request began; nothing more is sent under this claim"
                    );
                    self.last.get_or_insert_with(lease_ended);
                    return self.ended();
                }
                Sent::Ended { begun } if begun || self.maybe_acted() => return Judged::Left,
                Sent::Ended { .. } => return Judged::HandBack,
            };
            crate::failpoint::reach("answered");
            self.remember(&verdict).await;
            let can_probe = self.call.tool.probe().is_some();
            let mut step = next(&verdict, self.standing(can_probe));
            if step == Next::Probe {
                match self.probe().await {
                    Found::Answered(outcome) => return Judged::Completed(outcome),
                    Found::NotRun if !self.key_is_known => {
                        self.nothing_acted();
                        if self.wait(&mut backoff, None).await {
                            continue;
                        }
                        return self.given_up();
                    }
                    Found::NotRun | Found::Nothing | Found::Stopped => {
                        step = next(&verdict, self.standing(false));
                    }
                }
            }
            match (step, verdict) {
                (Next::Complete, Verdict::Completed { outcome, .. }) => {
                    return Judged::Completed(outcome);
                }
                (Next::Complete, Verdict::Presumed(presumed)) => {
                    return Judged::Completed(presumed.outcome);
                }
                (Next::Complete | Next::Stop | Next::Probe, verdict) => {
                    self.note(verdict);
                    return self.ended();
                }
                (Next::Retry { after }, verdict) => {
                    self.note(verdict);
                    if !self.wait(&mut backoff, after).await {
                        return self.given_up();
                    }
                }
            }
        }
    }

    /// Sends one request, if the lease stands and the downstream remembers the key when its first
    /// byte is about to leave.
    async fn send(&self) -> Sent {
        let lease = self.claim.granted.as_ref().map(|row| row.lease.clone());
        let gate = SendGate::new({
            let (lease, memory) = (lease.clone(), self.memory());
            let (class, ambiguous_before) = (self.call.tool.effect(), self.maybe_acted());
            move || {
                lease.as_ref().is_none_or(|lease| lease.stands())
                    && may_begin(class, ambiguous_before, memory.covers_a_request())
            }
        });
        crate::failpoint::reach("sending");
        let lease_ended = async {
            match &lease {
                Some(lease) => lease.ended().await,
                None => std::future::pending().await,
            }
        };
        let mut answer = pin!(self.call.tool.call(self.request.clone(), gate.clone()));
        tokio::select! {
            biased;
            verdict = &mut answer => Sent::Verdict(verdict),
            () = self.context.ending.cancelled() => Sent::Ended { begun: !gate.shut() },
            () = lease_ended => {
                if gate.shut() { Sent::LeaseEnded } else { self.finish(answer).await }
            }
        }
    }

    /// A request that has begun goes on to its end, whatever becomes of the lease.
    async fn finish(&self, answer: impl Future<Output = Verdict>) -> Sent {
        tokio::select! {
            biased;
            verdict = answer => Sent::Verdict(verdict),
            () = self.context.ending.cancelled() => Sent::Ended { begun: true },
        }
    }

    fn standing(&self, can_probe: bool) -> Standing {
        Standing {
            class: self.call.tool.effect(),
            ambiguous_before: self.maybe_acted(),
            key_remembered: self.memory().covers_a_request(),
            can_probe,
        }
    }

    /// Keeps how a request ended that was not answered the ordinary way.
    async fn remember(&mut self, verdict: &Verdict) {
        if let Some(failure) = verdict.failure() {
            self.trail.request(failure);
        }
        self.key_is_known |= verdict.branch().is_some_and(Branch::shows_the_key_is_known);
        if verdict.branch() == Some(Branch::KeyReused) {
            self.context.counters.keys_reused.count();
        }
        if verdict.branch() == Some(Branch::MissingTerminalEvent) {
            let tool = self.call.tool.name().as_str();
            tracing::warn!("the tool's event stream ended without its terminal event");
            if let Err(error) = self.context.ledger.count_unended(tool).await {
                let error = chain(&error);
                tracing::warn!(%error, "a stream without a terminal event was not counted");
            }
        }
    }

    /// Asks the downstream what became of the call.
    ///
    /// An answer that it does not know the key counts once this attempt's last request was given up
    /// for as long as the registry says, and no request of an earlier attempt can be under way. A drain
    /// does not wait for what may take so long.
    async fn probe(&mut self) -> Found {
        let Some(policy) = self.call.tool.probe() else { return Found::Nothing };
        let given_up = Moment::now() + policy.settle_delay;
        let earlier = self.claim.granted.as_ref().filter(|_| self.maybe_age.is_some());
        let counts_from = earlier.map_or(given_up, |row| {
            given_up.max(row.granted.asked + row.granted.earlier_timeout + policy.settle_delay)
        });
        let (tool, key, stop) = (&self.call.tool, &self.request.key, &self.context.draining);
        let found = probe::ask(tool, policy, key, counts_from, &mut self.trail, stop).await;
        if let (Found::NotRun, Some(_)) = (&found, earlier) {
            match probe::key_was_known(self.context, self.call.job.key()).await {
                Ok(false) => {}
                Ok(true) => return Found::Nothing,
                Err(error) => {
                    let error = chain(&error);
                    tracing::warn!(%error, "what earlier attempts were told could not be read");
                    return Found::Nothing;
                }
            }
        }
        found
    }

    /// A probe has shown that no request under the key acted, and none can any more.
    fn nothing_acted(&mut self) {
        let message = "the tool does not know this call: nothing has happened".to_owned();
        let failure =
            Failure { branch: Branch::NotSent, phase: Phase::Finish, message, retry_after: None };
        self.maybe_age = None;
        self.ambiguous = None;
        self.evident = true;
        self.last = Some((ErrorKind::NotSent, failure));
    }

    /// Whether a request under this key may have acted, in this attempt or an earlier one.
    fn maybe_acted(&self) -> bool {
        self.maybe_age.is_some() || self.ambiguous.is_some()
    }

    fn memory(&self) -> KeyMemory {
        KeyMemory {
            begun: self.begun,
            age: self.maybe_age.unwrap_or_default(),
            timeout: self.call.tool.timeout(),
            memory: self.call.tool.key_memory(),
        }
    }

    /// Keeps what a request that did not settle the call has shown.
    fn note(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::NotSent(failure) => self.last = Some((ErrorKind::NotSent, failure)),
            Verdict::Refused(failure) => self.last = Some((ErrorKind::Refused, failure)),
            Verdict::InProgress(failure) | Verdict::Ambiguous(failure) => {
                self.ambiguous = Some(failure)
            }
            Verdict::Presumed(presumed) => self.ambiguous = Some(presumed.failure),
            Verdict::Completed { outcome, .. } => {
                let message =
                    outcome.error.map_or_else(String::new, |error| format!("{}; ", error.message));
                let message =
                    format!("{message}the answer to a resend is not the answer to the call");
                let failure = Failure {
                    branch: Branch::ResendAnswer,
                    phase: Phase::Finish,
                    message,
                    retry_after: None,
                };
                self.trail.request(&failure);
                self.ambiguous = Some(failure);
            }
        }
        let failure = self.ambiguous.as_ref().or(self.last.as_ref().map(|(_, failure)| failure));
        if let Some(failure) = failure {
            tracing::warn!(phase = ?failure.phase, reason = failure.message, may_have_acted = self.maybe_acted(), "the request did not settle the call");
        }
    }

    /// Waits for the next request; false where the budget is spent, the downstream asked for longer
    /// than what is left, or the worker stops.
    async fn wait(&self, backoff: &mut Backoff, after: Option<Duration>) -> bool {
        let Some(wait) = backoff.next_wait() else { return false };
        let after = after.unwrap_or_default();
        if backoff.left().is_some_and(|left| after > left) {
            return false;
        }
        self.context.pause(wait.max(after)).await
    }

    /// No other request follows in this round: it is over, or the worker stops.
    fn given_up(&mut self) -> Judged {
        if self.context.draining.is_cancelled() && !self.maybe_acted() {
            return Judged::HandBack;
        }
        self.ended()
    }

    /// What is known when no other request follows.
    fn ended(&mut self) -> Judged {
        let reads = self.call.tool.effect() == EffectClass::Read;
        let (kind, failure) = match (self.ambiguous.take(), self.last.take()) {
            (Some(failure), _) if reads => {
                let outcome = failed(ErrorKind::Ambiguous, Some(failure.phase), &failure.message);
                return Judged::NotRun(outcome);
            }
            (Some(failure), _) => (ErrorKind::Ambiguous, failure),
            (None, Some((kind, failure))) if self.maybe_age.is_none() => {
                let outcome = failed(kind, Some(failure.phase), &failure.message);
                return Judged::NotRun(outcome);
            }
            // An ambiguous request of an earlier attempt outlives this attempt's refusals.
            (None, Some((_, failure))) => (ErrorKind::Ambiguous, failure),
            (None, None) => return Judged::HandBack,
        };
        Judged::Unknown(unknown(kind, Some(failure.phase), &failure.message))
    }
}

/// What the downstream remembers of the key.
#[derive(Clone, Copy)]
struct KeyMemory {
    begun: Moment,
    /// How long before `begun` a request under the key may first have gone out.
    age: Duration,
    timeout: Duration,
    /// How long the key is remembered; none: for ever.
    memory: Option<Duration>,
}

impl KeyMemory {
    /// Whether repeats of the key still collapse when a request begun now would end.
    fn covers_a_request(self) -> bool {
        let ends = self.age + self.begun.elapsed() + self.timeout;
        self.memory.is_none_or(|memory| ends <= memory)
    }
}

fn lease_ended() -> (ErrorKind, Failure) {
    let message = "the worker lost its claim before the request began".to_owned();
    let failure =
        Failure { branch: Branch::LeaseEnded, phase: Phase::Connect, message, retry_after: None };
    (ErrorKind::NotSent, failure)
}
