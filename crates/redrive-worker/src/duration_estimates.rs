//! Estimates how long an attempt takes: a smoothed duration for each key.

use std::sync::Mutex;
use std::time::Duration;

use crate::engine::lock;
use crate::recent_cache::RecentCache;

/// The weight of the newest duration in the exponential moving average.
const ALPHA: f64 = 0.2;
/// Keys may come from outside, for example an origin, so their number is bounded.
const KEYS_MAX: usize = 1024;

/// Smoothed durations by key. Attempts with the same key take about as long: they have the same kind or the same origin.
pub(crate) struct DurationEstimates {
    nanos: Mutex<RecentCache<String, f64>>,
}

impl Default for DurationEstimates {
    fn default() -> Self {
        Self { nanos: Mutex::new(RecentCache::new(KEYS_MAX)) }
    }
}

impl DurationEstimates {
    /// Returns the smoothed duration, or zero if no attempt was observed yet.
    pub(crate) fn get(&self, key: &str) -> Duration {
        lock(&self.nanos).get(key).map_or(Duration::ZERO, |nanos| to_duration(*nanos))
    }

    /// Adds the duration of one attempt and returns the new estimate.
    pub(crate) fn observe(&self, key: &str, took: Duration) -> Duration {
        let newest = took.as_nanos() as f64;
        let mut estimates = lock(&self.nanos);
        match estimates.get(key) {
            Some(nanos) => {
                *nanos += ALPHA * (newest - *nanos);
                to_duration(*nanos)
            }
            None => {
                estimates.insert(key.to_owned(), newest);
                took
            }
        }
    }
}

fn to_duration(nanos: f64) -> Duration {
    Duration::from_nanos(nanos as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn the_first_duration_is_the_estimate_and_each_later_one_counts_a_fifth() {
        let estimates = DurationEstimates::default();
        assert_eq!(estimates.get("mail"), Duration::ZERO);
        assert_eq!(estimates.observe("mail", 10 * S), 10 * S);
        assert_eq!(estimates.observe("mail", 5 * S), 9 * S);
        assert_eq!(estimates.get("mail"), 9 * S);
        assert_eq!(estimates.get("other"), Duration::ZERO);
    }

    #[test]
    fn the_estimate_recovers_from_an_extreme_duration() {
        let estimates = DurationEstimates::default();
        estimates.observe("mail", Duration::MAX);
        for _ in 0..300 {
            estimates.observe("mail", S);
        }
        let estimate = estimates.get("mail");
        assert!(estimate >= S && estimate < S + Duration::from_millis(1), "{estimate:?}");
    }
}
