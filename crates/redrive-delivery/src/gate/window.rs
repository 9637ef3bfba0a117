//! A window of results by path. It shows whether the origin struggles, or only one of its paths.

use std::time::Duration;

use tokio::time::Instant;

/// The fewest results in a window.
const OUTCOMES_MIN: u32 = 8;
/// The most results in a window.
const OUTCOMES_MAX: u32 = 64;
/// Older results are dropped.
const AGE_MAX: Duration = Duration::from_secs(120);
/// How long a path that worked counts in favour of its origin without being called again.
const GOOD_PATH_TTL: Duration = Duration::from_secs(10);
/// How many of the last working paths are remembered. Fewer than [`OUTCOMES_MIN`], so that one window is enough to judge an origin
/// whose paths are all different.
const GOOD_PATHS: usize = 4;

/// The judgement of a full window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judgement {
    /// Most calls failed, on most paths.
    Struggles,
    /// The origin works.
    Works,
}

/// The results since the last judgement, and the last working paths.
#[derive(Debug, Default)]
pub(super) struct OutcomeWindow {
    paths: Vec<PathCounts>,
    answered: u32,
    failed: u32,
    started: Option<Instant>,
    /// Path and time of the last answers, one entry per path.
    good: [Option<(u64, Instant)>; GOOD_PATHS],
    last: (u32, u32),
}

#[derive(Debug)]
struct PathCounts {
    path: u64,
    answered: u32,
    failed: u32,
}

impl OutcomeWindow {
    /// Records an answer.
    pub(super) fn add_answer(&mut self, path: u64, now: Instant) {
        self.remember_good(path, now);
        self.tally(path, now).answered += 1;
        self.answered += 1;
    }

    /// Records a failure.
    pub(super) fn add_failure(&mut self, path: u64, now: Instant) {
        self.tally(path, now).failed += 1;
        self.failed += 1;
    }

    /// Judges the window once it has `limit` results, within the bounds, and starts a new one.
    pub(super) fn judge_if_full(&mut self, limit: u32, now: Instant) -> Option<Judgement> {
        if self.len() < limit.clamp(OUTCOMES_MIN, OUTCOMES_MAX) {
            return None;
        }
        let judgement = self.judge(now);
        self.start_new();
        Some(judgement)
    }

    /// The origin struggles if most calls failed, and if most paths failed more often than they answered. A path that worked recently,
    /// and has not been called since, counts as working.
    pub(super) fn judge(&self, now: Instant) -> Judgement {
        let bad = self.paths.iter().filter(|tally| tally.failed > tally.answered).count();
        let seen = |path: u64| self.paths.iter().any(|tally| tally.path == path);
        let fresh = |at: Instant| now.saturating_duration_since(at) < GOOD_PATH_TTL;
        let absent = self.good.iter().flatten().filter(|(path, at)| !seen(*path) && fresh(*at)).count();
        if self.failed > self.answered && 2 * bad > self.paths.len() + absent {
            Judgement::Struggles
        } else {
            Judgement::Works
        }
    }

    /// The number of results since the last judgement.
    pub(super) fn len(&self) -> u32 {
        self.answered + self.failed
    }

    /// Answers and failures in this window and the previous one.
    pub(super) fn counts(&self) -> (u32, u32) {
        (self.answered + self.last.0, self.failed + self.last.1)
    }

    fn start_new(&mut self) {
        self.last = (self.answered, self.failed);
        self.paths.clear();
        (self.answered, self.failed, self.started) = (0, 0, None);
    }

    fn remember_good(&mut self, path: u64, now: Instant) {
        let same = self.good.iter().position(|good| good.is_some_and(|(known, _)| known == path));
        let oldest = || (0..GOOD_PATHS).min_by_key(|at| self.good[*at].map(|(_, seen)| seen)).unwrap_or(0);
        self.good[same.unwrap_or_else(oldest)] = Some((path, now));
    }

    fn tally(&mut self, path: u64, now: Instant) -> &mut PathCounts {
        let started = *self.started.get_or_insert(now);
        if now.saturating_duration_since(started) > AGE_MAX {
            self.start_new();
            self.started = Some(now);
        }
        let at = self.paths.iter().position(|tally| tally.path == path).unwrap_or_else(|| {
            self.paths.push(PathCounts { path, answered: 0, failed: 0 });
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
        let mut window = OutcomeWindow::default();
        for (path, answered) in outcomes {
            if *answered { window.add_answer(*path, now) } else { window.add_failure(*path, now) }
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
    fn a_path_that_worked_recently_counts_for_its_origin_until_it_fails() {
        let start = Instant::now();
        let mut window = OutcomeWindow::default();
        window.add_answer(1, start);
        for _ in 0..7 {
            window.add_failure(2, start);
        }
        assert_eq!(window.judge_if_full(8, start), Some(Judgement::Works));
        for _ in 0..8 {
            window.add_failure(2, start);
        }
        assert_eq!(window.judge(start), Judgement::Works);
        assert_eq!(window.judge(start + GOOD_PATH_TTL), Judgement::Struggles);
        window.add_failure(1, start);
        assert_eq!(window.judge(start), Judgement::Struggles);
    }

    #[test]
    fn old_results_are_dropped() {
        let start = Instant::now();
        let mut window = OutcomeWindow::default();
        for _ in 0..7 {
            window.add_failure(1, start);
        }
        window.add_failure(1, start + AGE_MAX + Duration::from_millis(1));
        assert_eq!(window.judge_if_full(8, start), None);
    }
}
