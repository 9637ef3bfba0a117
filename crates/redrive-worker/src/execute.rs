//! Runs one claimed attempt from its policy to its result.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive_core::limits::OUTPUT_BYTES_MAX;
use redrive_core::store::Settlement;
use redrive_core::{Await, Deferral, Job, Outcome, Policy, Verdict, Wait, admit};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::engine::{Causes, Engine, StoreTime};
use crate::handler::{Context, Handler, Note};
use crate::hold::{Abort, Flight, lock};
use crate::perform::perform;
use crate::policies::Unresolved;
use crate::settle::Evidence;

/// An attempt under lease, in a slot. Dropping it frees the slot and, unless it was handed over, lets the lease go.
pub(crate) struct Attempt {
    pub(crate) engine: Arc<Engine>,
    pub(crate) job: Arc<Job>,
    pub(crate) flight: Arc<Flight>,
    pub(crate) claimed: StoreTime,
    note: Arc<Mutex<Option<Note>>>,
    handed_over: bool,
    _slot: OwnedSemaphorePermit,
    /// Held by the attempt that finds out whether a node with a problem works again.
    probe: Option<OwnedSemaphorePermit>,
}

/// Runs an attempt to its end and hands its result over.
pub(crate) async fn execute(mut attempt: Attempt) {
    if let Some(settlement) = attempt.run().await {
        attempt.hand_over(settlement).await;
    }
}

impl Attempt {
    /// An attempt that holds `slot` until it has ended.
    pub(crate) fn new(
        engine: Arc<Engine>,
        job: Arc<Job>,
        flight: Arc<Flight>,
        claimed: StoreTime,
        slot: OwnedSemaphorePermit,
    ) -> Self {
        let note = Arc::default();
        Self { engine, job, flight, claimed, note, handed_over: false, _slot: slot, probe: None }
    }

    /// The same attempt, to find out whether the node works again.
    pub(crate) fn probing(mut self, probe: Option<OwnedSemaphorePermit>) -> Self {
        self.probe = probe;
        self
    }

    /// Hands an attempt back that has not been started.
    pub(crate) async fn release(mut self) {
        let settlement = self.close(&Outcome::Released);
        self.hand_over(settlement).await;
    }

    /// Leaves a job alone that is held; else resolves the policy, checks the budget, performs, normalises and decides. No result means that the lease is lost.
    async fn run(&self) -> Option<Settlement> {
        if self.job.held {
            return Some(self.close(&Outcome::Wait(Wait::until(Await::Unhold))));
        }
        let (policy, handler) = match self.resolve().await {
            Ok(resolved) => resolved,
            Err(outcome) => return Some(self.close(&outcome)),
        };
        if let Some(verdict) = self.refuse(&policy) {
            return Some(self.turn_away(verdict));
        }
        if let Some(deferral) = self.defer() {
            return Some(self.close(&Outcome::Defer(deferral)));
        }
        let started = Instant::now();
        let cx = self.context(self.timeout(&policy));
        match perform(&*handler, cx, &self.flight).await {
            Ok(outcome) => Some(self.conclude(&policy, outcome, started)),
            Err(Abort::CancelRequested) => Some(self.close(&Outcome::Cancelled)),
            Err(Abort::Released) => Some(self.close(&Outcome::Released)),
            Err(Abort::LeaseLost) => {
                self.engine.counts.lease_lost.add(1);
                tracing::warn!(epoch = self.job.epoch, "attempt aborted: lease lost");
                None
            }
        }
    }

    /// What the attempt needs to start, or the outcome of one that cannot.
    async fn resolve(&self) -> Result<(Arc<Policy>, Arc<dyn Handler>), Outcome> {
        let Some(handler) = self.engine.handlers.get(&self.job.kind) else {
            return Err(Outcome::reject(format!("no handler for kind {:?}", self.job.kind.as_str())));
        };
        match self.engine.policies.get(&self.job.policy).await {
            Ok(policy) => Ok((policy, handler.clone())),
            Err(unresolved @ (Unresolved::Missing(_) | Unresolved::Unreadable(..))) => {
                Err(Outcome::reject(unresolved))
            }
            Err(unresolved @ Unresolved::NotNow(..)) => {
                tracing::warn!(job = %self.job.id, error = %Causes(&unresolved), "attempt put off");
                // Handed back at once it would be claimed at once, into the same failure.
                Err(Outcome::Snooze(self.engine.settings.poll))
            }
        }
    }

    /// The verdict on an attempt that must not start.
    fn refuse(&self, policy: &Policy) -> Option<Verdict> {
        let estimate = self.engine.estimates.get(&self.engine.estimate_key(&self.job));
        admit(&self.job.as_run(policy, estimate), self.claimed.at(Instant::now()))
    }

    /// Why the attempt is put off although the job was claimed: the node got into trouble in between.
    fn defer(&self) -> Option<Deferral> {
        if self.probe.is_some() { None } else { self.engine.node_pause.deferral() }
    }

    fn context(&self, timeout: Option<Duration>) -> Context {
        Context {
            job: self.job.clone(),
            timeout,
            stop: self.flight.stop.clone(),
            note: self.note.clone(),
            store: Some((self.engine.store.clone(), self.claimed)),
        }
    }

    fn timeout(&self, policy: &Policy) -> Option<Duration> {
        self.job.timeout.or(policy.attempt_timeout).or(self.engine.settings.attempt_timeout)
    }

    /// The result of an attempt whose handler has returned, in one way or another.
    fn conclude(&self, policy: &Policy, outcome: Outcome, started: Instant) -> Settlement {
        let ended = Instant::now();
        let took = ended.saturating_duration_since(started);
        let outcome = normalise(outcome);
        self.engine.node_pause.observe(&outcome, started);
        let run = self.job.as_run(policy, self.estimate(&outcome, took));
        let verdict = self.engine.decide(&run, &outcome, self.claimed.at(ended));
        self.settlement(&outcome, verdict, took)
    }

    /// How long an attempt takes, this one included if it ran to its end.
    fn estimate(&self, outcome: &Outcome, took: Duration) -> Duration {
        let (estimates, key) = (&self.engine.estimates, self.engine.estimate_key(&self.job));
        match outcome {
            Outcome::Done(_) | Outcome::Fail(_) | Outcome::Reject(_) => estimates.observe(&key, took),
            Outcome::Snooze(_)
            | Outcome::Park(_)
            | Outcome::Defer(_)
            | Outcome::Wait(_)
            | Outcome::Cancelled
            | Outcome::Released
            | Outcome::LeaseExpired => estimates.get(&key),
        }
    }

    /// The result of an attempt with an outcome that no policy could change.
    fn close(&self, outcome: &Outcome) -> Settlement {
        let verdict = self.engine.decide_without_policy(outcome);
        self.settlement(outcome, verdict, self.claimed.read_at.elapsed())
    }

    /// The result of an attempt that was refused. The row keeps the error of the last one that was made.
    fn turn_away(&self, verdict: Verdict) -> Settlement {
        let outcome = Outcome::reject("the total budget was spent before this attempt could start");
        let settlement = self.settlement(&outcome, verdict, Duration::ZERO);
        Settlement { error: None, ..settlement }
    }

    fn settlement(&self, outcome: &Outcome, verdict: Verdict, took: Duration) -> Settlement {
        let note = lock(&self.note).take();
        let evidence = Evidence { note, ..Evidence::of(&self.job, self.claimed.now, took) };
        self.engine.settlement(evidence, outcome, verdict)
    }

    async fn hand_over(&mut self, settlement: Settlement) {
        self.flight.end();
        self.handed_over = true;
        self.engine.hand_over(Some(self.job.clone()), settlement).await;
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.handed_over {
            self.engine.held.remove([self.job.lease()]);
        }
    }
}

/// Turns what a store would refuse into a rejection that says why.
fn normalise(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Done(Some(output)) if output.len() > OUTPUT_BYTES_MAX => Outcome::reject(format!(
            "output is {} bytes long, at most {OUTPUT_BYTES_MAX} are allowed",
            output.len()
        )),
        Outcome::Done(_)
        | Outcome::Fail(_)
        | Outcome::Reject(_)
        | Outcome::Snooze(_)
        | Outcome::Park(_)
        | Outcome::Defer(_)
        | Outcome::Wait(_)
        | Outcome::Cancelled
        | Outcome::Released
        | Outcome::LeaseExpired => outcome,
    }
}
