//! When a worker has nothing left to do.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redrive_core::store::{Settled, Settlement};
use redrive_core::{Job, Timestamp};
use redrive_worker::Observer;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Watches a worker until it holds nothing and a claim that began after that has brought nothing.
#[derive(Default)]
pub(crate) struct Idle {
    held: Mutex<Held>,
    reached: Notify,
}

#[derive(Default)]
struct Held {
    attempts: usize,
    /// When the last one was settled.
    settled_at: Option<Instant>,
}

impl Idle {
    pub(crate) async fn reached(&self) {
        self.reached.notified().await;
    }

    fn with<T>(&self, look: impl FnOnce(&mut Held) -> T) -> T {
        look(&mut self.held.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Observer for Idle {
    fn claimed(&self, jobs: &[Arc<Job>], _now: Timestamp) {
        self.with(|held| held.attempts += jobs.len());
    }

    fn settled(&self, _job: &Job, _settlement: &Settlement, _answer: Settled) {
        self.with(|held| {
            held.attempts = held.attempts.saturating_sub(1);
            held.settled_at = Some(Instant::now());
        });
    }

    fn store_call(&self, verb: &'static str, items: usize, took: Duration, ok: bool) {
        let idle = |held: &mut Held| {
            let since = held.settled_at.map(|settled_at| settled_at.elapsed());
            held.attempts == 0 && since.is_none_or(|since| since >= took)
        };
        if verb == "claim" && items == 0 && ok && self.with(idle) {
            self.reached.notify_one();
        }
    }
}
