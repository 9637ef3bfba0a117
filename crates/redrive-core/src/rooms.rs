//! Whether there is room for a job in its queue and its partition: decided here, for every store, from what it has counted.

use std::collections::{BTreeMap, HashMap};

use crate::job::JobId;
use crate::names::Queue;
use crate::quota::{Bounds, Quota, Rate};
use crate::time::Timestamp;

/// What a claim does with a due job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Leases it.
    Take,
    /// Leaves it: its queue has no room.
    PassOver,
    /// Sets it aside: its partition has no room, or another comes first.
    SetAside,
    /// Puts it off: its partition's rate is used up until then.
    PutOff(Timestamp),
}

/// A due job that a claim decides about.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// The job.
    pub id: JobId,
    /// What its partition is called across queues, if it is in one; see [`crate::Partition::scope`].
    pub partition: Option<&'a str>,
    /// Whether it must come after the others of its partition.
    pub strict: bool,
}

/// Quotas by queue.
pub type Quotas = BTreeMap<String, Quota>;

/// What runs and has started by queue and by partition, as a store has counted it, and what one claim has taken since.
#[derive(Debug, Default)]
pub struct Rooms {
    /// The store's time.
    pub now: Timestamp,
    /// Quotas by queue.
    pub quotas: Quotas,
    /// Jobs that run, by queue and by what a partition is called.
    pub running: HashMap<String, u64>,
    /// Starts that a rate counts, by the same.
    pub starts: HashMap<String, Starts>,
    /// The first of each partition's jobs in strict order that have not ended.
    pub first: HashMap<String, JobId>,
}

/// Starts within a rate's span, and how many this claim adds.
#[derive(Debug, Default)]
pub struct Starts {
    /// When, and how many.
    pub before: Vec<(Timestamp, u64)>,
    /// Those that the claim has to write down.
    pub added: u64,
}

impl Rooms {
    /// Decides about a due job of `queue`, which counts from then on if it is taken.
    pub fn admit(&mut self, queue: &Queue, job: Candidate<'_>) -> Admission {
        if self.queue_room(queue) == 0 {
            return Admission::PassOver;
        }
        let quota = self.quota(queue);
        let Some(scope) = job.partition else {
            self.take(queue.as_str(), quota.whole());
            return Admission::Take;
        };
        let comes_first = !job.strict || self.first.get(scope) == Some(&job.id);
        if !comes_first || self.room(scope, Bounds { rate: None, ..quota.per_key }) == 0 {
            return Admission::SetAside;
        }
        if let Some(at) = quota.per_key.rate.and_then(|rate| self.frees(scope, rate)) {
            return Admission::PutOff(at);
        }
        self.take(queue.as_str(), quota.whole());
        self.take(scope, quota.per_key);
        Admission::Take
    }

    /// How many more of a queue may start now.
    pub fn queue_room(&self, queue: &Queue) -> u64 {
        self.room(queue.as_str(), self.quota(queue).whole())
    }

    /// When the rate of a queue that has no room allows for another start.
    pub fn queue_frees(&self, queue: &Queue) -> Option<Timestamp> {
        self.quota(queue).rate.and_then(|rate| self.frees(queue.as_str(), rate))
    }

    /// The quota of a queue; one without bounds if it has none.
    pub fn quota(&self, queue: &Queue) -> Quota {
        self.quotas.get(queue.as_str()).copied().unwrap_or_default()
    }

    fn room(&self, scope: &str, bounds: Bounds) -> u64 {
        let running = self.running.get(scope).copied().unwrap_or_default();
        bounds.room(running, self.starts.get(scope).map_or(0, Starts::count))
    }

    /// When a rate that is used up allows for another start.
    fn frees(&self, scope: &str, rate: Rate) -> Option<Timestamp> {
        self.starts.get(scope).and_then(|starts| starts.frees(rate))
    }

    fn take(&mut self, scope: &str, bounds: Bounds) {
        if bounds.concurrency.is_some() {
            *self.running.entry(scope.to_owned()).or_default() += 1;
        }
        if bounds.rate.is_some() {
            let starts = self.starts.entry(scope.to_owned()).or_default();
            starts.before.push((self.now, 1));
            starts.added += 1;
        }
    }
}

impl Starts {
    fn count(&self) -> u64 {
        self.before.iter().map(|(_, jobs)| jobs).sum()
    }

    fn frees(&self, rate: Rate) -> Option<Timestamp> {
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

    fn rooms(quota: Quota) -> Rooms {
        Rooms { now: NOW, quotas: BTreeMap::from([("q".to_owned(), quota)]), ..Rooms::default() }
    }

    fn due(partition: Option<&'static str>, strict: bool, n: u128) -> Candidate<'static> {
        Candidate { id: JobId(Uuid::from_u128(n)), partition, strict }
    }

    /// What comes of jobs one after the other.
    fn check(mut rooms: Rooms, jobs: &[Candidate<'_>], expected: &[Admission]) {
        let queue = Queue::new("q").unwrap();
        let admitted: Vec<Admission> = jobs.iter().map(|job| rooms.admit(&queue, *job)).collect();
        assert_eq!(admitted, expected);
    }

    #[test]
    fn what_is_taken_counts_for_the_next() {
        let slots = |n| Bounds { concurrency: Some(n), rate: None };
        let rate = Rate { count: 1, per_ms: 50 };
        let free = || due(None, false, 1);
        let keyed = || due(Some("q\u{1f}k"), false, 1);
        let queue = rooms(Quota { concurrency: Some(1), ..Quota::default() });
        check(queue, &[free(), keyed()], &[Admission::Take, Admission::PassOver]);
        let key = rooms(Quota { per_key: slots(1), ..Quota::default() });
        check(key, &[keyed(), keyed(), free()], &[Admission::Take, Admission::SetAside, Admission::Take]);
        let rated =
            rooms(Quota { per_key: Bounds { concurrency: None, rate: Some(rate) }, ..Quota::default() });
        check(rated, &[keyed(), keyed()], &[Admission::Take, Admission::PutOff(Timestamp::from_ms(1_050))]);
        let mut strict = rooms(Quota::default());
        strict.first.insert("q\u{1f}k".to_owned(), JobId(Uuid::from_u128(2)));
        let jobs = [due(Some("q\u{1f}k"), true, 3), due(Some("q\u{1f}k"), true, 2), keyed()];
        check(strict, &jobs, &[Admission::SetAside, Admission::Take, Admission::Take]);
    }

    #[test]
    fn a_used_up_rate_frees_when_the_start_that_is_over_grows_old() {
        let at = |ms| Timestamp::from_ms(ms);
        let starts = Starts { before: vec![(at(30), 1), (at(10), 2), (at(20), 1)], added: 0 };
        for (count, frees) in [(1, Some(130)), (2, Some(120)), (3, Some(110)), (4, Some(110)), (5, None)] {
            assert_eq!(starts.frees(Rate { count, per_ms: 100 }), frees.map(at), "{count}");
        }
    }
}
