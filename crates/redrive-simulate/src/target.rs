//! A target that is down for a while and has a limited capacity afterwards.

use std::time::Duration;

use redrive_core::{Failure, FailureKind, Outcome};

/// A simulated target: it does not answer while it is down, and refuses calls above its capacity afterwards (token bucket).
#[derive(Debug, Clone)]
pub struct Target {
    down_until: Duration,
    per_second: f64,
    burst: f64,
    tokens: f64,
    filled_at: Duration,
}

/// The share of the calls per second that the target accepts at once.
const BURST: f64 = 0.1;

impl Target {
    /// A target that is down until `down_until`. Afterwards it accepts `per_second` calls per second, a tenth
    /// of them at once.
    pub fn new(down_until: Duration, per_second: u32) -> Self {
        let per_second = f64::from(per_second.max(1));
        let burst = (per_second * BURST).max(1.0);
        Self { down_until, per_second, burst, tokens: burst, filled_at: down_until }
    }

    /// Answers a call at `now`. Times must not decrease.
    pub fn call(&mut self, now: Duration) -> Outcome {
        if now < self.down_until {
            return Outcome::Fail(Failure::new(FailureKind::Connection, "connection refused"));
        }
        let passed = now.saturating_sub(self.filled_at).as_secs_f64();
        self.tokens = (self.tokens + passed * self.per_second).min(self.burst);
        self.filled_at = now;
        if self.tokens < 1.0 {
            return Outcome::Fail(Failure::new(FailureKind::Status(503), "too many calls"));
        }
        self.tokens -= 1.0;
        Outcome::Done(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_down_and_then_accepts_its_capacity() {
        let ms = Duration::from_millis;
        let mut target = Target::new(ms(500), 100);
        let done = |target: &mut Target, from: u64, to: u64| {
            (from..to).filter(|at| matches!(target.call(ms(*at)), Outcome::Done(_))).count()
        };
        assert_eq!(done(&mut target, 0, 500), 0);
        // Of a thousand calls in the first second it accepts ten at once and then every tenth.
        assert!((109..=110).contains(&done(&mut target, 500, 1_500)));
    }
}
