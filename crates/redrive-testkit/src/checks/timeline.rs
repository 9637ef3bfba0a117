//! The history of one job, by epoch.

use std::collections::BTreeMap;

use redrive_core::{Epoch, JobId, Lease, PolicyRef, lease_count};

use crate::history::{GrantedLease, HistoryEvent, LeaseSource, SettledAttempt};

/// The history of one job.
pub(super) struct Timeline {
    pub(super) id: JobId,
    pub(super) acknowledged: bool,
    pub(super) cancelled: bool,
    pub(super) leases: BTreeMap<Epoch, GrantedLease>,
    pub(super) leased_twice: Vec<Epoch>,
    /// In the order in which they were recorded.
    pub(super) settlements: Vec<SettledAttempt>,
    pub(super) started: Vec<Lease>,
    discarded: bool,
}

/// The attempts of one run that were started and not refunded.
pub(super) struct StartedAttempts {
    pub(super) count: u32,
    pub(super) policy: PolicyRef,
}

impl Timeline {
    pub(super) fn new(id: JobId) -> Self {
        Self {
            id,
            acknowledged: false,
            cancelled: false,
            leases: BTreeMap::new(),
            leased_twice: Vec::new(),
            settlements: Vec::new(),
            started: Vec::new(),
            discarded: false,
        }
    }

    pub(super) fn add(&mut self, event: HistoryEvent) {
        match event {
            HistoryEvent::Acknowledged(_) => self.acknowledged = true,
            HistoryEvent::Leased(leased) => {
                let epoch = leased.lease.epoch;
                if self.leases.insert(epoch, leased).is_some() {
                    self.leased_twice.push(epoch);
                }
            }
            HistoryEvent::Started(lease) => self.started.push(lease),
            HistoryEvent::Settled(settlement) => self.settlements.push(settlement),
            HistoryEvent::Cancelled(_) => self.cancelled = true,
            HistoryEvent::Discarded(_) => self.discarded = true,
            HistoryEvent::LeaseLost(_)
            | HistoryEvent::CancelRequested(_)
            | HistoryEvent::Redriven(_)
            | HistoryEvent::Pruned(_) => {}
        }
    }

    /// Whether the job had ended, so that a prune or a discard may have deleted it.
    pub(super) fn may_be_removed(&self) -> bool {
        let last = self.settlements.iter().max_by_key(|settlement| settlement.lease.epoch);
        self.cancelled || self.discarded || last.is_some_and(|settlement| settlement.led_to.is_final())
    }

    /// Epochs whose settlement came with a log entry.
    pub(super) fn logged(&self) -> impl Iterator<Item = Epoch> {
        self.settlements.iter().filter(|s| s.logged).map(|s| s.lease.epoch)
    }

    /// The run that a lease belongs to.
    pub(super) fn run_of(&self, epoch: Epoch) -> Option<u32> {
        self.leases.get(&epoch).map(|lease| lease.run)
    }

    /// The lease that follows the lease with this epoch. None if it is unknown.
    pub(super) fn lease_after(&self, epoch: Epoch) -> Option<&GrantedLease> {
        let (next, lease) = self.leases.range(epoch + 1..).next()?;
        (lease_count(*next) == lease_count(epoch) + 1).then_some(lease)
    }

    /// The lease before the lease with this epoch. None if it is unknown.
    fn lease_before(&self, epoch: Epoch) -> Option<&GrantedLease> {
        let (before, lease) = self.leases.range(..epoch).next_back()?;
        (lease_count(*before) + 1 == lease_count(epoch)).then_some(lease)
    }

    /// The attempt number that a lease must have. None if the lease before it is unknown.
    pub(super) fn expected_attempt(&self, epoch: Epoch) -> Option<u32> {
        let lease = self.leases.get(&epoch)?;
        let before = match self.lease_before(epoch) {
            Some(before) if before.run == lease.run => {
                before.attempt.saturating_sub(self.refund(before.lease.epoch))
            }
            Some(_) => 0,
            None if lease_count(epoch) == 1 => 0,
            None => return None,
        };
        match lease.source {
            LeaseSource::Claim => Some(before + 1),
            LeaseSource::Reclaim => Some(before),
        }
    }

    /// The attempts of each run. Counts claims and refunds, and ignores the attempt numbers in the rows.
    pub(super) fn attempts_by_run(&self) -> BTreeMap<u32, StartedAttempts> {
        let mut runs: BTreeMap<u32, StartedAttempts> = BTreeMap::new();
        for (epoch, lease) in &self.leases {
            let started = runs
                .entry(lease.run)
                .or_insert_with(|| StartedAttempts { count: 0, policy: lease.policy.clone() });
            if lease.source == LeaseSource::Claim {
                started.count += 1;
            }
            started.count = started.count.saturating_sub(self.refund(*epoch));
        }
        runs
    }

    fn refund(&self, epoch: Epoch) -> u32 {
        let settlement = self.settlements.iter().find(|settlement| settlement.lease.epoch == epoch);
        settlement.map_or(0, |settlement| settlement.refund)
    }
}
