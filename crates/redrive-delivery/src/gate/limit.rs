//! How many calls may be under way: it grows while it is used and calls succeed, and falls when they do not.

use tokio::time::Instant;

use super::{LIMIT_START, RAMP_PERIOD};

/// The limit of one gate.
#[derive(Debug)]
pub(super) struct Limit {
    calls: u32,
    max: u32,
    /// Up to here the limit doubles; beyond, it grows by one.
    goal: u32,
    /// What the origin bore when it last worked: the goal after it was closed.
    proven: u32,
    /// Since when, and from where, the limit at most doubles; none while the origin never struggled.
    pace: Option<(Instant, u32)>,
    /// Successes since the limit last changed, and whether it was reached.
    successes: u32,
    pressed: bool,
}

impl Limit {
    /// The limit of an origin that nobody has called yet.
    pub(super) fn new(max: u32) -> Self {
        let max = max.max(1);
        let calls = LIMIT_START.min(max);
        Self { calls, max, goal: max, proven: calls, pace: None, successes: 0, pressed: false }
    }

    /// How many calls it allows.
    pub(super) fn calls(&self) -> u32 {
        self.calls
    }

    /// Someone could not go because of it, or was the last who could.
    pub(super) fn press(&mut self) {
        self.pressed = true;
    }

    /// Takes note that the origin works at this limit.
    pub(super) fn prove(&mut self) {
        self.proven = self.calls.max(self.goal.min(self.proven));
    }

    /// Grows after as many successes as it allows calls, if it was reached at all.
    pub(super) fn succeed(&mut self, now: Instant) {
        self.successes = self.successes.saturating_add(1);
        if self.calls >= self.max || !self.pressed || self.successes < self.calls {
            return;
        }
        let wanted = if self.calls < self.goal { (2 * self.calls).min(self.goal) } else { self.calls + 1 };
        let calls = wanted.min(self.max).min(self.ceiling(now));
        if calls > self.calls {
            self.calls = calls;
            (self.successes, self.pressed) = (0, false);
        }
    }

    /// Falls to a half; says whether there was room to fall.
    pub(super) fn halve(&mut self, now: Instant) -> bool {
        let falls = self.calls > 1;
        if falls {
            self.goal = self.calls / 2;
            self.fall_to(self.calls / 2, now);
        }
        falls
    }

    /// Begins again at one, on the way to what the origin bore before.
    pub(super) fn begin_again(&mut self, now: Instant) {
        self.goal = self.proven;
        self.fall_to(1, now);
    }

    /// From a lower limit it at most doubles in each period.
    fn fall_to(&mut self, calls: u32, now: Instant) {
        self.calls = calls;
        self.pace = Some((now, calls));
        (self.successes, self.pressed) = (0, false);
    }

    fn ceiling(&mut self, now: Instant) -> u32 {
        match &mut self.pace {
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
