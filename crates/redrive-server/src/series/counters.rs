//! Counters of attempts and start lags since the last sample. They need no lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Buckets of start lags, from a millisecond to some hours. Each is about 1.4 times as wide as the one before.
const LAG_BUCKETS: usize = 48;

/// The counters since the last sample.
#[derive(Debug)]
pub(crate) struct Counters {
    outcomes: [AtomicU64; 4],
    lags: [AtomicU64; LAG_BUCKETS],
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            outcomes: std::array::from_fn(|_| AtomicU64::new(0)),
            lags: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl Counters {
    /// Counts a settled attempt. `outcome` is its label in the metrics.
    pub(crate) fn attempt(&self, outcome: &str) {
        let index = match outcome {
            "succeeded" => 0,
            "retried" => 1,
            "dead" => 2,
            _ => 3,
        };
        self.outcomes[index].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a start with its lag.
    pub(crate) fn started(&self, lag: Duration) {
        self.lags[bucket(lag)].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counts and resets the counters.
    pub(crate) fn take(&self) -> Counts {
        let [succeeded, retried, dead, other] =
            std::array::from_fn(|index| self.outcomes[index].swap(0, Ordering::Relaxed));
        let lags = (0_u8..).zip(&self.lags).map(|(bucket, lags)| (bucket, lags.swap(0, Ordering::Relaxed)));
        let lags = Lags(lags.filter(|(_, count)| *count > 0).collect());
        Counts { succeeded, retried, dead, other, lags }
    }
}

/// The counts of one sample.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "(u64, u64, u64, u64, Lags)", into = "(u64, u64, u64, u64, Lags)")]
pub(crate) struct Counts {
    pub(crate) succeeded: u64,
    pub(crate) retried: u64,
    pub(crate) dead: u64,
    pub(crate) other: u64,
    pub(crate) lags: Lags,
}

impl Counts {
    pub(crate) fn add(&mut self, more: &Self) {
        self.succeeded += more.succeeded;
        self.retried += more.retried;
        self.dead += more.dead;
        self.other += more.other;
        self.lags.add(&more.lags);
    }

    /// The share of attempts that succeeded; `None` without attempts.
    pub(crate) fn success_rate(&self) -> Option<f64> {
        let ended = self.succeeded + self.retried + self.dead;
        (ended > 0).then(|| self.succeeded as f64 / ended as f64)
    }
}

impl From<(u64, u64, u64, u64, Lags)> for Counts {
    fn from((succeeded, retried, dead, other, lags): (u64, u64, u64, u64, Lags)) -> Self {
        Self { succeeded, retried, dead, other, lags }
    }
}

impl From<Counts> for (u64, u64, u64, u64, Lags) {
    fn from(Counts { succeeded, retried, dead, other, lags }: Counts) -> Self {
        (succeeded, retried, dead, other, lags)
    }
}

/// A histogram of start lags: the buckets that are not empty, in order, with their counts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Lags(Vec<(u8, u64)>);

impl Lags {
    fn add(&mut self, more: &Self) {
        for (bucket, count) in &more.0 {
            match self.0.binary_search_by_key(bucket, |(own, _)| *own) {
                Ok(index) => self.0[index].1 += count,
                Err(index) => self.0.insert(index, (*bucket, *count)),
            }
        }
    }

    /// The quantile of the lags, rounded up to the end of its bucket; `None` without lags.
    pub(crate) fn quantile_ms(&self, share: f64) -> Option<u64> {
        let all: u64 = self.0.iter().map(|(_, count)| count).sum();
        let wanted = (all as f64 * share).ceil() as u64;
        let mut seen = 0;
        let reached = self.0.iter().find(|(_, count)| {
            seen += count;
            seen >= wanted.max(1)
        });
        reached.map(|(bucket, _)| upper_ms(*bucket))
    }
}

fn bucket(lag: Duration) -> usize {
    let ms = lag.as_secs_f64() * 1_000.0;
    // Bucket n ends at 2^(n/2) ms.
    let index = if ms <= 1.0 { 0.0 } else { (ms.log2() * 2.0).ceil() };
    (index as usize).min(LAG_BUCKETS - 1)
}

fn upper_ms(bucket: u8) -> u64 {
    (f64::from(bucket) / 2.0).exp2().round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_exact_up_to_the_width_of_a_bucket() {
        let counters = Counters::default();
        for ms in 1..=1_000 {
            counters.started(Duration::from_millis(ms));
        }
        let Counts { lags, .. } = counters.take();
        for (share, exact) in [(0.5, 500.0), (0.99, 990.0), (0.1, 100.0)] {
            let found = lags.quantile_ms(share).unwrap() as f64;
            assert!(found >= exact && found <= exact * 1.42, "{share}: {found}");
        }
        assert_eq!(counters.take().lags.quantile_ms(0.5), None, "taking the counts resets the counters");
        let extremes = Counters::default();
        extremes.started(Duration::ZERO);
        extremes.started(Duration::from_secs(1 << 30));
        let lags = extremes.take().lags;
        assert_eq!(lags.quantile_ms(0.5), Some(1));
        assert!(lags.quantile_ms(0.99) > Some(3_600_000));
    }

    #[test]
    fn counts_add_up_and_survive_a_json_round_trip() {
        let counters = Counters::default();
        for outcome in ["succeeded", "succeeded", "retried", "dead", "cancelled"] {
            counters.attempt(outcome);
        }
        counters.started(Duration::from_millis(3));
        let mut counts = counters.take();
        counts.add(&counts.clone());
        let text = serde_json::to_string(&counts).unwrap();
        assert_eq!(text, "[4,2,2,2,[[4,2]]]");
        assert_eq!(serde_json::from_str::<Counts>(&text).unwrap(), counts);
        assert_eq!(counts.success_rate(), Some(0.5));
    }
}
