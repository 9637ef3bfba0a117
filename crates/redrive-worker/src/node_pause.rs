//! Pauses the claims of a node that cannot do the work, and finds out when it can again.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive_core::{Deferral, DeferralScope, Fault, Outcome};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

use crate::hold::lock;
use crate::observe::Observer;

/// The first pause. Each further one is twice as long.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest pause. It is also the longest that a node which works again stays idle.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// How long a job waits that was claimed before the pause began. Another node may take it then.
const CLAIMED_WAIT: Duration = Duration::from_secs(1);

/// Whether the node has a problem of its own. While it has one, the worker claims one job at a time, with a pause after
/// each that could not be attempted either.
pub(crate) struct NodePause {
    problem: Mutex<Option<Problem>>,
    /// Held by the one attempt that finds out whether the node works again.
    probe: Arc<Semaphore>,
    observer: Arc<dyn Observer>,
}

struct Problem {
    reason: String,
    /// The length of the current pause.
    pause: Duration,
    /// When the current pause ends.
    until: Instant,
    /// When the problem was last met. An attempt that was started earlier says nothing about it.
    seen_at: Instant,
}

/// What may be claimed.
pub(crate) enum Intake {
    /// As much as there is room for.
    Full,
    /// One job, whose attempt holds this until it has ended.
    Probe(OwnedSemaphorePermit),
}

impl NodePause {
    pub(crate) fn new(observer: Arc<dyn Observer>) -> Self {
        Self { problem: Mutex::new(None), probe: Arc::new(Semaphore::new(1)), observer }
    }

    /// Waits until jobs may be claimed.
    pub(crate) async fn intake(&self) -> Intake {
        while let Some(until) = self.paused_until() {
            sleep_until(until).await;
            let Ok(probe) = self.probe.clone().acquire_owned().await else { return Intake::Full };
            // The probe before this one may have ended the problem, or prolonged the pause.
            if self.paused_until().is_some_and(|until| until <= Instant::now()) {
                return Intake::Probe(probe);
            }
        }
        Intake::Full
    }

    /// Why a job that was claimed before the problem came up is not attempted now.
    pub(crate) fn deferral(&self) -> Option<Deferral> {
        let problem = lock(&self.problem);
        problem.as_ref().map(|problem| Deferral::of_node(CLAIMED_WAIT, &problem.reason))
    }

    /// Learns from the outcome of an attempt that was started at `started`.
    pub(crate) fn observe(&self, outcome: &Outcome, started: Instant) {
        if let Outcome::Defer(Deferral { reason, scope: DeferralScope::Node, .. }) = outcome {
            self.pause(reason);
        } else if was_made(outcome) {
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
            // Attempts that were under way when the pause began do not prolong it.
            Some(problem) if now < problem.until => problem.pause,
            Some(problem) => (problem.pause * 2).min(PAUSE_MAX),
        };
        let until = match &*current {
            Some(problem) if now < problem.until => problem.until,
            Some(_) | None => now + pause,
        };
        let is_news = current.as_ref().is_none_or(|problem| problem.reason != reason);
        *current = Some(Problem { reason: reason.to_owned(), pause, until, seen_at: now });
        if is_news {
            tracing::error!(
                problem = reason,
                "this node cannot make attempts: it claims no jobs for a while"
            );
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

/// Whether an attempt got as far as doing its work. A timeout may have come before that.
fn was_made(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Done(_) => true,
        Outcome::Fail(failure) => failure.fault != Fault::Timeout,
        Outcome::Reject(_)
        | Outcome::Snooze(_)
        | Outcome::Park(_)
        | Outcome::Defer(_)
        | Outcome::Wait(_)
        | Outcome::Cancelled
        | Outcome::Released
        | Outcome::LeaseExpired => false,
    }
}
