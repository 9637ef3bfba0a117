//! What a worker did, in numbers.

use std::sync::atomic::{AtomicU64, Ordering};

use redrive_core::store::{Settled, Settlement};
use redrive_core::{State, Verdict};

/// What a worker did from its start to its shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Attempts claimed.
    pub claimed: u64,
    /// Orphans taken over.
    pub reclaimed: u64,
    /// Ended jobs removed.
    pub pruned: u64,
    /// Attempts that succeeded.
    pub succeeded: u64,
    /// Attempts that failed and are followed by another.
    pub retried: u64,
    /// Attempts put off by their handler.
    pub snoozed: u64,
    /// Attempts whose turn had not come.
    pub parked: u64,
    /// Attempts set aside until something resumes them.
    pub waiting: u64,
    /// Attempts handed back at the shutdown.
    pub released: u64,
    /// Attempts after which the job is dead.
    pub dead: u64,
    /// Attempts after which the job is cancelled.
    pub cancelled: u64,
    /// Attempts whose lease was lost before they were settled.
    pub lease_lost: u64,
    /// Results that the store did not take; their leases run out.
    pub dropped: u64,
}

impl Summary {
    /// Attempts that were settled, whichever way.
    pub fn settled(&self) -> u64 {
        self.succeeded
            + self.retried
            + self.snoozed
            + self.parked
            + self.waiting
            + self.released
            + self.dead
            + self.cancelled
    }
}

/// A [`Summary`] in the making.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) claimed: Count,
    pub(crate) reclaimed: Count,
    pub(crate) pruned: Count,
    pub(crate) lease_lost: Count,
    pub(crate) dropped: Count,
    succeeded: Count,
    retried: Count,
    snoozed: Count,
    parked: Count,
    waiting: Count,
    released: Count,
    dead: Count,
    cancelled: Count,
}

#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counts {
    /// Counts what came of a settlement.
    pub(crate) fn settled(&self, settlement: &Settlement, settled: Settled) {
        let count = match (settled, &settlement.verdict) {
            (Settled::LeaseLost, _) => &self.lease_lost,
            // A retry becomes this when someone asked for the job's end meanwhile.
            (Settled::Applied(State::Cancelled), _) | (Settled::Applied(_), Verdict::Cancel) => {
                &self.cancelled
            }
            (Settled::Applied(_), Verdict::Complete(_)) => &self.succeeded,
            (Settled::Applied(_), Verdict::Retry(_)) => &self.retried,
            (Settled::Applied(_), Verdict::Snooze(_)) => &self.snoozed,
            (Settled::Applied(_), Verdict::Park(_)) => &self.parked,
            (Settled::Applied(_), Verdict::Wait(_)) => &self.waiting,
            (Settled::Applied(_), Verdict::Release) => &self.released,
            (Settled::Applied(_), Verdict::DeadLetter(_)) => &self.dead,
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
            parked: self.parked.get(),
            waiting: self.waiting.get(),
            released: self.released.get(),
            dead: self.dead.get(),
            cancelled: self.cancelled.get(),
            lease_lost: self.lease_lost.get(),
            dropped: self.dropped.get(),
        }
    }
}
