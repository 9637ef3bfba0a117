//! Takes over leases that have run out.

use redrive_core::lifecycle::Event;
use redrive_core::store::{Claimed, ReclaimRequest, check_batch};
use redrive_core::{Invalid, Job, JobId, Timestamp};

use super::{Model, advance};

impl Model {
    /// See [`redrive_core::Store::reclaim`].
    pub fn reclaim(&mut self, request: &ReclaimRequest, now: Timestamp) -> Result<Claimed, Invalid> {
        check_batch(request.limit)?;
        let expired: Vec<JobId> = self
            .leases
            .iter()
            .take_while(|(until, _)| *until <= now)
            .filter(|(_, id)| request.kinds.is_empty() || request.kinds.contains(&self.rows[id].job.kind))
            .filter(|(_, id)| !request.held.contains(&self.rows[id].job.lease()))
            .take(if self.is_sealed() { 0 } else { request.limit })
            .map(|(_, id)| *id)
            .collect();
        Ok(Claimed {
            jobs: expired.into_iter().map(|id| self.take_over(id, request, now)).collect(),
            unreadable: Vec::new(),
            now,
            next_due: None,
            wake: self.wake(),
        })
    }

    fn take_over(&mut self, id: JobId, request: &ReclaimRequest, now: Timestamp) -> Job {
        self.change(id, |row| {
            let job = &mut row.job;
            advance(job, Event::Reclaim);
            job.epoch += 1;
            job.lease_until = Some(now.after(request.lease));
            job.clone()
        })
    }
}
