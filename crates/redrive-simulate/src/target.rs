//! A target that is down for a while and bears only so many calls afterwards.

use std::time::Duration;

use redrive_core::{Failure, Fault, Outcome};

/// How a target answers: nothing while it is down, then as many calls as it bears.
#[derive(Debug, Clone)]
pub struct Target {
    down_until: Duration,
    per_second: f64,
    burst: f64,
    room: f64,
    filled_at: Duration,
}

/// What part of a second's calls a target takes at once.
const BURST: f64 = 0.1;

impl Target {
    /// Down from the beginning until `down_until`; then it bears `per_second` calls, a tenth of them at once.
    pub fn new(down_until: Duration, per_second: u32) -> Self {
        let per_second = f64::from(per_second.max(1));
        let burst = (per_second * BURST).max(1.0);
        Self { down_until, per_second, burst, room: burst, filled_at: down_until }
    }

    /// Takes one call at `now`, which never goes back.
    pub fn call(&mut self, now: Duration) -> Outcome {
        if now < self.down_until {
            return Outcome::Fail(Failure::new(Fault::Connection, "nobody listens"));
        }
        let passed = now.saturating_sub(self.filled_at).as_secs_f64();
        self.room = (self.room + passed * self.per_second).min(self.burst);
        self.filled_at = now;
        if self.room < 1.0 {
            return Outcome::Fail(Failure::new(Fault::Status(503), "too many calls"));
        }
        self.room -= 1.0;
        Outcome::Done(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_down_and_then_bears_what_it_is_told() {
        let ms = Duration::from_millis;
        let mut target = Target::new(ms(500), 100);
        let done = |target: &mut Target, from: u64, to: u64| {
            (from..to).filter(|at| matches!(target.call(ms(*at)), Outcome::Done(_))).count()
        };
        assert_eq!(done(&mut target, 0, 500), 0);
        // A thousand calls in the first second: ten at once and then one in each ten.
        assert!((109..=110).contains(&done(&mut target, 500, 1_500)));
    }
}
