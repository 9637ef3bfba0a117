//! Leases due jobs and charges their attempts.

use std::cmp::Reverse;
use std::ops::RangeInclusive;

use redrive_core::capacity::Admission;
use redrive_core::lifecycle::Event;
use redrive_core::queue_limits::QUEUE_LIMITS;
use redrive_core::records::{EVERY_QUEUE, PAUSED};
use redrive_core::store::{ClaimRequest, ClaimedJobs, ReclaimRequest, check_batch};
use redrive_core::{
    Epoch, Invalid, Job, JobId, Kind, LEASE_COUNT_BITS, LEASE_COUNT_MAX, Priority, Queue, Timestamp,
    WaitCondition, lease_count, next_epoch,
};
use uuid::Uuid;

use super::{ClaimableJobs, Model, advance};

impl Model {
    /// See [`redrive_core::Store::claim`].
    pub fn claim(&mut self, request: &ClaimRequest, now: Timestamp) -> Result<ClaimedJobs, Invalid> {
        check_batch(request.limit)?;
        self.count_claim();
        let mut jobs = Vec::new();
        for id in self.due(request, now) {
            if jobs.len() == request.limit {
                break;
            }
            match self.admit(&self.rows[&id].job, now) {
                Admission::Take => jobs.push(self.lease(id, request, now)),
                Admission::Skip => {}
                Admission::WaitForSlot => self.change(id, |row| {
                    advance(&mut row.job, Event::Pause);
                    row.job.awaits = Some(WaitCondition::FreeSlot);
                }),
                Admission::Delay(at) => self.change(id, |row| row.job.next_run_at = at),
            }
        }
        let next_due = self.next_due(request, now);
        Ok(ClaimedJobs { jobs, unreadable: Vec::new(), now, next_due, wake: self.wake() })
    }

    fn lease(&mut self, id: JobId, request: &ClaimRequest, now: Timestamp) -> Job {
        let job = self.rows[&id].job.clone();
        self.record_start(&job, now);
        let epoch = self.epoch_after(job.epoch);
        self.change(id, |row| {
            let job = &mut row.job;
            advance(job, Event::Claim);
            job.awaits = None;
            job.attempt += 1;
            job.epoch = epoch;
            job.started_at = Some(now);
            job.lease_until = Some(now.after(job.lease.unwrap_or(request.lease)));
            job.worker = Some(request.worker.clone());
            job.clone()
        })
    }

    fn count_claim(&mut self) {
        self.claims = self.claims.map(|claims| claims + 1);
    }

    /// The epoch of the next lease of a job with this epoch.
    fn epoch_after(&self, epoch: Epoch) -> Epoch {
        let count = (lease_count(epoch) + 1).min(LEASE_COUNT_MAX);
        self.claims.map_or(next_epoch(epoch), |claims| (claims << LEASE_COUNT_BITS) | u64::from(count))
    }

    /// The due jobs that the request selects, in order. Without limits and partitions, no more than the claim can take.
    fn due(&self, request: &ClaimRequest, now: Timestamp) -> Vec<JobId> {
        let has_limits = self.partitioned || !self.scan(QUEUE_LIMITS, None, 1).is_empty();
        let most = if has_limits { usize::MAX } else { request.limit };
        let mut due: Vec<_> = self
            .selected_jobs(request)
            .flat_map(|(_, jobs)| {
                priorities().flat_map(move |priority| jobs.range(due_range(priority, now))).take(most)
            })
            .collect();
        due.sort_unstable();
        due.into_iter().take(most).map(|(_, _, id)| *id).collect()
    }

    /// When the next claim can succeed: the first due time of a queue with free slots, or the time at which a rate
    /// limit allows another start.
    fn next_due(&self, request: &ClaimRequest, now: Timestamp) -> Option<Timestamp> {
        let mut next = Vec::new();
        for (queue, jobs) in self.selected_jobs(request) {
            let first =
                priorities().filter_map(|priority| jobs.range(due_range(priority, Timestamp::MAX)).next());
            let first = first.map(|(_, at, _)| *at).min();
            if self.free_queue_slots(queue, now) > 0 {
                next.extend(first);
            } else if let Some(free) = self.queue_free_at(queue, now) {
                next.extend(first.map(|first| first.max(free)));
            }
        }
        next.into_iter().min()
    }

    /// The claimable jobs of each queue and kind that the request selects, without paused queues.
    fn selected_jobs<'a>(
        &'a self,
        request: &'a ClaimRequest,
    ) -> impl Iterator<Item = (&'a Queue, &'a ClaimableJobs)> {
        let is_selected = |(queue, kind): &(Queue, Kind)| {
            (request.queues.is_empty() || request.queues.contains(queue))
                && (request.kinds.is_empty() || request.kinds.contains(kind))
        };
        self.claimable
            .iter()
            .filter(move |(key, jobs)| !jobs.is_empty() && is_selected(key) && !self.is_paused(&key.0))
            .map(|((queue, _), jobs)| (queue, jobs))
    }

    fn is_paused(&self, queue: &Queue) -> bool {
        self.is_sealed()
            || self.read(PAUSED, EVERY_QUEUE).is_some()
            || self.read(PAUSED, queue.as_str()).is_some()
    }
}

/// All priorities, highest first.
fn priorities() -> impl Iterator<Item = Priority> {
    (0..=Priority::MAX.get()).rev().filter_map(|n| Priority::new(n).ok())
}

/// The claimable jobs with this priority that are due at `now`.
fn due_range(priority: Priority, now: Timestamp) -> RangeInclusive<(Reverse<Priority>, Timestamp, JobId)> {
    let first = Timestamp::from_ms(i64::MIN);
    (Reverse(priority), first, JobId(Uuid::nil()))..=(Reverse(priority), now, JobId(Uuid::max()))
}

impl Model {
    /// See [`redrive_core::Store::reclaim`].
    pub fn reclaim(&mut self, request: &ReclaimRequest, now: Timestamp) -> Result<ClaimedJobs, Invalid> {
        check_batch(request.limit)?;
        self.count_claim();
        let expired: Vec<JobId> = self
            .leases
            .iter()
            .take_while(|(until, _)| *until <= now)
            .filter(|(_, id)| request.kinds.is_empty() || request.kinds.contains(&self.rows[id].job.kind))
            .filter(|(_, id)| !request.held.contains(&self.rows[id].job.lease()))
            .take(if self.is_sealed() { 0 } else { request.limit })
            .map(|(_, id)| *id)
            .collect();
        Ok(ClaimedJobs {
            jobs: expired.into_iter().map(|id| self.take_over(id, request, now)).collect(),
            unreadable: Vec::new(),
            now,
            next_due: None,
            wake: self.wake(),
        })
    }

    fn take_over(&mut self, id: JobId, request: &ReclaimRequest, now: Timestamp) -> Job {
        let epoch = self.epoch_after(self.rows[&id].job.epoch);
        self.change(id, |row| {
            let job = &mut row.job;
            advance(job, Event::Reclaim);
            job.epoch = epoch;
            job.lease_until = Some(now.after(request.lease));
            job.clone()
        })
    }
}
