//! In which partition each job is: for new ones by what they have in common, for known ones from memory or by asking.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use redrive_core::{Epoch, JobId, NewJob, PolicyName, Tenant};

use crate::address::SpreadBy;

/// Jobs to remember before the oldest half is forgotten.
const REMEMBERED_MAX: usize = 200_000;

/// How jobs are spread, the same for everyone who opens the store.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub(crate) prefix: String,
    pub(crate) partitions: usize,
    pub(crate) spread_by: SpreadBy,
}

impl Layout {
    /// What the keys of a partition begin with: one hash tag, so that they are on one server.
    pub(crate) fn tag(&self, partition: usize) -> String {
        format!("{{{}:{partition}}}:", self.prefix)
    }

    /// What the keys of records begin with.
    pub(crate) fn records_tag(&self) -> String {
        records_tag(&self.prefix)
    }

    /// The partition of a job that is not told by its parent.
    pub(crate) fn partition_of(&self, job: &NewJob) -> usize {
        let ordering = job.partition.as_ref().map(|of| of.key.as_str());
        let unique = job.unique.as_ref().map(|unique| unique.key.as_str());
        let key = job.idempotency.as_ref().map(|asked| asked.key.as_str());
        self.partition(&job.tenant, &job.policy.name, ordering.or(unique).or(key), job.id)
    }

    /// The partition of what is like this; `key` is the first of its ordering, unique and idempotency keys.
    pub(crate) fn partition(
        &self,
        tenant: &Tenant,
        policy: &PolicyName,
        key: Option<&str>,
        id: JobId,
    ) -> usize {
        let id = id.0.simple().to_string();
        let rest = match self.spread_by {
            SpreadBy::Tenant => "",
            SpreadBy::Policy => policy.as_str(),
            SpreadBy::Key => key.unwrap_or(&id),
        };
        let mut hash = Fnv::default();
        for part in [tenant.as_str(), "\u{1f}", rest] {
            hash.write(part.as_bytes());
        }
        (hash.finish() % self.partitions as u64) as usize
    }
}

/// What the keys of records begin with, however jobs are spread.
pub(crate) fn records_tag(prefix: &str) -> String {
    format!("{{{prefix}:records}}:")
}

/// FNV-1a: it must give the same on every machine for ever.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        // Its low bits alone spread short texts badly.
        self.0 ^ (self.0 >> 32)
    }
}

/// Where a job is, and the number of the claim under which this store holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Home {
    pub(crate) partition: usize,
    pub(crate) claim: Option<(Epoch, u64)>,
}

/// What this store remembers, in two halves of which the older is forgotten when the newer is full.
#[derive(Debug, Default)]
pub(crate) struct Homes(Mutex<Halves>);

#[derive(Debug, Default)]
struct Halves {
    new: HashMap<JobId, Home, ById>,
    old: HashMap<JobId, Home, ById>,
}

/// Ids are random enough to be their own hash.
type ById = BuildHasherDefault<IdHasher>;

#[derive(Debug, Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut eight = [0; 8];
            eight[..part.len()].copy_from_slice(part);
            self.0 = (self.0.rotate_left(29) ^ u64::from_le_bytes(eight)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }
}

impl Homes {
    pub(crate) fn learn(&self, id: JobId, home: Home) {
        let mut halves = self.halves();
        if halves.new.len() >= REMEMBERED_MAX / 2 {
            halves.old = std::mem::take(&mut halves.new);
        }
        halves.new.insert(id, home);
    }

    /// Remembers where a job is, and forgets nothing about its lease.
    pub(crate) fn learn_partition(&self, id: JobId, partition: usize) {
        if self.find(id).is_none() {
            self.learn(id, Home { partition, claim: None });
        }
    }

    pub(crate) fn find(&self, id: JobId) -> Option<Home> {
        let halves = self.halves();
        halves.new.get(&id).or_else(|| halves.old.get(&id)).copied()
    }

    fn halves(&self) -> MutexGuard<'_, Halves> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use redrive_core::{Kind, PolicyRef};
    use uuid::Uuid;

    use super::*;

    #[test]
    fn jobs_are_spread_the_same_way_for_ever() {
        let policy = PolicyRef::first(PolicyName::new("default").unwrap());
        let job =
            |n: u128| NewJob::new(JobId(Uuid::from_u128(n)), Kind::new("k").unwrap(), policy.clone(), vec![]);
        let of = |tenant: &str| NewJob { tenant: Tenant::new(tenant).unwrap(), ..job(1) };
        let layout = |spread_by| Layout { prefix: "redrive".into(), partitions: 16, spread_by };
        let places: Vec<usize> =
            ["a", "b", "c", "acme"].map(|t| layout(SpreadBy::Tenant).partition_of(&of(t))).into();
        assert_eq!(places, PLACES);
        let mut seen = [0; 16];
        for n in 0..1_600 {
            seen[layout(SpreadBy::Key).partition_of(&job(n))] += 1;
        }
        assert!(seen.iter().all(|n| (50..200).contains(n)), "{seen:?}");
        assert_eq!(layout(SpreadBy::Tenant).tag(3), "{redrive:3}:");
    }

    /// What the first version gave: jobs that are there would not be found otherwise.
    const PLACES: [usize; 4] = [14, 9, 0, 9];

    #[test]
    fn the_oldest_are_forgotten() {
        let homes = Homes::default();
        let id = |n: usize| JobId(Uuid::from_u128(n as u128));
        for n in 0..=REMEMBERED_MAX {
            homes.learn(id(n), Home { partition: n, claim: None });
        }
        assert_eq!(homes.find(id(0)), None);
        assert_eq!(homes.find(id(REMEMBERED_MAX)).map(|home| home.partition), Some(REMEMBERED_MAX));
    }
}
