//! Reports what a worker does as it happens, for metrics and live views.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::panics::catch;
use redrive_core::store::{SettleResult, Settlement};
use redrive_core::{Job, Timestamp};

/// Receives the events of a worker. The worker calls it on its own tasks, so it must be quick and must not block. A panic in it
/// is logged, and the worker continues.
pub trait Observer: Send + Sync + 'static {
    /// The worker claimed these jobs and is about to start their attempts. `now` is the store's time.
    fn claimed(&self, _jobs: &[Arc<Job>], _now: Timestamp) {}

    /// The store answered a settlement with `result`. `job` is the job as it was claimed.
    fn settled(&self, _job: &Job, _settlement: &Settlement, _result: SettleResult) {}

    /// The store answered a call of the worker, or failed. `items` is the number of items in the answer.
    fn store_call(&self, _verb: &'static str, _items: usize, _took: Duration, _ok: bool) {}

    /// The worker paused its claims because of this problem of its node, or resumed them because the problem is over (`None`).
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
                tracing::error!(%panic, "an observer panicked: the worker continues");
            }
        }
    }
}

impl Observer for Observers {
    fn claimed(&self, jobs: &[Arc<Job>], now: Timestamp) {
        self.call_each(|observer| observer.claimed(jobs, now));
    }

    fn settled(&self, job: &Job, settlement: &Settlement, result: SettleResult) {
        self.call_each(|observer| observer.settled(job, settlement, result));
    }

    fn store_call(&self, verb: &'static str, items: usize, took: Duration, ok: bool) {
        self.call_each(|observer| observer.store_call(verb, items, took, ok));
    }

    fn node_problem(&self, problem: Option<&str>) {
        self.call_each(|observer| observer.node_problem(problem));
    }
}
