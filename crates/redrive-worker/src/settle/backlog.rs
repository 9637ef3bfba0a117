//! Results that the store could not take, and when they are offered again.

use std::collections::VecDeque;
use std::time::Duration;

use redrive_core::Lease;
use redrive_core::store::StoreError;
use tokio::time::Instant;

use super::Finished;
use crate::engine::{Causes, Engine};

/// The shortest and the longest wait between two offers, whatever the storage policy says.
const WAIT_MIN: Duration = Duration::from_millis(500);
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Results that wait for the store. Each keeps its lease.
///
/// A batch that fails goes to the back, and the next one is half as large: one result that the store cannot take, because its
/// row is locked, does not hold up the others for long.
pub(super) struct Backlog {
    results: VecDeque<Finished>,
    /// How many are offered at most, and how many in the next offer.
    batch_max: usize,
    batch: usize,
    /// Offers in a row that failed.
    failed: u32,
    due: Instant,
}

impl Backlog {
    pub(super) fn new(batch_max: usize) -> Self {
        Self { results: VecDeque::new(), batch_max, batch: batch_max, failed: 0, due: Instant::now() }
    }

    pub(super) fn len(&self) -> usize {
        self.results.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.results.is_empty()
    }

    /// When to offer some of them again.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Adds results that the store has just failed to take. Says so where they are the first.
    pub(super) fn keep(&mut self, engine: &Engine, results: Vec<Finished>, error: &StoreError) {
        if self.is_empty() {
            let (count, error) = (results.len(), Causes(error));
            tracing::warn!(count, %error, "settle failed: results wait for the store and keep their leases");
            self.wait(engine);
        }
        self.results.extend(results);
    }

    /// Takes out what to offer next.
    pub(super) fn take(&mut self) -> Vec<Finished> {
        let count = self.batch.min(self.results.len());
        self.results.drain(..count).collect()
    }

    /// The store has taken what was offered: the rest follows at once.
    pub(super) fn taken(&mut self) {
        self.failed = 0;
        self.batch = (2 * self.batch).min(self.batch_max);
        self.due = Instant::now();
        if self.is_empty() {
            tracing::info!("the store has taken every result that waited");
        }
    }

    /// The store has not taken what was offered.
    pub(super) fn put_back(&mut self, engine: &Engine, results: Vec<Finished>, error: &StoreError) {
        tracing::debug!(count = results.len(), error = %Causes(error), "settle failed again");
        self.batch = (results.len() / 2).max(1);
        self.results.extend(results);
        self.wait(engine);
    }

    /// The leases of those that nobody will settle.
    pub(super) fn into_leases(self) -> Vec<Lease> {
        self.results.into_iter().map(|finished| finished.settlement.lease).collect()
    }

    /// Goes on where the storage policy has ended.
    fn wait(&mut self, engine: &Engine) {
        let tries = engine.settings.storage_retry.max_attempts.get().saturating_add(self.failed);
        self.failed = self.failed.saturating_add(1);
        self.due = Instant::now() + engine.storage_wait(tries).clamp(WAIT_MIN, WAIT_MAX);
    }
}
