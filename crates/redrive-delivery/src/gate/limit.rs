//! The limit of concurrent calls. It grows while calls succeed and the limit is reached, and is halved when they fail.

use tokio::time::Instant;

use super::{LIMIT_START, RAMP_PERIOD};

/// The limit of one gate.
#[derive(Debug)]
pub(super) struct Limit {
    calls: u32,
    max: u32,
    /// Below this the limit doubles; above, it grows by one.
    goal: u32,
    /// The limit at which the origin last worked; the goal after a restart.
    confirmed: u32,
    /// The start of the ramp period and the limit at that time; `None` if the origin has never struggled.
    ramp: Option<(Instant, u32)>,
    /// Successes since the last change of the limit, and whether it was reached since then.
    successes: u32,
    reached: bool,
}

impl Limit {
    /// The limit of an origin that has not been called yet.
    pub(super) fn new(max: u32) -> Self {
        let max = max.max(1);
        let calls = LIMIT_START.min(max);
        Self { calls, max, goal: max, confirmed: calls, ramp: None, successes: 0, reached: false }
    }

    /// The number of concurrent calls.
    pub(super) fn calls(&self) -> u32 {
        self.calls
    }

    /// Records that the limit was reached.
    pub(super) fn mark_reached(&mut self) {
        self.reached = true;
    }

    /// Records that the origin works at this limit.
    pub(super) fn confirm(&mut self) {
        self.confirmed = self.calls.max(self.goal.min(self.confirmed));
    }

    /// Records a success. The limit grows after as many successes as it allows calls, if it was reached.
    pub(super) fn grow_after_success(&mut self, now: Instant) {
        self.successes = self.successes.saturating_add(1);
        if self.calls >= self.max || !self.reached || self.successes < self.calls {
            return;
        }
        let wanted = if self.calls < self.goal { (2 * self.calls).min(self.goal) } else { self.calls + 1 };
        let calls = wanted.min(self.max).min(self.ceiling(now));
        if calls > self.calls {
            self.calls = calls;
            (self.successes, self.reached) = (0, false);
        }
    }

    /// Halves the limit. Returns false if it is one already.
    pub(super) fn halve(&mut self, now: Instant) -> bool {
        let falls = self.calls > 1;
        if falls {
            self.goal = self.calls / 2;
            self.lower_to(self.calls / 2, now);
        }
        falls
    }

    /// Restarts at one call. The goal is the limit at which the origin worked before.
    pub(super) fn restart(&mut self, now: Instant) {
        self.goal = self.confirmed;
        self.lower_to(1, now);
    }

    /// Sets a lower limit, which at most doubles in each ramp period.
    fn lower_to(&mut self, calls: u32, now: Instant) {
        self.calls = calls;
        self.ramp = Some((now, calls));
        (self.successes, self.reached) = (0, false);
    }

    fn ceiling(&mut self, now: Instant) -> u32 {
        match &mut self.ramp {
            None => self.max,
            Some((since, from)) => {
                if now.saturating_duration_since(*since) >= RAMP_PERIOD {
                    (*since, *from) = (now, self.calls);
                }
                from.saturating_mul(2)
            }
        }
    }
}
