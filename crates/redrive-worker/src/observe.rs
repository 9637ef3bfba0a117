//! Who wants to know what a worker does while it does it: metrics and live views.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::panics::catch;
use redrive_core::store::{Settled, Settlement};
use redrive_core::{Job, Timestamp};

/// Hears of what a worker does, on the worker's own tasks: it must be quick and must not block. A panic in it is logged,
/// and the worker continues.
pub trait Observer: Send + Sync + 'static {
    /// These jobs were claimed at this time of the store; their attempts are about to start.
    fn claimed(&self, _jobs: &[Arc<Job>], _now: Timestamp) {}

    /// A settlement was answered. `job` is as it was claimed.
    fn settled(&self, _job: &Job, _settlement: &Settlement, _answer: Settled) {}

    /// The store has answered a call of the worker about so many items.
    fn store_call(&self, _verb: &'static str, _items: usize, _took: Duration, _ok: bool) {}

    /// The worker has paused its claims because its node has this problem, or resumed them because it has none any more.
    fn node_problem(&self, _problem: Option<&str>) {}
}

/// The observers of a worker, called in the order in which they were added. A panic in one reaches neither the worker nor
/// the other observers.
#[derive(Default)]
pub(crate) struct Observers(Vec<Arc<dyn Observer>>);

impl Observers {
    pub(crate) fn add(&mut self, observer: Arc<dyn Observer>) {
        self.0.push(observer);
    }

    fn call_each(&self, call: impl Fn(&dyn Observer)) {
        for observer in &self.0 {
            if let Err(panic) = catch("an observer", || call(&**observer)) {
                tracing::error!(%panic, "the worker continues");
            }
        }
    }
}

impl Observer for Observers {
    fn claimed(&self, jobs: &[Arc<Job>], now: Timestamp) {
        self.call_each(|observer| observer.claimed(jobs, now));
    }

    fn settled(&self, job: &Job, settlement: &Settlement, answer: Settled) {
        self.call_each(|observer| observer.settled(job, settlement, answer));
    }

    fn store_call(&self, verb: &'static str, items: usize, took: Duration, ok: bool) {
        self.call_each(|observer| observer.store_call(verb, items, took, ok));
    }

    fn node_problem(&self, problem: Option<&str>) {
        self.call_each(|observer| observer.node_problem(problem));
    }
}
