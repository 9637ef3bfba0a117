//! Leaves an object store alone that keeps failing: readers hear so at once, and one of them looks again now and then.

use std::time::Duration;
use tokio::time::Instant;

/// Failures in a row after which it opens.
pub const FAILURES_MAX: u32 = 3;
/// How long it stays open before someone looks again.
pub const COOL_DOWN: Duration = Duration::from_secs(2);

/// The state of one way to one object store. It reads no clock.
#[derive(Debug, Default)]
pub struct Breaker {
    failures: u32,
    /// Until when nobody passes; the first after that is the probe, and moves it on.
    closed_again_at: Option<Instant>,
}

impl Breaker {
    /// Lets a request pass, or says how long to stay away.
    pub fn admit(&mut self, now: Instant) -> Result<(), Duration> {
        match self.closed_again_at {
            Some(until) if now < until => Err(until - now),
            Some(_) => {
                self.closed_again_at = Some(now + COOL_DOWN);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// A request that had passed was answered.
    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// A request that had passed was not.
    pub fn failed(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        if self.failures >= FAILURES_MAX {
            self.closed_again_at = Some(now + COOL_DOWN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_failures_in_a_row_and_lets_one_look_again() {
        let (mut breaker, start) = (Breaker::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        for _ in 1..FAILURES_MAX {
            breaker.failed(at(0));
        }
        assert_eq!(breaker.admit(at(0)), Ok(()), "not yet");
        breaker.succeeded();
        for _ in 0..FAILURES_MAX {
            assert_eq!(breaker.admit(at(0)), Ok(()), "a success starts the count again");
            breaker.failed(at(0));
        }
        assert_eq!(breaker.admit(at(500)), Err(Duration::from_millis(1_500)));
        assert_eq!(breaker.admit(at(2_000)), Ok(()), "the probe");
        assert_eq!(breaker.admit(at(2_001)), Err(Duration::from_millis(1_999)), "one at a time");
        breaker.failed(at(2_500));
        assert_eq!(breaker.admit(at(4_400)), Err(Duration::from_millis(100)));
        assert_eq!(breaker.admit(at(4_500)), Ok(()), "another probe, which never comes back");
        assert_eq!(breaker.admit(at(6_500)), Ok(()), "and one in its place");
        breaker.succeeded();
        assert_eq!(breaker.admit(at(6_501)), Ok(()));
    }
}
