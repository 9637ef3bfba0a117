//! Points of one span: the newest ones, each of a step that is the same on every node.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::wire::series::Span;

/// What happened in one step.
pub(crate) trait Step: Clone {
    /// Adds what happened later in the same step.
    fn go_on(&mut self, later: Self);
    /// Adds what happened in the same step on another node.
    fn join(&mut self, other: Self);
}

/// The points of a span, oldest first.
#[derive(Debug, Clone)]
pub(crate) struct Ring<T> {
    span: Span,
    points: VecDeque<Point<T>>,
}

/// A step with when it began, in epoch ms.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "(i64, T)", into = "(i64, T)")]
#[serde(bound(serialize = "T: Serialize + Clone", deserialize = "T: Deserialize<'de>"))]
pub(crate) struct Point<T> {
    pub(crate) at: i64,
    pub(crate) step: T,
}

impl<T> From<(i64, T)> for Point<T> {
    fn from((at, step): (i64, T)) -> Self {
        Self { at, step }
    }
}

impl<T> From<Point<T>> for (i64, T) {
    fn from(Point { at, step }: Point<T>) -> Self {
        (at, step)
    }
}

impl<T: Step> Ring<T> {
    pub(crate) fn new(span: Span) -> Self {
        Self { span, points: VecDeque::new() }
    }

    /// Adds what happened until `now`.
    pub(crate) fn add(&mut self, now: i64, step: T) {
        // What is seen at the very start of a step happened in the one before.
        let at = (now - 1).div_euclid(self.span.step_ms()) * self.span.step_ms();
        match self.points.back_mut() {
            // A clock that was set back adds to the newest step.
            Some(last) if last.at >= at => last.step.go_on(step),
            Some(_) | None => self.points.push_back(Point { at, step }),
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

    /// When the newest step began.
    pub(crate) fn newest(&self) -> Option<i64> {
        self.points.back().map(|point| point.at)
    }
}

/// The points of several nodes as one series of the span that ends `now`.
pub(crate) fn joined<T: Step>(
    span: Span,
    nodes: impl IntoIterator<Item = Vec<Point<T>>>,
    now: i64,
) -> Vec<Point<T>> {
    let oldest = now - span.step_ms() * span.points_max() as i64;
    let mut all: std::collections::BTreeMap<i64, T> = std::collections::BTreeMap::new();
    for Point { at, step } in nodes.into_iter().flatten().filter(|point| point.at >= oldest) {
        match all.get_mut(&at) {
            Some(there) => there.join(step),
            None => drop(all.insert(at, step)),
        }
    }
    all.into_iter().map(|(at, step)| Point { at, step }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Step for u64 {
        fn go_on(&mut self, later: Self) {
            *self += later;
        }
        fn join(&mut self, other: Self) {
            *self += 10 * other;
        }
    }

    fn points(points: &[Point<u64>]) -> Vec<(i64, u64)> {
        points.iter().map(|point| (point.at, point.step)).collect()
    }

    #[test]
    fn samples_of_a_step_are_one_point_and_old_ones_go() {
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
    fn nodes_are_joined_step_by_step() {
        let node = |points: &[(i64, u64)]| points.iter().map(|point| Point::from(*point)).collect::<Vec<_>>();
        let series =
            joined(Span::Hour, [node(&[(0, 1), (10_000, 2)]), node(&[(10_000, 3), (20_000, 4)])], 30_000);
        assert_eq!(points(&series), [(0, 1), (10_000, 32), (20_000, 4)]);
        let later = joined(Span::Hour, [node(&[(0, 1), (10_000, 2)])], 3_610_000);
        assert_eq!(points(&later), [(10_000, 2)], "what is older than the span is left out");
        assert_eq!(serde_json::to_string(&node(&[(5, 7)])).unwrap(), "[[5,7]]");
    }
}
