//! Pauses claims while a problem of the node prevents attempts, and probes whether the problem is over.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive_core::{Deferral, DeferralScope, FailureKind, Outcome};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

use crate::engine::lock;
use crate::observe::Observer;

/// The first pause. Each further one is twice as long.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest pause. A node may stay idle for this long after its problem is over.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// How long a job is deferred that was claimed before the pause began. After that, another node may claim it.
const CLAIMED_WAIT: Duration = Duration::from_secs(1);

/// Tracks whether the node has a problem of its own. While it has one, the worker claims one job at a time, as a probe, and
/// pauses after each probe that fails.
pub(crate) struct NodePause {
    problem: Mutex<Option<Problem>>,
    /// One permit, held by the attempt that probes whether the problem is over.
    probe: Arc<Semaphore>,
    observer: Arc<dyn Observer>,
}

struct Problem {
    reason: String,
    /// The length of the current pause.
    pause: Duration,
    /// When the current pause ends.
    until: Instant,
    /// When the problem last occurred. An attempt that started earlier proves nothing about it.
    seen_at: Instant,
}

/// How many jobs may be claimed.
pub(crate) enum ClaimPermission {
    /// As many as there are free slots.
    Unlimited,
    /// One job. Its attempt holds this permit until it has ended.
    Probe(OwnedSemaphorePermit),
}

impl NodePause {
    pub(crate) fn new(observer: Arc<dyn Observer>) -> Self {
        Self { problem: Mutex::new(None), probe: Arc::new(Semaphore::new(1)), observer }
    }

    /// Waits until jobs may be claimed.
    pub(crate) async fn claim_permission(&self) -> ClaimPermission {
        while let Some(until) = self.paused_until() {
            sleep_until(until).await;
            let Ok(probe) = self.probe.clone().acquire_owned().await else {
                return ClaimPermission::Unlimited;
            };
            // The previous probe may have shown that the problem is over, or have prolonged the pause.
            if self.paused_until().is_some_and(|until| until <= Instant::now()) {
                return ClaimPermission::Probe(probe);
            }
        }
        ClaimPermission::Unlimited
    }

    /// Returns the deferral for a job that was claimed before the problem occurred, or none if the node has no problem.
    pub(crate) fn deferral(&self) -> Option<Deferral> {
        let problem = lock(&self.problem);
        problem.as_ref().map(|problem| Deferral::of_node(CLAIMED_WAIT, &problem.reason))
    }

    /// Starts or ends the pause, according to the outcome of an attempt that was started at `started`.
    pub(crate) fn observe(&self, outcome: &Outcome, started: Instant) {
        if let Outcome::Defer(Deferral { reason, scope: DeferralScope::Node, .. }) = outcome {
            self.pause(reason);
        } else if shows_working_node(outcome) {
            self.resume(started);
        }
    }

    fn paused_until(&self) -> Option<Instant> {
        lock(&self.problem).as_ref().map(|problem| problem.until)
    }

    fn pause(&self, reason: &str) {
        let now = Instant::now();
        let mut current = lock(&self.problem);
        let pause = match &*current {
            None => PAUSE_MIN,
            // Attempts that were running when the pause began do not prolong it.
            Some(problem) if now < problem.until => problem.pause,
            Some(problem) => (problem.pause * 2).min(PAUSE_MAX),
        };
        let until = match &*current {
            Some(problem) if now < problem.until => problem.until,
            Some(_) | None => now + pause,
        };
        let is_new = current.as_ref().is_none_or(|problem| problem.reason != reason);
        *current = Some(Problem { reason: reason.to_owned(), pause, until, seen_at: now });
        if is_new {
            tracing::error!(problem = reason, "this node cannot make attempts: claims are paused");
            self.observer.node_problem(Some(reason));
        }
    }

    fn resume(&self, started: Instant) {
        let mut current = lock(&self.problem);
        if current.as_ref().is_some_and(|problem| started > problem.seen_at) {
            *current = None;
            tracing::info!("this node makes attempts again");
            self.observer.node_problem(None);
        }
    }
}

/// Returns whether the outcome shows that the node can make attempts. A timeout does not: it may have passed before the
/// work began.
fn shows_working_node(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Done(_) => true,
        Outcome::Fail(failure) => failure.kind != FailureKind::Timeout,
        Outcome::Reject(_)
        | Outcome::Snooze(_)
        | Outcome::Hold(_)
        | Outcome::Defer(_)
        | Outcome::Wait(_)
        | Outcome::Cancelled
        | Outcome::Released
        | Outcome::LeaseExpired => false,
    }
}
