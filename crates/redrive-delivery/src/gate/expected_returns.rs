//! Estimates how many held tasks will come back, and when. It is an estimate because a gate does not know the tasks.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::AttemptKind;

/// The width of a bucket of expected returns.
const BUCKET: Duration = Duration::from_millis(500);
/// The most buckets. Later returns count in the last one.
const BUCKETS_MAX: usize = 256;
/// How late a held task may return before it is no longer expected.
const GRACE: Duration = Duration::from_secs(1);

/// The expected returns of held tasks, counted in buckets of time.
#[derive(Debug, Default)]
pub(super) struct ExpectedReturns {
    /// The start of the first bucket.
    start: Option<Instant>,
    buckets: VecDeque<ReturnCounts>,
    sum: ReturnCounts,
}

#[derive(Debug, Default, Clone, Copy)]
struct ReturnCounts {
    firsts: u32,
    retries: u32,
}

impl ReturnCounts {
    fn of(&mut self, kind: AttemptKind) -> &mut u32 {
        match kind {
            AttemptKind::First => &mut self.firsts,
            AttemptKind::Retry => &mut self.retries,
        }
    }
}

impl ExpectedReturns {
    /// Expects a task to return after `wait`.
    pub(super) fn add(&mut self, kind: AttemptKind, wait: Duration, now: Instant) {
        self.drop_late(now);
        let start = *self.start.get_or_insert(now);
        let due = (now + wait).saturating_duration_since(start).as_millis() / BUCKET.as_millis();
        let bucket = usize::try_from(due).unwrap_or(BUCKETS_MAX).min(BUCKETS_MAX - 1);
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, ReturnCounts::default());
        }
        *self.buckets[bucket].of(kind) += 1;
        *self.sum.of(kind) += 1;
    }

    /// Records the arrival of a task. If a return was expected by now, the arrival counts as that return.
    pub(super) fn remove_one(&mut self, kind: AttemptKind, now: Instant) {
        self.drop_late(now);
        let Some(start) = self.start else { return };
        let due = (now.saturating_duration_since(start).as_millis() / BUCKET.as_millis()) as usize;
        let mut due_counts = self.buckets.iter_mut().take(due + 1).map(|bucket| bucket.of(kind));
        if let Some(count) = due_counts.find(|count| **count > 0) {
            *count -= 1;
            *self.sum.of(kind) -= 1;
        }
    }

    /// Whether first attempts are expected within the next second.
    pub(super) fn has_first_attempts_soon(&self, now: Instant) -> bool {
        let Some(start) = self.start else { return false };
        let soon = (now + GRACE).saturating_duration_since(start).as_millis() / BUCKET.as_millis();
        self.sum.firsts > 0 && self.buckets.iter().take(soon as usize + 1).any(|bucket| bucket.firsts > 0)
    }

    /// The number of expected returns.
    pub(super) fn count(&self) -> u64 {
        u64::from(self.sum.firsts) + u64::from(self.sum.retries)
    }

    fn drop_late(&mut self, now: Instant) {
        while let (Some(start), Some(bucket)) = (self.start, self.buckets.front()) {
            if start + BUCKET + GRACE > now {
                return;
            }
            self.sum.firsts -= bucket.firsts;
            self.sum.retries -= bucket.retries;
            self.buckets.pop_front();
            self.start = Some(start + BUCKET);
        }
        if self.buckets.is_empty() {
            self.start = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_return_counts_once_and_expires() {
        let start = Instant::now();
        let ms = |ms| start + Duration::from_millis(ms);
        let mut returns = ExpectedReturns::default();
        returns.add(AttemptKind::First, Duration::from_millis(100), start);
        returns.add(AttemptKind::Retry, Duration::from_millis(3_000), start);
        returns.add(AttemptKind::Retry, Duration::from_secs(3_600), start);
        assert_eq!((returns.count(), returns.has_first_attempts_soon(start)), (3, true));
        returns.remove_one(AttemptKind::Retry, ms(100));
        assert_eq!(returns.count(), 3, "no retry was due");
        returns.remove_one(AttemptKind::First, ms(100));
        assert_eq!((returns.count(), returns.has_first_attempts_soon(ms(100))), (2, false));
        returns.remove_one(AttemptKind::First, ms(5_000));
        assert_eq!(returns.count(), 1, "the return that was due at 3 s has expired");
        returns.remove_one(AttemptKind::First, ms(200_000));
        assert_eq!(returns.count(), 0);
    }

    #[test]
    fn first_attempts_due_later_are_not_soon() {
        let start = Instant::now();
        let mut returns = ExpectedReturns::default();
        returns.add(AttemptKind::First, Duration::from_secs(10), start);
        assert!(!returns.has_first_attempts_soon(start));
        assert!(returns.has_first_attempts_soon(start + Duration::from_secs(9)));
    }
}
