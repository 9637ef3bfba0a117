//! A clock that moves only when it is told to.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use redrive_core::time::ceil_ms;
use redrive_core::{Clock, Timestamp};

/// Where a [`ManualClock`] starts: the first instant of 2026.
const START: Timestamp = Timestamp::from_ms(1_767_225_600_000);

/// A clock that moves only when it is told to. Clones share their time.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    /// A clock that stands at the first instant of 2026.
    pub fn new() -> Self {
        Self(Arc::new(AtomicI64::new(START.as_ms())))
    }

    /// What it says.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_ms(self.0.load(Ordering::SeqCst))
    }

    /// Moves on by `span`, rounded up to whole milliseconds.
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
