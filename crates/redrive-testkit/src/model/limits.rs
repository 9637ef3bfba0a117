//! The limits of queues and partition keys, and the slots under them.

use std::cmp::Reverse;

use redrive_core::capacity::Admission;
use redrive_core::queue_limits::{Limits, QUEUE_LIMITS, Rate};
use redrive_core::{Job, JobId, Order, Partition, Queue, QueueLimits, State, Timestamp, WaitCondition};

use super::Model;

/// A queue, or one partition of it.
pub(super) type Scope = (Queue, Option<Partition>);

impl Model {
    pub(super) fn admit(&self, job: &Job, now: Timestamp) -> Admission {
        if self.free_queue_slots(&job.queue, now) == 0 {
            return Admission::Skip;
        }
        let Some(partition) = &job.partition else { return Admission::Take };
        let per_key = self.limits_of(&job.queue).per_key;
        if !self.comes_first(job) || self.free_slots(&job.queue, partition, per_key) == 0 {
            return Admission::WaitForSlot;
        }
        match per_key.rate.and_then(|rate| self.rate_free_at(&scope(&job.queue, Some(partition)), rate, now))
        {
            Some(at) => Admission::Delay(at),
            None => Admission::Take,
        }
    }

    /// How many more jobs of a queue may start now.
    pub(super) fn free_queue_slots(&self, queue: &Queue, now: Timestamp) -> u64 {
        let whole = self.limits_of(queue).queue_wide();
        if whole == Limits::default() {
            return u64::MAX;
        }
        let running = self.jobs().filter(|job| job.queue == *queue && job.state == State::Running).count();
        let started = whole.rate.map_or(0, |rate| self.started(&scope(queue, None), rate, now).len());
        whole.free_slots(running as u64, started as u64)
    }

    /// When the rate limit of a queue allows another start, if the limit is used up.
    pub(super) fn queue_free_at(&self, queue: &Queue, now: Timestamp) -> Option<Timestamp> {
        let rate = self.limits_of(queue).rate?;
        self.rate_free_at(&scope(queue, None), rate, now)
    }

    /// Records a start for the rate limits of the queue and its partition.
    pub(super) fn record_start(&mut self, job: &Job, now: Timestamp) {
        let limits = self.limits_of(&job.queue);
        if limits.rate.is_some() {
            self.starts.entry(scope(&job.queue, None)).or_default().push(now);
        }
        if limits.per_key.rate.is_some() && job.partition.is_some() {
            self.starts.entry(scope(&job.queue, job.partition.as_ref())).or_default().push(now);
        }
    }

    /// Resumes the jobs that can use a slot, after `job` has left its slot.
    pub(super) fn offer_free_slots(&mut self, job: &Job, now: Timestamp) {
        let Some(partition) = &job.partition else { return };
        let waiting =
            self.members(&job.queue, partition).filter(|job| job.awaits == Some(WaitCondition::FreeSlot));
        let (mut strict, mut any): (Vec<&Job>, Vec<&Job>) = waiting.partition(|job| is_strict(job));
        strict.sort_by_key(|job| job.id);
        any.sort_by_key(|job| (Reverse(job.priority), job.next_run_at, job.id));
        let ids: Vec<JobId> = strict.into_iter().chain(any).map(|job| job.id).collect();
        for id in ids {
            self.resume_one(id, now);
        }
    }

    /// Whether a job that waits for a slot can have one. A job in strict order must be the first; the others come after
    /// jobs that are claimable already.
    pub(super) fn has_free_slot(&self, id: JobId, now: Timestamp) -> bool {
        let job = &self.rows[&id].job;
        let Some(partition) = &job.partition else { return true };
        let slots = self.free_slots(&job.queue, partition, self.limits_of(&job.queue).per_key);
        if is_strict(job) {
            return self.comes_first(job) && slots > 0;
        }
        let claimable = self.members(&job.queue, partition).filter(|job| !is_strict(job));
        slots > claimable.filter(|job| job.state.is_claimable() && job.next_run_at <= now).count() as u64
    }

    fn free_slots(&self, queue: &Queue, partition: &Partition, per_key: Limits) -> u64 {
        let running = self.members(queue, partition).filter(|job| job.state == State::Running).count();
        Limits { rate: None, ..per_key }.free_slots(running as u64, 0)
    }

    /// Whether no other job must end before this one may start.
    fn comes_first(&self, job: &Job) -> bool {
        let Some(partition) = job.partition.as_ref().filter(|of| of.order == Order::Strict) else {
            return true;
        };
        let mut before = self.members(&job.queue, partition).filter(|other| other.id < job.id);
        before.all(|other| other.state.is_final() || !is_strict(other))
    }

    fn members(&self, queue: &Queue, of: &Partition) -> impl Iterator<Item = &Job> {
        let (queue, key) = (queue.clone(), of.key.clone());
        self.jobs().filter(move |job| {
            job.queue == queue && job.partition.as_ref().is_some_and(|partition| partition.key == key)
        })
    }

    /// When a rate limit that is used up allows another start.
    fn rate_free_at(&self, scope: &Scope, rate: Rate, now: Timestamp) -> Option<Timestamp> {
        let mut started = self.started(scope, rate, now);
        started.sort_unstable();
        let over = started.len().checked_sub(rate.count as usize)?;
        started.get(over).map(|at| at.after(rate.per()))
    }

    fn started(&self, scope: &Scope, rate: Rate, now: Timestamp) -> Vec<Timestamp> {
        let starts = self.starts.get(scope).into_iter().flatten().copied();
        starts.filter(|at| *at > rate.since(now)).collect()
    }

    pub(super) fn limits_of(&self, queue: &Queue) -> QueueLimits {
        self.read(QUEUE_LIMITS, queue.as_str())
            .map_or_else(QueueLimits::default, |record| QueueLimits::read(&record.value))
    }
}

fn is_strict(job: &Job) -> bool {
    job.partition.as_ref().is_some_and(|partition| partition.order == Order::Strict)
}

/// The starts of a partition key count together, whether or not its jobs are in strict order.
fn scope(queue: &Queue, partition: Option<&Partition>) -> Scope {
    (queue.clone(), partition.map(|partition| Partition { order: Order::Any, ..partition.clone() }))
}
