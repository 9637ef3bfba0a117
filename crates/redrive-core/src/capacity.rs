//! Decides for every store whether a due job may start under the limits of its queue and partition key.

use std::collections::{BTreeMap, HashMap};

use crate::job::JobId;
use crate::names::Queue;
use crate::queue_limits::{Limits, QueueLimits, Rate};
use crate::time::Timestamp;

/// The decision of a claim about a due job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Lease the job.
    Take,
    /// Leave the job pending: its queue has no free slot.
    Skip,
    /// Let the job wait: its partition key has no free slot, or another job must run first.
    WaitForSlot,
    /// Make the job due at this time: its partition key has used up its rate until then.
    Delay(Timestamp),
}

/// A due job that a claim may take.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// The id of the job.
    pub id: JobId,
    /// The scope of its partition, if it has one. See [`crate::Partition::scope`].
    pub partition: Option<&'a str>,
    /// Whether the jobs of its partition must run in strict order.
    pub strict: bool,
}

/// The limits of each queue that has any.
pub type LimitsByQueue = BTreeMap<String, QueueLimits>;

/// The running jobs and recent starts by queue and partition: those that the store counted, plus the jobs that one
/// claim has taken since.
#[derive(Debug, Clone, Default)]
pub struct Capacity {
    /// The store's time.
    pub now: Timestamp,
    /// The limits of each queue that has any.
    pub limits: LimitsByQueue,
    /// The number of running jobs by queue name and by partition scope.
    pub running: HashMap<String, u64>,
    /// The starts that count for a rate, by queue name and by partition scope.
    pub starts: HashMap<String, RecentStarts>,
    /// The first live job of each partition with strict order.
    pub first: HashMap<String, JobId>,
}

/// The starts within the interval of a rate.
#[derive(Debug, Clone, Default)]
pub struct RecentStarts {
    /// Start times, in any order, each with its number of starts. Includes the starts that this claim adds.
    pub before: Vec<(Timestamp, u64)>,
    /// The number of starts that this claim adds and must write.
    pub added: u64,
}

impl Capacity {
    /// Decides about a due job of `queue`. A job that is taken counts for the next decision.
    pub fn admit(&mut self, queue: &Queue, job: Candidate<'_>) -> Admission {
        if self.free_queue_slots(queue) == 0 {
            return Admission::Skip;
        }
        let limits = self.limits_of(queue);
        let Some(scope) = job.partition else {
            self.take(queue.as_str(), limits.queue_wide());
            return Admission::Take;
        };
        let comes_first = !job.strict || self.first.get(scope) == Some(&job.id);
        if !comes_first || self.free_slots(scope, Limits { rate: None, ..limits.per_key }) == 0 {
            return Admission::WaitForSlot;
        }
        if let Some(at) = limits.per_key.rate.and_then(|rate| self.free_at(scope, rate)) {
            return Admission::Delay(at);
        }
        self.take(queue.as_str(), limits.queue_wide());
        self.take(scope, limits.per_key);
        Admission::Take
    }

    /// How many more jobs of a queue may start now.
    pub fn free_queue_slots(&self, queue: &Queue) -> u64 {
        self.free_slots(queue.as_str(), self.limits_of(queue).queue_wide())
    }

    /// When the rate of a queue allows another start. None unless the rate is used up.
    pub fn queue_free_at(&self, queue: &Queue) -> Option<Timestamp> {
        self.limits_of(queue).rate.and_then(|rate| self.free_at(queue.as_str(), rate))
    }

    /// The limits of a queue. Empty if it has none.
    pub fn limits_of(&self, queue: &Queue) -> QueueLimits {
        self.limits.get(queue.as_str()).copied().unwrap_or_default()
    }

    fn free_slots(&self, scope: &str, limits: Limits) -> u64 {
        let running = self.running.get(scope).copied().unwrap_or_default();
        limits.free_slots(running, self.starts.get(scope).map_or(0, RecentStarts::count))
    }

    /// When a used-up rate allows another start.
    fn free_at(&self, scope: &str, rate: Rate) -> Option<Timestamp> {
        self.starts.get(scope).and_then(|starts| starts.free_at(rate))
    }

    fn take(&mut self, scope: &str, limits: Limits) {
        if limits.concurrency.is_some() {
            *self.running.entry(scope.to_owned()).or_default() += 1;
        }
        if limits.rate.is_some() {
            let starts = self.starts.entry(scope.to_owned()).or_default();
            starts.before.push((self.now, 1));
            starts.added += 1;
        }
    }
}

impl RecentStarts {
    fn count(&self) -> u64 {
        self.before.iter().map(|(_, jobs)| jobs).sum()
    }

    fn free_at(&self, rate: Rate) -> Option<Timestamp> {
        let over = self.count().checked_sub(u64::from(rate.count))?;
        let mut passed = 0;
        let mut starts = self.before.clone();
        starts.sort_unstable();
        starts.into_iter().find_map(|(at, jobs)| {
            passed += jobs;
            (passed > over).then(|| at.after(rate.per()))
        })
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const NOW: Timestamp = Timestamp::from_ms(1_000);

    fn capacity(limits: QueueLimits) -> Capacity {
        Capacity { now: NOW, limits: BTreeMap::from([("q".to_owned(), limits)]), ..Capacity::default() }
    }

    fn due(partition: Option<&'static str>, strict: bool, n: u128) -> Candidate<'static> {
        Candidate { id: JobId(Uuid::from_u128(n)), partition, strict }
    }

    /// Checks the decisions about jobs that are offered one after the other.
    fn check(mut capacity: Capacity, jobs: &[Candidate<'_>], expected: &[Admission]) {
        let queue = Queue::new("q").unwrap();
        let admitted: Vec<Admission> = jobs.iter().map(|job| capacity.admit(&queue, *job)).collect();
        assert_eq!(admitted, expected);
    }

    #[test]
    fn a_taken_job_counts_for_the_next_decision() {
        let slots = |n| Limits { concurrency: Some(n), rate: None };
        let rate = Rate { count: 1, per_ms: 50 };
        let free = || due(None, false, 1);
        let keyed = || due(Some("q\u{1f}k"), false, 1);
        let queue = capacity(QueueLimits { concurrency: Some(1), ..QueueLimits::default() });
        check(queue, &[free(), keyed()], &[Admission::Take, Admission::Skip]);
        let key = capacity(QueueLimits { per_key: slots(1), ..QueueLimits::default() });
        check(key, &[keyed(), keyed(), free()], &[Admission::Take, Admission::WaitForSlot, Admission::Take]);
        let rated = capacity(QueueLimits {
            per_key: Limits { concurrency: None, rate: Some(rate) },
            ..QueueLimits::default()
        });
        check(rated, &[keyed(), keyed()], &[Admission::Take, Admission::Delay(Timestamp::from_ms(1_050))]);
        let mut strict = capacity(QueueLimits::default());
        strict.first.insert("q\u{1f}k".to_owned(), JobId(Uuid::from_u128(2)));
        let jobs = [due(Some("q\u{1f}k"), true, 3), due(Some("q\u{1f}k"), true, 2), keyed()];
        check(strict, &jobs, &[Admission::WaitForSlot, Admission::Take, Admission::Take]);
    }

    #[test]
    fn a_used_up_rate_allows_a_start_when_enough_earlier_starts_leave_the_interval() {
        let at = |ms| Timestamp::from_ms(ms);
        let starts = RecentStarts { before: vec![(at(30), 1), (at(10), 2), (at(20), 1)], added: 0 };
        for (count, free_at) in [(1, Some(130)), (2, Some(120)), (3, Some(110)), (4, Some(110)), (5, None)] {
            assert_eq!(starts.free_at(Rate { count, per_ms: 100 }), free_at.map(at), "{count}");
        }
    }
}
