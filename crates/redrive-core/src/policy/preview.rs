//! A preview of a policy: shortest, mean and longest wait before each retry, and their sums.

use std::time::Duration;

use super::Policy;
use super::backoff::Backoff;
use super::jitter::{Jitter, decorrelated_range, from_secs};

/// The most retries in a preview. A policy may allow thousands.
pub const RETRIES_SHOWN_MAX: u32 = 100;

/// The waits of a policy if every attempt fails at once.
#[derive(Debug, Clone, PartialEq)]
pub struct Preview {
    /// The retries in order, at most [`RETRIES_SHOWN_MAX`].
    pub retries: Vec<Retry>,
    /// The number of further retries.
    pub not_shown: u32,
}

/// The wait before one retry.
#[derive(Debug, Clone, PartialEq)]
pub struct Retry {
    /// The number of the attempt after the wait, from 2.
    pub attempt: u32,
    /// The shortest wait.
    pub earliest: Duration,
    /// The mean wait.
    pub mean: Duration,
    /// The longest wait.
    pub latest: Duration,
    /// The sums of the waits so far: when the attempt starts if every attempt fails at once.
    pub total: TotalWait,
}

/// Sums of waits.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TotalWait {
    /// The sum of the shortest waits.
    pub earliest: Duration,
    /// The sum of the mean waits.
    pub mean: Duration,
    /// The sum of the longest waits.
    pub latest: Duration,
}

impl Preview {
    /// The sums over all retries of the preview.
    pub fn total(&self) -> TotalWait {
        self.retries.last().map(|retry| retry.total).unwrap_or_default()
    }
}

/// Computes the preview of `policy`.
pub(super) fn preview(policy: &Policy) -> Preview {
    let all = policy.max_attempts.get() - 1;
    let shown = all.min(RETRIES_SHOWN_MAX);
    let mut total = TotalWait::default();
    let waits = match policy.jitter {
        Jitter::Decorrelated => decorrelated(&policy.backoff, shown),
        jitter => (1..=shown).map(|k| independent(jitter, policy.backoff.before_retry(k))).collect(),
    };
    let retries = waits.into_iter().zip(2..).map(|((earliest, mean, latest), attempt)| {
        total.earliest += earliest;
        total.mean += mean;
        total.latest += latest;
        Retry { attempt, earliest, mean, latest, total }
    });
    Preview { retries: retries.collect(), not_shown: all - shown }
}

type Wait = (Duration, Duration, Duration);

fn independent(jitter: Jitter, wait: Duration) -> Wait {
    let (low, high) = jitter.range(wait);
    let mean = if low >= 0.0 {
        f64::midpoint(low, high)
    } else {
        // The part of the interval below zero counts as zero: the mean of max(0, x) for x uniform in [low, high].
        high * high / (2.0 * (high - low))
    };
    (from_secs(low.max(0.0)), from_secs(mean), from_secs(high))
}

/// The number of grid cells that represent the distribution of a decorrelated wait.
const CELLS: usize = 400;

/// Each wait depends on the previous one, so a grid over `[initial, max]` tracks its distribution.
fn decorrelated(backoff: &Backoff, retries: u32) -> Vec<Wait> {
    let (low, top) = (backoff.initial().as_secs_f64(), backoff.max_delay().as_secs_f64());
    let width = (top - low) / CELLS as f64;
    let centre = |cell: usize| low + (cell as f64 + 0.5) * width;
    let mut latest = backoff.initial();
    let mut weights: Option<Vec<f64>> = None;
    let mut waits = Vec::with_capacity(retries as usize);
    for _ in 0..retries {
        let (_, highest) = decorrelated_range(backoff, latest);
        latest = from_secs(highest);
        let mut next = vec![0.0; CELLS];
        let mut mean = 0.0;
        let sources = match &weights {
            None => vec![(backoff.initial(), 1.0)],
            Some(weights) => {
                weights.iter().enumerate().map(|(cell, w)| (from_secs(centre(cell)), *w)).collect()
            }
        };
        for (previous, weight) in sources.into_iter().filter(|(_, weight)| *weight > 0.0) {
            let (from, to) = decorrelated_range(backoff, previous);
            mean += weight * f64::midpoint(from, to);
            spread_over(&mut next, weight, low, width, to);
        }
        waits.push((backoff.initial(), from_secs(mean), latest));
        weights = Some(next);
    }
    waits
}

/// Adds `weight`, uniform over `[low, to]`, to the cells.
fn spread_over(cells: &mut [f64], weight: f64, low: f64, width: f64, to: f64) {
    let covered = if width > 0.0 { ((to - low) / width).min(cells.len() as f64) } else { 0.0 };
    if covered <= 0.0 {
        cells[0] += weight;
        return;
    }
    let each = weight / covered;
    let whole = covered as usize;
    for cell in &mut cells[..whole] {
        *cell += each;
    }
    if let Some(cell) = cells.get_mut(whole) {
        *cell += each * (covered - whole as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(n: f64) -> Duration {
        Duration::from_secs_f64(n)
    }

    /// The mean of each wait over many runs of the real jitter, as the preview should predict it.
    fn sampled_means(policy: &Policy, runs: u32) -> Vec<f64> {
        let mut seed = 42u64;
        let mut random = move || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 11) as f64 / (1u64 << 53) as f64
        };
        let retries = policy.max_attempts.get() - 1;
        let mut sums = vec![0.0; retries as usize];
        for _ in 0..runs {
            let mut previous = None;
            for k in 1..=retries {
                let wait = policy.wait(k, previous, None, &mut random);
                sums[k as usize - 1] += wait.as_secs_f64();
                previous = Some(wait);
            }
        }
        sums.into_iter().map(|sum| sum / f64::from(runs)).collect()
    }

    #[test]
    fn the_predicted_mean_matches_the_waits_of_the_engine() {
        let backoff = Backoff::exponential(secs(1.0), 2.0, secs(20.0)).unwrap();
        let absolute = Jitter::absolute(secs(3.0));
        for jitter in [
            Jitter::None,
            Jitter::Full,
            Jitter::Equal,
            Jitter::Decorrelated,
            Jitter::proportional(0.3).unwrap(),
            absolute,
        ] {
            let policy = Policy::default().with_backoff(backoff.clone()).with_jitter(jitter);
            let sampled = sampled_means(&policy, 20_000);
            for (retry, sampled) in policy.preview().retries.iter().zip(sampled) {
                let predicted = retry.mean.as_secs_f64();
                assert!(
                    (predicted - sampled).abs() <= 0.03 * sampled,
                    "{jitter:?} {retry:?} sampled {sampled}"
                );
            }
        }
    }

    #[test]
    fn decorrelated_bounds_triple_up_to_the_cap() {
        let backoff = Backoff::exponential(secs(1.0), 2.0, secs(20.0)).unwrap();
        let policy = Policy::default().with_backoff(backoff).with_jitter(Jitter::Decorrelated);
        let latest: Vec<f64> = policy.preview().retries.iter().map(|r| r.latest.as_secs_f64()).collect();
        assert_eq!(latest, [3.0, 9.0, 20.0, 20.0, 20.0, 20.0, 20.0]);
    }

    #[test]
    fn totals_add_up_and_long_policies_are_cut() {
        let policy = super::super::presets::quadratic().with_max_attempts(1_000).unwrap();
        let preview = policy.preview();
        assert_eq!((preview.retries.len(), preview.not_shown), (100, 899));
        assert_eq!(preview.retries[2].total.mean, secs(14.0));
        assert_eq!(preview.total(), preview.retries[99].total);
    }
}
