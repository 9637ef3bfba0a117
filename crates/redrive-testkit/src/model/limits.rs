//! Whether there is room for a job in its queue and its partition, and whose turn it is.

use std::cmp::Reverse;

use redrive_core::quota::{Bounds, QUOTA, Rate};
use redrive_core::rooms::Admission;
use redrive_core::{Await, Job, JobId, Order, Partition, Queue, Quota, State, Timestamp};

use super::Model;

/// What starts are counted under.
pub(super) type Scope = (Queue, Option<Partition>);

impl Model {
    pub(super) fn admit(&self, job: &Job, now: Timestamp) -> Admission {
        if self.queue_room(&job.queue, now) == 0 {
            return Admission::PassOver;
        }
        let Some(partition) = &job.partition else { return Admission::Take };
        let per_key = self.quota(&job.queue).per_key;
        if !self.comes_first(job) || self.free_slots(&job.queue, partition, per_key) == 0 {
            return Admission::SetAside;
        }
        match per_key.rate.and_then(|rate| self.rate_frees(&scope(&job.queue, Some(partition)), rate, now)) {
            Some(at) => Admission::PutOff(at),
            None => Admission::Take,
        }
    }

    /// How many more of a queue may start now.
    pub(super) fn queue_room(&self, queue: &Queue, now: Timestamp) -> u64 {
        let whole = self.quota(queue).whole();
        if whole == Bounds::default() {
            return u64::MAX;
        }
        let running = self.jobs().filter(|job| job.queue == *queue && job.state == State::Running).count();
        let started = whole.rate.map_or(0, |rate| self.started(&scope(queue, None), rate, now).len());
        whole.room(running as u64, started as u64)
    }

    /// When the rate of a queue allows for another start; none when nothing but the rate's span must pass.
    pub(super) fn queue_frees(&self, queue: &Queue, now: Timestamp) -> Option<Timestamp> {
        let rate = self.quota(queue).rate?;
        self.rate_frees(&scope(queue, None), rate, now)
    }

    /// Notes a start under the queue and its partition, where a rate counts them.
    pub(super) fn note_start(&mut self, job: &Job, now: Timestamp) {
        let quota = self.quota(&job.queue);
        if quota.rate.is_some() {
            self.starts.entry(scope(&job.queue, None)).or_default().push(now);
        }
        if quota.per_key.rate.is_some() && job.partition.is_some() {
            self.starts.entry(scope(&job.queue, job.partition.as_ref())).or_default().push(now);
        }
    }

    /// Makes those due whose turn it is after `job` has left its place.
    pub(super) fn pass_on(&mut self, job: &Job, now: Timestamp) {
        let Some(partition) = &job.partition else { return };
        let waiting = self.members(&job.queue, partition).filter(|job| job.awaits == Some(Await::Turn));
        let (mut strict, mut any): (Vec<&Job>, Vec<&Job>) = waiting.partition(|job| is_strict(job));
        strict.sort_by_key(|job| job.id);
        any.sort_by_key(|job| (Reverse(job.priority), job.next_run_at, job.id));
        let ids: Vec<JobId> = strict.into_iter().chain(any).map(|job| job.id).collect();
        for id in ids {
            self.resume_one(id, now);
        }
    }

    /// Whether it is a job's turn: in strict order the first one needs a free slot; among the others there must be room
    /// beside those that run or could at once.
    pub(super) fn is_its_turn(&self, id: JobId, now: Timestamp) -> bool {
        let job = &self.rows[&id].job;
        let Some(partition) = &job.partition else { return true };
        let slots = self.free_slots(&job.queue, partition, self.quota(&job.queue).per_key);
        if is_strict(job) {
            return self.comes_first(job) && slots > 0;
        }
        let claimable = self.members(&job.queue, partition).filter(|job| !is_strict(job));
        slots > claimable.filter(|job| job.state.is_claimable() && job.next_run_at <= now).count() as u64
    }

    fn free_slots(&self, queue: &Queue, partition: &Partition, per_key: Bounds) -> u64 {
        let running = self.members(queue, partition).filter(|job| job.state == State::Running).count();
        Bounds { rate: None, ..per_key }.room(running as u64, 0)
    }

    /// Whether no job of its partition must end before it may start.
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

    /// When a rate that is used up allows for another start.
    fn rate_frees(&self, scope: &Scope, rate: Rate, now: Timestamp) -> Option<Timestamp> {
        let mut started = self.started(scope, rate, now);
        started.sort_unstable();
        let over = started.len().checked_sub(rate.count as usize)?;
        started.get(over).map(|at| at.after(rate.per()))
    }

    fn started(&self, scope: &Scope, rate: Rate, now: Timestamp) -> Vec<Timestamp> {
        let starts = self.starts.get(scope).into_iter().flatten().copied();
        starts.filter(|at| *at > rate.since(now)).collect()
    }

    pub(super) fn quota(&self, queue: &Queue) -> Quota {
        self.read(QUOTA, queue.as_str()).map_or_else(Quota::default, |record| Quota::read(&record.value))
    }
}

fn is_strict(job: &Job) -> bool {
    job.partition.as_ref().is_some_and(|partition| partition.order == Order::Strict)
}

/// Starts of a key count together, whatever the order of its jobs.
fn scope(queue: &Queue, partition: Option<&Partition>) -> Scope {
    (queue.clone(), partition.map(|partition| Partition { order: Order::Any, ..partition.clone() }))
}
