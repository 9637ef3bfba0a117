//! Chance from a seed: uniform numbers for the policies and normal ones for the network.

use std::f64::consts::TAU;
use std::time::Duration;

use redrive_core::Chance;
use serde::Serialize;

/// Chance that a seed replays.
pub(crate) struct Dice(fastrand::Rng);

impl Dice {
    /// Dice of their own for one part of an experiment, so that adding a part leaves the others as they were.
    pub(crate) fn new(seed: u64, part: u64, trial: u32) -> Self {
        let mixed = seed ^ part.rotate_left(32) ^ u64::from(trial).rotate_left(16);
        // Neighbouring seeds must not give neighbouring streams: the odd factor spreads them.
        Self(fastrand::Rng::with_seed(mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15)))
    }

    /// One standard normal number, by Box and Muller.
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.0.f64()).ln()).sqrt();
        radius * (TAU * self.0.f64()).cos()
    }
}

impl Chance for Dice {
    fn unit(&mut self) -> f64 {
        self.0.f64()
    }
}

/// How long a message travels one way: the amount of a normal number.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Hop {
    /// Its mean.
    pub mean_ms: f64,
    /// Its standard deviation.
    pub deviation_ms: f64,
}

impl Default for Hop {
    /// |N(10, 2)| ms, as in the published experiment.
    fn default() -> Self {
        Self { mean_ms: 10.0, deviation_ms: 2.0 }
    }
}

impl Hop {
    pub(crate) fn travel(self, dice: &mut Dice) -> Duration {
        let ms = (self.mean_ms + self.deviation_ms * dice.normal()).abs();
        Duration::try_from_secs_f64(ms / 1e3).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hops_have_the_mean_and_the_spread_they_are_told() {
        let mut dice = Dice::new(1, 0, 0);
        let hops: Vec<f64> =
            (0..100_000).map(|_| Hop::default().travel(&mut dice).as_secs_f64() * 1e3).collect();
        let mean = hops.iter().sum::<f64>() / hops.len() as f64;
        let variance = hops.iter().map(|hop| (hop - mean).powi(2)).sum::<f64>() / hops.len() as f64;
        assert!((mean - 10.0).abs() < 0.05, "{mean}");
        assert!((variance.sqrt() - 2.0).abs() < 0.05, "{}", variance.sqrt());
    }

    #[test]
    fn parts_and_trials_have_streams_of_their_own() {
        let first = |seed, part, trial| Dice::new(seed, part, trial).unit();
        let mut all = vec![first(1, 0, 0), first(2, 0, 0), first(1, 1, 0), first(1, 0, 1), first(1, 1, 1)];
        all.sort_by(f64::total_cmp);
        all.dedup();
        assert_eq!(all.len(), 5);
    }
}
