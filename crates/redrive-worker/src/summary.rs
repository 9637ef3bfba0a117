//! Counts what a worker does.

use std::sync::atomic::{AtomicU64, Ordering};

use redrive_core::store::{SettleResult, Settlement};
use redrive_core::{State, Verdict};

/// What a worker did between its start and its shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Attempts claimed.
    pub claimed: u64,
    /// Jobs reclaimed from workers that stopped renewing their leases.
    pub reclaimed: u64,
    /// Ended jobs removed.
    pub pruned: u64,
    /// Attempts that succeeded.
    pub succeeded: u64,
    /// Attempts that failed and are followed by another.
    pub retried: u64,
    /// Attempts that were postponed at no charge: the handler snoozed them, or the node deferred them.
    pub snoozed: u64,
    /// Attempts that a gate held back.
    pub held: u64,
    /// Attempts after which the job waits for a signal, a timer or its children.
    pub waiting: u64,
    /// Attempts released at the shutdown.
    pub released: u64,
    /// Attempts after which the job is dead.
    pub dead: u64,
    /// Attempts after which the job is cancelled.
    pub cancelled: u64,
    /// Attempts whose lease was lost before they were settled.
    pub lease_lost: u64,
    /// Settlements that could not be written. The leases run out, and the jobs are reclaimed.
    pub dropped: u64,
}

impl Summary {
    /// All attempts that were settled.
    pub fn settled(&self) -> u64 {
        self.succeeded
            + self.retried
            + self.snoozed
            + self.held
            + self.waiting
            + self.released
            + self.dead
            + self.cancelled
    }
}

/// The counters behind a [`Summary`].
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) claimed: Counter,
    pub(crate) reclaimed: Counter,
    pub(crate) pruned: Counter,
    pub(crate) lease_lost: Counter,
    pub(crate) dropped: Counter,
    succeeded: Counter,
    retried: Counter,
    snoozed: Counter,
    held: Counter,
    waiting: Counter,
    released: Counter,
    dead: Counter,
    cancelled: Counter,
}

#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counts {
    /// Counts the result of a settlement.
    pub(crate) fn count_settled(&self, settlement: &Settlement, result: SettleResult) {
        let count = match (result, &settlement.verdict) {
            (SettleResult::LeaseLost, _) => &self.lease_lost,
            // A retry ends as cancelled if someone cancelled the job while the attempt ran.
            (SettleResult::Applied(State::Cancelled), _) | (SettleResult::Applied(_), Verdict::Cancel) => {
                &self.cancelled
            }
            (SettleResult::Applied(_), Verdict::Complete(_)) => &self.succeeded,
            (SettleResult::Applied(_), Verdict::Retry(_)) => &self.retried,
            (SettleResult::Applied(_), Verdict::Snooze(_)) => &self.snoozed,
            (SettleResult::Applied(_), Verdict::Hold(_)) => &self.held,
            (SettleResult::Applied(_), Verdict::Wait(_)) => &self.waiting,
            (SettleResult::Applied(_), Verdict::Release) => &self.released,
            (SettleResult::Applied(_), Verdict::DeadLetter(_)) => &self.dead,
        };
        count.add(1);
    }

    pub(crate) fn summary(&self) -> Summary {
        Summary {
            claimed: self.claimed.get(),
            reclaimed: self.reclaimed.get(),
            pruned: self.pruned.get(),
            succeeded: self.succeeded.get(),
            retried: self.retried.get(),
            snoozed: self.snoozed.get(),
            held: self.held.get(),
            waiting: self.waiting.get(),
            released: self.released.get(),
            dead: self.dead.get(),
            cancelled: self.cancelled.get(),
            lease_lost: self.lease_lost.get(),
            dropped: self.dropped.get(),
        }
    }
}
