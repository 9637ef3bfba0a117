//! Stops calls to an object store that keeps failing. Readers get an error at once, and now and then one of them tries again.

use std::time::Duration;
use tokio::time::Instant;

/// The number of failures in a row after which the breaker blocks.
pub const FAILURES_MAX: u32 = 3;
/// How long the breaker blocks before one call may try again.
pub const COOL_DOWN: Duration = Duration::from_secs(2);

/// The state of a circuit breaker. It does not read a clock.
#[derive(Debug, Default)]
pub struct Breaker {
    failures: u32,
    /// The end of the block. The first call after it is a probe, and starts another block.
    blocked_until: Option<Instant>,
}

impl Breaker {
    /// Admits a request, or returns how long to wait.
    pub fn admit(&mut self, now: Instant) -> Result<(), Duration> {
        match self.blocked_until {
            Some(until) if now < until => Err(until - now),
            Some(_) => {
                self.blocked_until = Some(now + COOL_DOWN);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Records that an admitted request succeeded.
    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// Records that an admitted request failed.
    pub fn failed(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        if self.failures >= FAILURES_MAX {
            self.blocked_until = Some(now + COOL_DOWN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_blocks_after_failures_in_a_row_and_then_admits_one_probe() {
        let (mut breaker, start) = (Breaker::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        for _ in 1..FAILURES_MAX {
            breaker.failed(at(0));
        }
        assert_eq!(breaker.admit(at(0)), Ok(()), "too few failures");
        breaker.succeeded();
        for _ in 0..FAILURES_MAX {
            assert_eq!(breaker.admit(at(0)), Ok(()), "a success starts the count again");
            breaker.failed(at(0));
        }
        assert_eq!(breaker.admit(at(500)), Err(Duration::from_millis(1_500)));
        assert_eq!(breaker.admit(at(2_000)), Ok(()), "the probe");
        assert_eq!(breaker.admit(at(2_001)), Err(Duration::from_millis(1_999)), "one probe at a time");
        breaker.failed(at(2_500));
        assert_eq!(breaker.admit(at(4_400)), Err(Duration::from_millis(100)));
        assert_eq!(breaker.admit(at(4_500)), Ok(()), "another probe, which never reports its result");
        assert_eq!(breaker.admit(at(6_500)), Ok(()), "a probe in its place");
        breaker.succeeded();
        assert_eq!(breaker.admit(at(6_501)), Ok(()));
    }
}
