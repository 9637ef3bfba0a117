//! Random numbers from a seed: uniform ones for policies, normally distributed ones for network delays.

use std::f64::consts::TAU;
use std::time::Duration;

use redrive_core::RandomSource;
use serde::Serialize;

/// A random number generator with a seed.
pub(crate) struct SeededRandom(fastrand::Rng);

impl SeededRandom {
    /// A generator for one part and trial of an experiment, so that another part does not change the results of this one.
    pub(crate) fn new(seed: u64, part: u64, trial: u32) -> Self {
        let mixed = seed ^ part.rotate_left(32) ^ u64::from(trial).rotate_left(16);
        // Similar seeds must not give similar sequences, so the odd factor spreads them.
        Self(fastrand::Rng::with_seed(mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15)))
    }

    /// A number with standard normal distribution (Box-Muller transform).
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.0.f64()).ln()).sqrt();
        radius * (TAU * self.0.f64()).cos()
    }
}

impl RandomSource for SeededRandom {
    fn unit(&mut self) -> f64 {
        self.0.f64()
    }
}

/// The delay of a message in one direction: the absolute value of a normally distributed number.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkDelay {
    /// The mean.
    pub mean_ms: f64,
    /// The standard deviation.
    pub deviation_ms: f64,
}

impl Default for NetworkDelay {
    /// |N(10, 2)| ms, as in the published experiment.
    fn default() -> Self {
        Self { mean_ms: 10.0, deviation_ms: 2.0 }
    }
}

impl NetworkDelay {
    pub(crate) fn sample(self, random: &mut SeededRandom) -> Duration {
        let ms = (self.mean_ms + self.deviation_ms * random.normal()).abs();
        Duration::try_from_secs_f64(ms / 1e3).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_have_the_given_mean_and_deviation() {
        let mut random = SeededRandom::new(1, 0, 0);
        let delays: Vec<f64> =
            (0..100_000).map(|_| NetworkDelay::default().sample(&mut random).as_secs_f64() * 1e3).collect();
        let mean = delays.iter().sum::<f64>() / delays.len() as f64;
        let variance = delays.iter().map(|delay| (delay - mean).powi(2)).sum::<f64>() / delays.len() as f64;
        assert!((mean - 10.0).abs() < 0.05, "{mean}");
        assert!((variance.sqrt() - 2.0).abs() < 0.05, "{}", variance.sqrt());
    }

    #[test]
    fn parts_and_trials_have_their_own_sequences() {
        let first = |seed, part, trial| SeededRandom::new(seed, part, trial).unit();
        let mut all = vec![first(1, 0, 0), first(2, 0, 0), first(1, 1, 0), first(1, 0, 1), first(1, 1, 1)];
        all.sort_by(f64::total_cmp);
        all.dedup();
        assert_eq!(all.len(), 5);
    }
}
