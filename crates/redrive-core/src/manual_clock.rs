//! A clock for tests, which moves only on request.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::time::{Clock, Timestamp, ceil_ms};

/// The time at which every [`ManualClock`] starts: the beginning of 2026.
pub const START: Timestamp = Timestamp::from_ms(1_767_225_600_000);

/// A clock that moves only on request. Clones share their time.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    /// A clock that stands at [`START`].
    pub fn new() -> Self {
        Self(Arc::new(AtomicI64::new(START.as_ms())))
    }

    /// The current time.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_ms(self.0.load(Ordering::SeqCst))
    }

    /// Moves forward by `span`, rounded up to whole milliseconds.
    pub fn advance(&self, span: Duration) {
        self.0.fetch_add(ceil_ms(span), Ordering::SeqCst);
    }

    /// Moves to `instant`, which may be earlier.
    pub fn set(&self, instant: Timestamp) {
        self.0.store(instant.as_ms(), Ordering::SeqCst);
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Self::now(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_their_time_and_nothing_else_moves_it() {
        let clock = ManualClock::new();
        let other = clock.clone();
        other.advance(Duration::from_micros(1));
        assert_eq!(clock.now().as_ms(), START.as_ms() + 1);
        clock.set(START);
        assert_eq!(other.now(), START);
    }
}
