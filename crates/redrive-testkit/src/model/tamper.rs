//! Changes to the model that no call makes, for mutants only.

use redrive_core::{Job, JobId, Lease, NewJob};

use super::Model;

impl Model {
    /// Changes a row without the state machine.
    pub(crate) fn tamper(&mut self, id: JobId, change: impl FnOnce(&mut Job)) {
        if self.job(id).is_some() {
            self.change(id, |row| change(&mut row.job));
        }
    }

    /// Removes an attempt log.
    pub(crate) fn forget_log(&mut self, id: JobId) {
        if self.job(id).is_some() {
            self.change(id, |row| row.log.clear());
        }
    }

    /// Adds a log entry for the epoch of a lease that was not settled.
    pub(crate) fn forge_log(&mut self, lease: Lease, attempt: redrive_core::Attempt) {
        if self.job(lease.id).is_some() {
            self.change(lease.id, |row| row.log.insert(lease.epoch, attempt));
        }
    }

    /// Removes a step, so that the holder of the lease can store it again.
    pub(crate) fn forget_step(&mut self, lease: Lease, place: u32) {
        if self.leased_job(lease).is_some() {
            self.change(lease.id, |row| row.steps.remove(&place));
        }
    }

    /// Makes the taken signals of a job pending again.
    pub(crate) fn restore_signals(&mut self, id: JobId) {
        if self.job(id).is_some() {
            self.change(id, |row| row.signals.iter_mut().for_each(|signal| signal.taken = false));
        }
    }

    /// Runs `act` as if no queue had limits.
    pub(crate) fn without_limits<T>(&mut self, act: impl FnOnce(&mut Self) -> T) -> T {
        let records = self.records.clone();
        self.records.retain(|(kind, _), _| kind != redrive_core::queue_limits::QUEUE_LIMITS);
        let result = act(self);
        self.records = records;
        result
    }

    /// Runs `act` as if no job were in strict order.
    pub(crate) fn without_order<T>(&mut self, act: impl FnOnce(&mut Self) -> T) -> T {
        let strict: Vec<JobId> =
            self.jobs().filter(|job| job.partition.is_some()).map(|job| job.id).collect();
        let partitions: Vec<_> = strict.iter().map(|id| self.rows[id].job.partition.clone()).collect();
        for id in &strict {
            self.tamper(*id, |job| {
                job.partition.iter_mut().for_each(|of| of.order = redrive_core::Order::Any)
            });
        }
        let result = act(self);
        for (id, partition) in strict.into_iter().zip(partitions) {
            self.tamper(id, |job| job.partition = partition);
        }
        result
    }

    /// Runs `act` as if no job waited for a slot.
    pub(crate) fn without_slot_waits<T>(&mut self, act: impl FnOnce(&mut Self) -> T) -> T {
        let waiting = self.jobs().filter(|job| job.awaits == Some(redrive_core::WaitCondition::FreeSlot));
        let waiting: Vec<JobId> = waiting.map(|job| job.id).collect();
        waiting.iter().for_each(|id| self.tamper(*id, |job| job.awaits = None));
        let result = act(self);
        waiting
            .iter()
            .for_each(|id| self.tamper(*id, |job| job.awaits = Some(redrive_core::WaitCondition::FreeSlot)));
        result
    }

    /// Runs `act` as if every child, or no child, were detached.
    pub(crate) fn with_detached<T>(&mut self, detached: bool, act: impl FnOnce(&mut Self) -> T) -> T {
        let parents: Vec<_> =
            self.jobs().filter_map(|job| job.parent.map(|parent| (job.id, parent))).collect();
        for (id, parent) in &parents {
            self.tamper(*id, |job| job.parent = Some(redrive_core::Parent { detached, ..*parent }));
        }
        let result = act(self);
        for (id, parent) in parents {
            self.tamper(id, |job| job.parent = Some(parent));
        }
        result
    }

    /// Runs `act` as if no job had children.
    pub(crate) fn without_children<T>(&mut self, act: impl FnOnce(&mut Self) -> T) -> T {
        let children = std::mem::take(&mut self.children);
        let result = act(self);
        self.children = children;
        result
    }

    /// Removes a record and its version.
    pub(crate) fn forget_record(&mut self, kind: &str, id: &str) {
        self.records.remove(&(kind.to_owned(), id.to_owned()));
    }

    /// Whether a job with this id or key exists.
    pub(crate) fn knows(&self, new: &NewJob) -> bool {
        self.known(new).is_some()
    }
}
