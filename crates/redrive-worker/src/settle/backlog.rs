//! Settlements that the store could not write, and when to retry them.

use std::collections::VecDeque;
use std::time::Duration;

use redrive_core::Lease;
use redrive_core::store::StoreError;
use tokio::time::Instant;

use super::PendingSettlement;
use crate::engine::{Engine, ErrorChain};

/// The limits of the wait between two retries, for any storage policy.
const WAIT_MIN: Duration = Duration::from_millis(500);
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Settlements that wait for the store. Each keeps its lease.
///
/// A batch that fails goes to the back, and the next batch is half as large. So one settlement that cannot be written, for
/// example because its row is locked, does not delay the others for long.
pub(super) struct Backlog {
    settlements: VecDeque<PendingSettlement>,
    /// The largest batch.
    batch_max: usize,
    /// The size of the next batch.
    batch_size: usize,
    /// Consecutive retries that failed.
    failures: u32,
    retry_at: Instant,
}

impl Backlog {
    pub(super) fn new(batch_max: usize) -> Self {
        Self {
            settlements: VecDeque::new(),
            batch_max,
            batch_size: batch_max,
            failures: 0,
            retry_at: Instant::now(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.settlements.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.settlements.is_empty()
    }

    /// When to retry the next batch.
    pub(super) fn retry_at(&self) -> Instant {
        self.retry_at
    }

    /// Adds settlements that have just failed with `error`. Logs a warning if the backlog was empty.
    pub(super) fn add(&mut self, engine: &Engine, settlements: Vec<PendingSettlement>, error: &StoreError) {
        if self.is_empty() {
            let (count, error) = (settlements.len(), ErrorChain(error));
            tracing::warn!(count, %error, "settle failed: settlements wait for the store and keep their leases");
            self.schedule_retry(engine);
        }
        self.settlements.extend(settlements);
    }

    /// Takes out the next batch.
    pub(super) fn take_batch(&mut self) -> Vec<PendingSettlement> {
        let count = self.batch_size.min(self.settlements.len());
        self.settlements.drain(..count).collect()
    }

    /// Records that a batch was written. The next one is due at once.
    pub(super) fn batch_succeeded(&mut self) {
        self.failures = 0;
        self.batch_size = (2 * self.batch_size).min(self.batch_max);
        self.retry_at = Instant::now();
        if self.is_empty() {
            tracing::info!("all settlements that waited for the store are written");
        }
    }

    /// Puts back settlements that have failed again.
    pub(super) fn batch_failed(
        &mut self,
        engine: &Engine,
        settlements: Vec<PendingSettlement>,
        error: &StoreError,
    ) {
        tracing::debug!(count = settlements.len(), error = %ErrorChain(error), "settle failed again");
        self.batch_size = (settlements.len() / 2).max(1);
        self.settlements.extend(settlements);
        self.schedule_retry(engine);
    }

    /// Returns the leases of the settlements, which nobody will write.
    pub(super) fn into_leases(self) -> Vec<Lease> {
        self.settlements.into_iter().map(|pending| pending.settlement.lease).collect()
    }

    /// Continues the waits of the storage policy after its last attempt.
    fn schedule_retry(&mut self, engine: &Engine) {
        let attempts = engine.settings.storage_retry.max_attempts.get().saturating_add(self.failures);
        self.failures = self.failures.saturating_add(1);
        self.retry_at = Instant::now() + engine.storage_backoff(attempts).clamp(WAIT_MIN, WAIT_MAX);
    }
}
