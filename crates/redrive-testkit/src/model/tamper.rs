//! Ways around the verbs, for mutants only.

use redrive_core::{Job, JobId, Lease, NewJob};

use super::Model;

impl Model {
    /// Changes a row past the state machine.
    pub(crate) fn tamper(&mut self, id: JobId, change: impl FnOnce(&mut Job)) {
        if self.job(id).is_some() {
            self.change(id, |row| change(&mut row.job));
        }
    }

    /// Removes a log.
    pub(crate) fn forget_log(&mut self, id: JobId) {
        if self.job(id).is_some() {
            self.change(id, |row| row.log.clear());
        }
    }

    /// Copies a log's last entry to the epoch of a lease that nobody settled.
    pub(crate) fn forge_log(&mut self, lease: Lease, attempt: redrive_core::Attempt) {
        if self.job(lease.id).is_some() {
            self.change(lease.id, |row| row.log.insert(lease.epoch, attempt));
        }
    }

    /// Removes a step that a lease still held could remember anew.
    pub(crate) fn forget_step(&mut self, lease: Lease, place: u32) {
        if self.held(lease).is_some() {
            self.change(lease.id, |row| row.steps.remove(&place));
        }
    }

    /// Puts a job's signals back that were taken.
    pub(crate) fn untake(&mut self, id: JobId) {
        if self.job(id).is_some() {
            self.change(id, |row| row.signals.iter_mut().for_each(|signal| signal.taken = false));
        }
    }

    /// Does something as if nothing bounded a queue.
    pub(crate) fn without_quotas<T>(&mut self, act: impl FnOnce(&mut Self) -> T) -> T {
        let slots = self.slots.clone();
        self.slots.retain(|(kind, _), _| kind != redrive_core::quota::QUOTA);
        let result = act(self);
        self.slots = slots;
        result
    }

    /// Does something as if no job had to wait for another.
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

    /// Does something as if no job waited for its turn.
    pub(crate) fn without_turns<T>(&mut self, act: impl FnOnce(&mut Self) -> T) -> T {
        let waiting = self.jobs().filter(|job| job.awaits == Some(redrive_core::Await::Turn));
        let waiting: Vec<JobId> = waiting.map(|job| job.id).collect();
        waiting.iter().for_each(|id| self.tamper(*id, |job| job.awaits = None));
        let result = act(self);
        waiting.iter().for_each(|id| self.tamper(*id, |job| job.awaits = Some(redrive_core::Await::Turn)));
        result
    }

    /// Does something as if every child were detached, or none.
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

    /// Does something as if no job had children.
    pub(crate) fn without_children<T>(&mut self, act: impl FnOnce(&mut Self) -> T) -> T {
        let children = std::mem::take(&mut self.children);
        let result = act(self);
        self.children = children;
        result
    }

    /// Removes a record without a trace.
    pub(crate) fn forget_record(&mut self, kind: &str, id: &str) {
        self.slots.remove(&(kind.to_owned(), id.to_owned()));
    }

    /// Whether a job with that id or key is there.
    pub(crate) fn knows(&self, new: &NewJob) -> bool {
        self.known(new).is_some()
    }
}
