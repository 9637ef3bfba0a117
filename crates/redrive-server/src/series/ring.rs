//! The newest points of one span. The steps of a span start at the same times on every node.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use redrive_wire::series::Span;

/// The content of a point.
pub(crate) trait Sample: Clone {
    /// Adds a later sample of the same step and node.
    fn extend(&mut self, later: Self);
    /// Adds the sample of the same step on another node.
    fn merge_node(&mut self, other: Self);
}

/// The points of a span, oldest first.
#[derive(Debug, Clone)]
pub(crate) struct Ring<T> {
    span: Span,
    points: VecDeque<Point<T>>,
}

/// A sample with the start of its step, in epoch ms.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "(i64, T)", into = "(i64, T)")]
#[serde(bound(serialize = "T: Serialize + Clone", deserialize = "T: Deserialize<'de>"))]
pub(crate) struct Point<T> {
    pub(crate) at: i64,
    pub(crate) sample: T,
}

impl<T> From<(i64, T)> for Point<T> {
    fn from((at, sample): (i64, T)) -> Self {
        Self { at, sample }
    }
}

impl<T> From<Point<T>> for (i64, T) {
    fn from(Point { at, sample }: Point<T>) -> Self {
        (at, sample)
    }
}

impl<T: Sample> Ring<T> {
    pub(crate) fn new(span: Span) -> Self {
        Self { span, points: VecDeque::new() }
    }

    /// Adds a sample of the time that ends at `now`.
    pub(crate) fn add(&mut self, now: i64, sample: T) {
        // A sample at the very start of a step covers the step before.
        let at = (now - 1).div_euclid(self.span.step_ms()) * self.span.step_ms();
        match self.points.back_mut() {
            // If the clock was set back, the sample counts for the newest step.
            Some(last) if last.at >= at => last.sample.extend(sample),
            Some(_) | None => self.points.push_back(Point { at, sample }),
        }
        let oldest = at - self.span.step_ms() * (self.span.points_max() as i64 - 1);
        while self.points.front().is_some_and(|point| point.at < oldest) {
            self.points.pop_front();
        }
    }

    /// All points, oldest first.
    pub(crate) fn points(&self) -> Vec<Point<T>> {
        self.points.iter().cloned().collect()
    }

    /// When the newest step started.
    pub(crate) fn newest(&self) -> Option<i64> {
        self.points.back().map(|point| point.at)
    }
}

/// Merges the points of several nodes into one series of the span that ends at `now`.
pub(crate) fn merge_nodes<T: Sample>(
    span: Span,
    nodes: impl IntoIterator<Item = Vec<Point<T>>>,
    now: i64,
) -> Vec<Point<T>> {
    let oldest = now - span.step_ms() * span.points_max() as i64;
    let mut all: std::collections::BTreeMap<i64, T> = std::collections::BTreeMap::new();
    for Point { at, sample } in nodes.into_iter().flatten().filter(|point| point.at >= oldest) {
        match all.get_mut(&at) {
            Some(merged) => merged.merge_node(sample),
            None => drop(all.insert(at, sample)),
        }
    }
    all.into_iter().map(|(at, sample)| Point { at, sample }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Sample for u64 {
        fn extend(&mut self, later: Self) {
            *self += later;
        }
        fn merge_node(&mut self, other: Self) {
            *self += 10 * other;
        }
    }

    fn points(points: &[Point<u64>]) -> Vec<(i64, u64)> {
        points.iter().map(|point| (point.at, point.sample)).collect()
    }

    #[test]
    fn samples_of_a_step_become_one_point_and_old_points_are_dropped() {
        let mut ring = Ring::new(Span::Day);
        for now in [300_000, 300_001, 600_000, 600_001, 590_000] {
            ring.add(now, 1);
        }
        assert_eq!(points(&ring.points()), [(0, 1), (300_000, 2), (600_000, 2)]);
        ring.add(600_001 + 287 * 300_000, 1);
        assert_eq!(ring.points().first().map(|point| point.at), Some(600_000), "a day has 288 steps");
        assert_eq!(ring.newest(), Some(600_000 + 287 * 300_000));
    }

    #[test]
    fn the_points_of_nodes_are_merged_step_by_step() {
        let node = |points: &[(i64, u64)]| points.iter().map(|point| Point::from(*point)).collect::<Vec<_>>();
        let series = merge_nodes(
            Span::Hour,
            [node(&[(0, 1), (10_000, 2)]), node(&[(10_000, 3), (20_000, 4)])],
            30_000,
        );
        assert_eq!(points(&series), [(0, 1), (10_000, 32), (20_000, 4)]);
        let later = merge_nodes(Span::Hour, [node(&[(0, 1), (10_000, 2)])], 3_610_000);
        assert_eq!(points(&later), [(10_000, 2)], "points older than the span are left out");
        assert_eq!(serde_json::to_string(&node(&[(5, 7)])).unwrap(), "[[5,7]]");
    }
}
