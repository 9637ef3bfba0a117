//! Leases due jobs and charges their attempts.

use std::cmp::Reverse;
use std::ops::RangeInclusive;

use redrive_core::lifecycle::Event;
use redrive_core::quota::QUOTA;
use redrive_core::records::{EVERY_QUEUE, PAUSED};
use redrive_core::rooms::Admission;
use redrive_core::store::{ClaimRequest, Claimed, check_batch};
use redrive_core::{Await, Invalid, Job, JobId, Kind, Priority, Queue, Timestamp};
use uuid::Uuid;

use super::{Lane, Model, advance};

impl Model {
    /// See [`redrive_core::Store::claim`].
    pub fn claim(&mut self, request: &ClaimRequest, now: Timestamp) -> Result<Claimed, Invalid> {
        check_batch(request.limit)?;
        let mut jobs = Vec::new();
        for id in self.due(request, now) {
            if jobs.len() == request.limit {
                break;
            }
            match self.admit(&self.rows[&id].job, now) {
                Admission::Take => jobs.push(self.lease(id, request, now)),
                Admission::PassOver => {}
                Admission::SetAside => self.change(id, |row| {
                    advance(&mut row.job, Event::Hold);
                    row.job.awaits = Some(Await::Turn);
                }),
                Admission::PutOff(at) => self.change(id, |row| row.job.next_run_at = at),
            }
        }
        let next_due = self.next_due(request, now);
        Ok(Claimed { jobs, unreadable: Vec::new(), now, next_due, wake: self.wake() })
    }

    fn lease(&mut self, id: JobId, request: &ClaimRequest, now: Timestamp) -> Job {
        let job = self.rows[&id].job.clone();
        self.note_start(&job, now);
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

    /// The matching jobs that are due, in the order of a claim; where nothing is bounded, no more than are asked for.
    fn due(&self, request: &ClaimRequest, now: Timestamp) -> Vec<JobId> {
        let bounded = self.partitioned || !self.scan(QUOTA, None, 1).is_empty();
        let most = if bounded { usize::MAX } else { request.limit };
        let lanes = self.wanted(request);
        let mut due: Vec<_> = lanes
            .flat_map(|(_, lane)| {
                priorities().flat_map(move |urgency| lane.range(until(urgency, now))).take(most)
            })
            .collect();
        due.sort_unstable();
        due.into_iter().take(most).map(|(_, _, id)| *id).collect()
    }

    /// When the next job is due that its queue has room for, or when a used up rate makes room.
    fn next_due(&self, request: &ClaimRequest, now: Timestamp) -> Option<Timestamp> {
        let mut next = Vec::new();
        for (queue, lane) in self.wanted(request) {
            let first = priorities().filter_map(|urgency| lane.range(until(urgency, Timestamp::MAX)).next());
            let first = first.map(|(_, at, _)| *at).min();
            if self.queue_room(queue, now) > 0 {
                next.extend(first);
            } else if let Some(free) = self.queue_frees(queue, now) {
                next.extend(first.map(|first| first.max(free)));
            }
        }
        next.into_iter().min()
    }

    /// What the request asks for, paused queues left out.
    fn wanted<'a>(&'a self, request: &'a ClaimRequest) -> impl Iterator<Item = (&'a Queue, &'a Lane)> {
        let asked = |(queue, kind): &(Queue, Kind)| {
            (request.queues.is_empty() || request.queues.contains(queue))
                && (request.kinds.is_empty() || request.kinds.contains(kind))
        };
        self.lanes
            .iter()
            .filter(move |(lane, jobs)| !jobs.is_empty() && asked(lane) && !self.is_paused(&lane.0))
            .map(|((queue, _), jobs)| (queue, jobs))
    }

    fn is_paused(&self, queue: &Queue) -> bool {
        self.is_sealed()
            || self.read(PAUSED, EVERY_QUEUE).is_some()
            || self.read(PAUSED, queue.as_str()).is_some()
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
