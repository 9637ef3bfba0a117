//! Runs one claimed attempt: loads the policy, checks the time budget, calls the handler and decides what follows.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::limits::OUTPUT_BYTES_MAX;
use redrive_core::store::Settlement;
use redrive_core::{
    CatchPanic, Deferral, Failure, FailureKind, Job, Outcome, Policy, Verdict, Wait, WaitCondition, admit,
};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::engine::{Engine, ErrorChain, StoreTime, lock};
use crate::handler::{Context, Handler};
use crate::lease_table::{AbortReason, AttemptHandle};
use crate::policy_cache::PolicyError;
use crate::settle::EndedAttempt;

/// An attempt under its lease, in a slot. Dropping it frees the slot. If no settlement was submitted by then, the lease is no
/// longer renewed.
pub(crate) struct RunningAttempt {
    pub(crate) engine: Arc<Engine>,
    pub(crate) job: Arc<Job>,
    pub(crate) handle: Arc<AttemptHandle>,
    /// The store's time at the claim.
    pub(crate) claimed: StoreTime,
    submitted: bool,
    _slot: OwnedSemaphorePermit,
    /// Present if this attempt probes whether the node's problem is over.
    probe: Option<OwnedSemaphorePermit>,
}

/// Runs an attempt to its end and submits its settlement.
pub(crate) async fn execute(mut attempt: RunningAttempt) {
    if let Some(settlement) = attempt.run().await {
        attempt.submit(settlement).await;
    }
}

impl RunningAttempt {
    /// Creates an attempt that holds `slot` until it has ended.
    pub(crate) fn new(
        engine: Arc<Engine>,
        job: Arc<Job>,
        handle: Arc<AttemptHandle>,
        claimed: StoreTime,
        slot: OwnedSemaphorePermit,
    ) -> Self {
        Self { engine, job, handle, claimed, submitted: false, _slot: slot, probe: None }
    }

    /// Makes this attempt probe whether the node's problem is over, if there is a permit.
    pub(crate) fn with_probe(mut self, probe: Option<OwnedSemaphorePermit>) -> Self {
        self.probe = probe;
        self
    }

    /// Releases an attempt that has not been started.
    pub(crate) async fn release(mut self) {
        let settlement = self.settlement_without_policy(&Outcome::Released);
        self.submit(settlement).await;
    }

    /// Runs the attempt and returns its settlement, or none if the lease was lost. Does not call the handler if the job
    /// is paused or over its time budget, or if the node has a problem.
    async fn run(&self) -> Option<Settlement> {
        if self.job.paused {
            return Some(
                self.settlement_without_policy(&Outcome::Wait(Wait::until(WaitCondition::Unpaused))),
            );
        }
        let (policy, handler) = match self.load_policy().await {
            Ok(loaded) => loaded,
            Err(outcome) => return Some(self.settlement_without_policy(&outcome)),
        };
        if let Some(verdict) = self.check_budget(&policy) {
            return Some(self.settlement_over_budget(verdict));
        }
        if let Some(deferral) = self.node_deferral() {
            return Some(self.settlement_without_policy(&Outcome::Defer(deferral)));
        }
        let started = Instant::now();
        let cx = self.context(self.timeout(&policy));
        match call_handler(&*handler, cx, &self.handle).await {
            Ok(outcome) => Some(self.settlement_by_policy(&policy, outcome, started)),
            Err(AbortReason::CancelRequested) => Some(self.settlement_without_policy(&Outcome::Cancelled)),
            Err(AbortReason::Released) => Some(self.settlement_without_policy(&Outcome::Released)),
            Err(AbortReason::LeaseLost) => {
                self.engine.counts.lease_lost.add(1);
                tracing::warn!(epoch = self.job.epoch, "attempt aborted: lease lost");
                None
            }
        }
    }

    /// Returns the policy and the handler, or the outcome of an attempt that lacks one of them.
    async fn load_policy(&self) -> Result<(Arc<Policy>, Arc<dyn Handler>), Outcome> {
        let Some(handler) = self.engine.handlers.get(&self.job.kind) else {
            return Err(Outcome::reject(format!("no handler for kind {:?}", self.job.kind.as_str())));
        };
        match self.engine.policies.get(&self.job.policy).await {
            Ok(policy) => Ok((policy, handler.clone())),
            Err(error @ (PolicyError::Missing(_) | PolicyError::Damaged(..))) => Err(Outcome::reject(error)),
            Err(error @ PolicyError::Unavailable(..)) => {
                tracing::warn!(job = %self.job.id, error = %ErrorChain(&error), "attempt postponed");
                // A released job would be claimed again at once and meet the same failure.
                Err(Outcome::Snooze(self.engine.settings.poll))
            }
        }
    }

    /// Returns a verdict if the time budget does not allow this attempt to start.
    fn check_budget(&self, policy: &Policy) -> Option<Verdict> {
        let estimate = self.engine.estimates.get(&self.engine.estimate_key(&self.job));
        admit(&self.job.as_run(policy, estimate), self.claimed.at(Instant::now()))
    }

    /// Returns a deferral if a problem of the node occurred after the claim.
    fn node_deferral(&self) -> Option<Deferral> {
        if self.probe.is_some() { None } else { self.engine.node_pause.deferral() }
    }

    fn context(&self, timeout: Option<Duration>) -> Context {
        Context {
            job: self.job.clone(),
            timeout,
            attempt: self.handle.clone(),
            store: Some((self.engine.store.clone(), self.claimed)),
        }
    }

    fn timeout(&self, policy: &Policy) -> Option<Duration> {
        self.job.timeout.or(policy.attempt_timeout).or(self.engine.settings.attempt_timeout)
    }

    /// The settlement of an attempt whose handler returned, panicked or timed out.
    fn settlement_by_policy(&self, policy: &Policy, outcome: Outcome, started: Instant) -> Settlement {
        let ended = Instant::now();
        let took = ended.saturating_duration_since(started);
        let outcome = reject_oversized_output(outcome);
        self.engine.node_pause.observe(&outcome, started);
        let run = self.job.as_run(policy, self.update_estimate(&outcome, took));
        let verdict = self.engine.decide(&run, &outcome, self.claimed.at(ended));
        self.settlement(&outcome, verdict, took)
    }

    /// Returns the estimated duration of an attempt, which includes this attempt if it did its work.
    fn update_estimate(&self, outcome: &Outcome, took: Duration) -> Duration {
        let (estimates, key) = (&self.engine.estimates, self.engine.estimate_key(&self.job));
        match outcome {
            Outcome::Done(_) | Outcome::Fail(_) | Outcome::Reject(_) => estimates.observe(&key, took),
            Outcome::Snooze(_)
            | Outcome::Hold(_)
            | Outcome::Defer(_)
            | Outcome::Wait(_)
            | Outcome::Cancelled
            | Outcome::Released
            | Outcome::LeaseExpired => estimates.get(&key),
        }
    }

    /// The settlement of an attempt with an outcome for which every policy gives the same verdict.
    fn settlement_without_policy(&self, outcome: &Outcome) -> Settlement {
        let verdict = self.engine.decide_without_policy(outcome);
        self.settlement(outcome, verdict, self.claimed.read_at.elapsed())
    }

    /// The settlement of an attempt that came too late for the time budget. The job keeps the error of its last real attempt.
    fn settlement_over_budget(&self, verdict: Verdict) -> Settlement {
        let outcome = Outcome::reject("the time budget ran out before this attempt could start");
        let settlement = self.settlement(&outcome, verdict, Duration::ZERO);
        Settlement { error: None, ..settlement }
    }

    fn settlement(&self, outcome: &Outcome, verdict: Verdict, took: Duration) -> Settlement {
        let note = lock(&self.handle.note).take();
        let ended = EndedAttempt { note, ..EndedAttempt::of(&self.job, self.claimed.now, took) };
        self.engine.build_settlement(ended, outcome, verdict)
    }

    async fn submit(&mut self, settlement: Settlement) {
        self.handle.mark_ended();
        self.submitted = true;
        self.engine.submit(Some(self.job.clone()), settlement).await;
    }
}

impl Drop for RunningAttempt {
    fn drop(&mut self) {
        if !self.submitted {
            self.engine.leases.remove([self.job.lease()]);
        }
    }
}

/// Calls the handler under its timeout and catches its panics. Returns the reason if the attempt was aborted.
async fn call_handler(
    handler: &dyn Handler,
    cx: Context,
    handle: &AttemptHandle,
) -> Result<Outcome, AbortReason> {
    let timeout = cx.timeout;
    // Unless the handler returns by itself, this also stops the tasks that it has started elsewhere.
    let stop_guard = handle.stop.drop_guard_ref();
    let call = async {
        tokio::select! {
            biased;
            reason = handle.aborted() => Err(Interruption::Abort(reason)),
            outcome = handler.run(cx) => Ok(outcome),
            limit = expire(timeout) => Err(Interruption::Timeout(limit)),
        }
    };
    match CatchPanic::new("handler", call).await {
        Ok(Ok(outcome)) => {
            stop_guard.disarm();
            Ok(outcome)
        }
        Ok(Err(Interruption::Abort(reason))) => Err(reason),
        Ok(Err(Interruption::Timeout(limit))) => {
            let message = format!("attempt took longer than its timeout of {limit:?}");
            Ok(Outcome::Fail(Failure::new(FailureKind::Timeout, message)))
        }
        Err(panic) => Ok(panic.into()),
    }
}

enum Interruption {
    Abort(AbortReason),
    Timeout(Duration),
}

/// Waits for `timeout`. Without one it never returns and sets no timer.
async fn expire(timeout: Option<Duration>) -> Duration {
    match timeout {
        Some(limit) => {
            tokio::time::sleep(limit).await;
            limit
        }
        None => std::future::pending().await,
    }
}

/// Turns an output that no store accepts into a rejection.
fn reject_oversized_output(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Done(Some(output)) if output.len() > OUTPUT_BYTES_MAX => Outcome::reject(format!(
            "output is {} bytes long, at most {OUTPUT_BYTES_MAX} are allowed",
            output.len()
        )),
        Outcome::Done(_)
        | Outcome::Fail(_)
        | Outcome::Reject(_)
        | Outcome::Snooze(_)
        | Outcome::Hold(_)
        | Outcome::Defer(_)
        | Outcome::Wait(_)
        | Outcome::Cancelled
        | Outcome::Released
        | Outcome::LeaseExpired => outcome,
    }
}
