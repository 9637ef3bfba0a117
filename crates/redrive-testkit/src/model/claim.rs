//! Leases due jobs and charges their attempts.

use std::cmp::Reverse;
use std::ops::RangeInclusive;

use redrive_core::lifecycle::Event;
use redrive_core::records::{EVERY_QUEUE, PAUSED};
use redrive_core::store::{ClaimRequest, Claimed, check_batch};
use redrive_core::{Invalid, Job, JobId, Kind, Priority, Queue, Timestamp};
use uuid::Uuid;

use super::{Lane, Model, advance};

impl Model {
    /// See [`redrive_core::Store::claim`].
    pub fn claim(&mut self, request: &ClaimRequest, now: Timestamp) -> Result<Claimed, Invalid> {
        check_batch(request.limit)?;
        let due = self.due(request, now);
        let jobs = due.into_iter().map(|id| self.lease(id, request, now)).collect();
        Ok(Claimed { jobs, unreadable: Vec::new(), now, next_due: self.next_due(request), wake: self.wake() })
    }

    fn lease(&mut self, id: JobId, request: &ClaimRequest, now: Timestamp) -> Job {
        self.change(id, |row| {
            let job = &mut row.job;
            advance(job, Event::Claim);
            job.awaits = None;
            job.attempt += 1;
            job.epoch += 1;
            job.started_at = Some(now);
            job.lease_until = Some(now.after(job.lease.unwrap_or(request.lease)));
            job.worker = Some(request.worker.clone());
            job.clone()
        })
    }

    /// The first of the matching jobs that are due, in the order of a claim.
    fn due(&self, request: &ClaimRequest, now: Timestamp) -> Vec<JobId> {
        let lanes = self.wanted(request);
        let mut due: Vec<_> = lanes
            .flat_map(|lane| {
                priorities().flat_map(move |urgency| lane.range(until(urgency, now))).take(request.limit)
            })
            .collect();
        due.sort_unstable();
        due.into_iter().take(request.limit).map(|(_, _, id)| *id).collect()
    }

    fn next_due(&self, request: &ClaimRequest) -> Option<Timestamp> {
        self.wanted(request)
            .flat_map(|lane| {
                priorities().filter_map(|urgency| lane.range(until(urgency, Timestamp::MAX)).next())
            })
            .map(|(_, at, _)| *at)
            .min()
    }

    /// What the request asks for, paused queues left out.
    fn wanted<'a>(&'a self, request: &'a ClaimRequest) -> impl Iterator<Item = &'a Lane> {
        let asked = |(queue, kind): &(Queue, Kind)| {
            (request.queues.is_empty() || request.queues.contains(queue))
                && (request.kinds.is_empty() || request.kinds.contains(kind))
        };
        self.lanes
            .iter()
            .filter(move |(lane, jobs)| !jobs.is_empty() && asked(lane) && !self.is_paused(&lane.0))
            .map(|(_, jobs)| jobs)
    }

    fn is_paused(&self, queue: &Queue) -> bool {
        self.read(PAUSED, EVERY_QUEUE).is_some() || self.read(PAUSED, queue.as_str()).is_some()
    }
}

/// Highest first.
fn priorities() -> impl Iterator<Item = Priority> {
    (0..=Priority::MAX.get()).rev().filter_map(|n| Priority::new(n).ok())
}

/// The part of a lane with this priority that is due at `now`.
fn until(urgency: Priority, now: Timestamp) -> RangeInclusive<(Reverse<Priority>, Timestamp, JobId)> {
    let first = Timestamp::from_ms(i64::MIN);
    (Reverse(urgency), first, JobId(Uuid::nil()))..=(Reverse(urgency), now, JobId(Uuid::max()))
}
