//! The number of calls over time, in steps of equal length.

use std::time::Duration;

use serde::Serialize;

/// The number of calls in each step.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Timeline {
    step_ms: u32,
    calls: Vec<f64>,
}

impl Timeline {
    /// An empty timeline with steps of `step_ms`.
    pub(crate) fn new(step_ms: u32) -> Self {
        Self { step_ms: step_ms.max(1), calls: Vec::new() }
    }

    pub(crate) fn count(&mut self, at: Duration) {
        let step = usize::try_from(at.as_millis() / u128::from(self.step_ms)).unwrap_or(usize::MAX - 1);
        if self.calls.len() <= step {
            self.calls.resize(step + 1, 0.0);
        }
        self.calls[step] += 1.0;
    }

    /// Divides the counts by the number of trials that were added up.
    pub(crate) fn mean_of(mut self, trials: u32) -> Self {
        self.calls.iter_mut().for_each(|calls| *calls /= f64::from(trials.max(1)));
        self
    }

    /// The length of a step.
    pub fn step_ms(&self) -> u32 {
        self.step_ms
    }

    /// The calls in each step, from the start.
    pub fn calls(&self) -> &[f64] {
        &self.calls
    }

    /// The sum of all calls.
    pub fn sum(&self) -> f64 {
        self.calls.iter().sum()
    }

    /// The most calls in one step that starts at `from` or later.
    pub fn peak_from(&self, from: Duration) -> f64 {
        let first = from.as_millis().div_ceil(u128::from(self.step_ms));
        let later = self.calls.iter().skip(usize::try_from(first).unwrap_or(usize::MAX));
        later.copied().fold(0.0, f64::max)
    }

    /// The same calls in steps that are `factor` times as long.
    pub fn coarser(&self, factor: u32) -> Self {
        let factor = factor.max(1);
        let calls = self.calls.chunks(factor as usize).map(|chunk| chunk.iter().sum()).collect();
        Self { step_ms: self.step_ms.saturating_mul(factor), calls }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coarser_steps_keep_every_call() {
        let mut timeline = Timeline::new(10);
        for ms in [0, 9, 10, 25, 99] {
            timeline.count(Duration::from_millis(ms));
        }
        assert_eq!(timeline.calls(), [2.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
        let coarser = timeline.coarser(4);
        assert_eq!((coarser.step_ms(), coarser.calls()), (40, [4.0, 0.0, 1.0].as_slice()));
        assert_eq!(timeline.peak_from(Duration::from_millis(11)), 1.0);
        assert_eq!(timeline.peak_from(Duration::from_secs(1)), 0.0);
    }
}
