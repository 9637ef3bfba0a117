//! How long an attempt takes as far as is known: a smoothed duration by key.

use std::sync::Mutex;
use std::time::Duration;

use crate::hold::lock;
use crate::remember::Recent;

/// The weight of the newest duration; the one before counts for 0.8 of its own, and so on.
const ALPHA: f64 = 0.2;
/// Keys may come from outside (an origin), so they are bounded.
const KEYS_MAX: usize = 1024;

/// Smoothed durations. The key is what attempts have in common: their kind, or where they are sent.
pub(crate) struct Estimates {
    nanos: Mutex<Recent<String, f64>>,
}

impl Default for Estimates {
    fn default() -> Self {
        Self { nanos: Mutex::new(Recent::new(KEYS_MAX)) }
    }
}

impl Estimates {
    /// The smoothed duration; zero while nothing is known.
    pub(crate) fn get(&self, key: &str) -> Duration {
        lock(&self.nanos).get(key).map_or(Duration::ZERO, |nanos| round(*nanos))
    }

    /// Takes one more duration into account and gives the new estimate.
    pub(crate) fn observe(&self, key: &str, took: Duration) -> Duration {
        let newest = took.as_nanos() as f64;
        let mut known = lock(&self.nanos);
        match known.get(key) {
            Some(nanos) => {
                *nanos += ALPHA * (newest - *nanos);
                round(*nanos)
            }
            None => {
                known.insert(key.to_owned(), newest);
                took
            }
        }
    }
}

fn round(nanos: f64) -> Duration {
    Duration::from_nanos(nanos as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn the_first_duration_counts_whole_and_each_next_one_a_fifth() {
        let estimates = Estimates::default();
        assert_eq!(estimates.get("mail"), Duration::ZERO);
        assert_eq!(estimates.observe("mail", 10 * S), 10 * S);
        assert_eq!(estimates.observe("mail", 5 * S), 9 * S);
        assert_eq!(estimates.get("mail"), 9 * S);
        assert_eq!(estimates.get("other"), Duration::ZERO);
    }

    #[test]
    fn it_follows_a_change_and_bears_extremes() {
        let estimates = Estimates::default();
        estimates.observe("mail", Duration::MAX);
        for _ in 0..300 {
            estimates.observe("mail", S);
        }
        let settled = estimates.get("mail");
        assert!(settled >= S && settled < S + Duration::from_millis(1), "{settled:?}");
    }
}
