//! Full looks: what a remembered place makes us miss is found by looking from the very beginning, once in a while.

use std::time::{Duration, Instant};

/// A full look that takes long is made so much less often: they cost a twentieth of the time at most.
const SHARE: u32 = 20;

/// When the next full look is due.
#[derive(Debug)]
pub(crate) struct FullLook {
    every: Duration,
    next: Option<Instant>,
}

impl FullLook {
    /// One is due now, and then after `every`, or later while they are dear.
    pub(crate) fn every(every: Duration) -> Self {
        Self { every, next: None }
    }

    /// Whether one is due. Who hears yes makes it; others go on meanwhile.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let due = self.next.is_none_or(|next| next <= now);
        if due {
            self.next = Some(now + self.every);
        }
        due
    }

    /// One was made and took so long.
    pub(crate) fn made(&mut self, now: Instant, took: Duration) {
        self.next = Some(now + (took * SHARE).max(self.every));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_looks_come_regularly_and_less_often_while_they_are_dear() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut look = FullLook::every(second);
        assert!(look.is_due(start) && !look.is_due(start), "one at a time");
        look.made(start, Duration::from_millis(1));
        assert!(!look.is_due(start + second / 2) && look.is_due(start + second));
        look.made(start + second, second);
        assert!(!look.is_due(start + 20 * second) && look.is_due(start + 21 * second));
    }
}
