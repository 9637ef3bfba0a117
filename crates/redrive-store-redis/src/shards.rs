//! Caches the shard of each job that this store has seen, and the claim under which it holds the lease.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redrive_core::{Epoch, JobId};

/// Jobs in the cache. When it is full, the older half is dropped.
const CACHED_MAX: usize = 200_000;

/// The shard of a job, and the number of the claim under which this store holds its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JobLocation {
    pub(crate) shard: usize,
    pub(crate) claim: Option<(Epoch, u64)>,
}

/// A cache of job locations.
#[derive(Debug, Default)]
pub(crate) struct JobLocations(Mutex<Generations>);

/// Two generations: when `new` is full it replaces `old`.
#[derive(Debug, Default)]
struct Generations {
    new: HashMap<JobId, JobLocation>,
    old: HashMap<JobId, JobLocation>,
}

impl JobLocations {
    pub(crate) fn insert(&self, id: JobId, location: JobLocation) {
        let mut generations = self.lock();
        if generations.new.len() >= CACHED_MAX / 2 {
            generations.old = std::mem::take(&mut generations.new);
        }
        generations.new.insert(id, location);
    }

    /// Adds the shard of a job that is not cached yet. A cached claim stays.
    pub(crate) fn insert_shard(&self, id: JobId, shard: usize) {
        if self.get(id).is_none() {
            self.insert(id, JobLocation { shard, claim: None });
        }
    }

    pub(crate) fn get(&self, id: JobId) -> Option<JobLocation> {
        let generations = self.lock();
        generations.new.get(&id).or_else(|| generations.old.get(&id)).copied()
    }

    fn lock(&self) -> MutexGuard<'_, Generations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_full_cache_drops_the_oldest_jobs() {
        let locations = JobLocations::default();
        let id = |n: usize| JobId(Uuid::from_u128(n as u128));
        for n in 0..=CACHED_MAX {
            locations.insert(id(n), JobLocation { shard: n, claim: None });
        }
        assert_eq!(locations.get(id(0)), None);
        assert_eq!(locations.get(id(CACHED_MAX)).map(|location| location.shard), Some(CACHED_MAX));
    }
}
