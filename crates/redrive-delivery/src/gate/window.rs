//! A window of outcomes by path: whether an origin struggles, or only one of its paths.

use std::time::Duration;

use tokio::time::Instant;

/// The fewest outcomes that are judged together.
const OUTCOMES_MIN: u32 = 8;
/// The most outcomes that are judged together.
const OUTCOMES_MAX: u32 = 64;
/// Outcomes older than this say nothing about now.
const AGE_MAX: Duration = Duration::from_secs(120);
/// How long a path that worked speaks for its origin without being called again.
const GOOD_FOR: Duration = Duration::from_secs(10);
/// How many of the paths that worked last are remembered: fewer than [`OUTCOMES_MIN`], so that an origin whose paths
/// are all different is found out within one window.
const GOOD_PATHS: usize = 4;

/// What a full window says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judgement {
    /// Most of it failed, on most of the paths.
    Struggles,
    /// It did not.
    Works,
}

/// The outcomes since the last judgement, and the paths that worked last.
#[derive(Debug, Default)]
pub(super) struct Window {
    paths: Vec<Tally>,
    answered: u32,
    failed: u32,
    started: Option<Instant>,
    /// Path and time of the last answers, one entry per path.
    good: [Option<(u64, Instant)>; GOOD_PATHS],
    last: (u32, u32),
}

#[derive(Debug)]
struct Tally {
    path: u64,
    answered: u32,
    failed: u32,
}

impl Window {
    /// Takes note of an answer.
    pub(super) fn answered(&mut self, path: u64, now: Instant) {
        self.remember(path, now);
        self.tally(path, now).answered += 1;
        self.answered += 1;
    }

    /// Takes note of a failure.
    pub(super) fn failed(&mut self, path: u64, now: Instant) {
        self.tally(path, now).failed += 1;
        self.failed += 1;
    }

    /// The judgement, once there are as many outcomes as `limit` calls give; a new window begins with it.
    pub(super) fn close(&mut self, limit: u32, now: Instant) -> Option<Judgement> {
        if self.len() < limit.clamp(OUTCOMES_MIN, OUTCOMES_MAX) {
            return None;
        }
        let judgement = self.judge(now);
        self.start_afresh();
        Some(judgement)
    }

    /// Most calls failed, and most paths failed mostly. A path that worked lately and was not seen to fail since
    /// speaks for the origin.
    pub(super) fn judge(&self, now: Instant) -> Judgement {
        let bad = self.paths.iter().filter(|tally| tally.failed > tally.answered).count();
        let seen = |path: u64| self.paths.iter().any(|tally| tally.path == path);
        let fresh = |at: Instant| now.saturating_duration_since(at) < GOOD_FOR;
        let absent = self.good.iter().flatten().filter(|(path, at)| !seen(*path) && fresh(*at)).count();
        if self.failed > self.answered && 2 * bad > self.paths.len() + absent {
            Judgement::Struggles
        } else {
            Judgement::Works
        }
    }

    /// Outcomes since the last judgement.
    pub(super) fn len(&self) -> u32 {
        self.answered + self.failed
    }

    /// Answers and failures, in this window and the one before.
    pub(super) fn counts(&self) -> (u32, u32) {
        (self.answered + self.last.0, self.failed + self.last.1)
    }

    fn start_afresh(&mut self) {
        self.last = (self.answered, self.failed);
        self.paths.clear();
        (self.answered, self.failed, self.started) = (0, 0, None);
    }

    fn remember(&mut self, path: u64, now: Instant) {
        let same = self.good.iter().position(|good| good.is_some_and(|(known, _)| known == path));
        let oldest = || (0..GOOD_PATHS).min_by_key(|at| self.good[*at].map(|(_, seen)| seen)).unwrap_or(0);
        self.good[same.unwrap_or_else(oldest)] = Some((path, now));
    }

    fn tally(&mut self, path: u64, now: Instant) -> &mut Tally {
        let started = *self.started.get_or_insert(now);
        if now.saturating_duration_since(started) > AGE_MAX {
            self.start_afresh();
            self.started = Some(now);
        }
        let at = self.paths.iter().position(|tally| tally.path == path).unwrap_or_else(|| {
            self.paths.push(Tally { path, answered: 0, failed: 0 });
            self.paths.len() - 1
        });
        &mut self.paths[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Judges outcomes given as a path and whether it answered.
    fn check(outcomes: &[(u64, bool)], judgement: Judgement) {
        let now = Instant::now();
        let mut window = Window::default();
        for (path, answered) in outcomes {
            if *answered { window.answered(*path, now) } else { window.failed(*path, now) }
        }
        assert_eq!(window.judge(now), judgement, "{outcomes:?}");
    }

    #[test]
    fn an_origin_struggles_when_most_of_its_paths_do() {
        check(&[(1, false); 8], Judgement::Struggles);
        check(&[(1, true); 8], Judgement::Works);
        check(&[(1, false), (1, false), (1, true)], Judgement::Struggles);
        check(&[(1, false), (1, true)], Judgement::Works);
        check(&[(1, false), (1, false), (1, false), (1, false), (2, true)], Judgement::Works);
        check(&[(1, false), (2, false), (3, true)], Judgement::Struggles);
        check(&[(1, false), (2, false), (3, true), (4, true)], Judgement::Works);
        check(&[(1, false), (2, false), (3, false), (3, true), (3, true), (3, true)], Judgement::Works);
    }

    #[test]
    fn a_path_that_worked_lately_speaks_for_its_origin_until_it_fails() {
        let start = Instant::now();
        let mut window = Window::default();
        window.answered(1, start);
        for _ in 0..7 {
            window.failed(2, start);
        }
        assert_eq!(window.close(8, start), Some(Judgement::Works));
        for _ in 0..8 {
            window.failed(2, start);
        }
        assert_eq!(window.judge(start), Judgement::Works);
        assert_eq!(window.judge(start + GOOD_FOR), Judgement::Struggles);
        window.failed(1, start);
        assert_eq!(window.judge(start), Judgement::Struggles);
    }

    #[test]
    fn old_outcomes_are_forgotten() {
        let start = Instant::now();
        let mut window = Window::default();
        for _ in 0..7 {
            window.failed(1, start);
        }
        window.failed(1, start + AGE_MAX + Duration::from_millis(1));
        assert_eq!(window.close(8, start), None);
    }
}
