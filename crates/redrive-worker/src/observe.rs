//! Who wants to know what a worker does while it does it: metrics and live views.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::store::{Settled, Settlement};
use redrive_core::{Job, Timestamp};

/// Hears of what a worker does, on the worker's own tasks: it must be quick and must not block.
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

/// Nobody.
pub(crate) struct Unobserved;

impl Observer for Unobserved {}
