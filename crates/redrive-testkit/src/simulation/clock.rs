//! The clock of a simulated store: the paused clock of the runtime, and jumps.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use redrive_core::{Clock, Timestamp};
use tokio::time::Instant;

use crate::clock::START;

/// A clock that follows the runtime's and can jump.
#[derive(Debug, Clone)]
pub struct SimulatedClock {
    began: Instant,
    jumped_ms: Arc<AtomicI64>,
}

impl SimulatedClock {
    /// Starts at the time at which every manual clock starts.
    pub fn start() -> Self {
        Self { began: Instant::now(), jumped_ms: Arc::default() }
    }

    /// Moves the clock forward or back.
    pub fn jump(&self, ms: i64) {
        self.jumped_ms.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for SimulatedClock {
    fn now(&self) -> Timestamp {
        let since = START.after(self.began.elapsed());
        Timestamp::from_ms(since.as_ms() + self.jumped_ms.load(Ordering::SeqCst))
    }
}
