//! How many parked tasks are expected back, and when: an estimate, since a gate does not know who comes.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::Turn;

/// The width of a slot of expected returns.
const SLOT: Duration = Duration::from_millis(500);
/// Slots kept; later returns are counted in the last.
const SLOTS_MAX: usize = 256;
/// How late a parked task may come before it is no longer expected.
const GRACE: Duration = Duration::from_secs(1);

/// Expected returns by time.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// When the first slot begins.
    begins: Option<Instant>,
    slots: VecDeque<Expected>,
    sum: Expected,
}

#[derive(Debug, Default, Clone, Copy)]
struct Expected {
    firsts: u32,
    retries: u32,
}

impl Expected {
    fn of(&mut self, turn: Turn) -> &mut u32 {
        match turn {
            Turn::First => &mut self.firsts,
            Turn::Retry => &mut self.retries,
        }
    }
}

impl Waiting {
    /// Expects a task back.
    pub(super) fn park(&mut self, turn: Turn, wait: Duration, now: Instant) {
        self.forget_late(now);
        let begins = *self.begins.get_or_insert(now);
        let due = (now + wait).saturating_duration_since(begins).as_millis() / SLOT.as_millis();
        let slot = usize::try_from(due).unwrap_or(SLOTS_MAX).min(SLOTS_MAX - 1);
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, Expected::default());
        }
        *self.slots[slot].of(turn) += 1;
        *self.sum.of(turn) += 1;
    }

    /// Someone came: if one was due, it is taken to be that one.
    pub(super) fn arrive(&mut self, turn: Turn, now: Instant) {
        self.forget_late(now);
        let Some(begins) = self.begins else { return };
        let due = (now.saturating_duration_since(begins).as_millis() / SLOT.as_millis()) as usize;
        let mut dues = self.slots.iter_mut().take(due + 1).map(|slot| slot.of(turn));
        if let Some(count) = dues.find(|count| **count > 0) {
            *count -= 1;
            *self.sum.of(turn) -= 1;
        }
    }

    /// Whether first attempts are due within the next second.
    pub(super) fn firsts_soon(&self, now: Instant) -> bool {
        let Some(begins) = self.begins else { return false };
        let soon = (now + GRACE).saturating_duration_since(begins).as_millis() / SLOT.as_millis();
        self.sum.firsts > 0 && self.slots.iter().take(soon as usize + 1).any(|slot| slot.firsts > 0)
    }

    /// All that are expected.
    pub(super) fn count(&self) -> u64 {
        u64::from(self.sum.firsts) + u64::from(self.sum.retries)
    }

    fn forget_late(&mut self, now: Instant) {
        while let (Some(begins), Some(slot)) = (self.begins, self.slots.front()) {
            if begins + SLOT + GRACE > now {
                return;
            }
            self.sum.firsts -= slot.firsts;
            self.sum.retries -= slot.retries;
            self.slots.pop_front();
            self.begins = Some(begins + SLOT);
        }
        if self.slots.is_empty() {
            self.begins = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expects_each_once_and_not_for_ever() {
        let start = Instant::now();
        let ms = |ms| start + Duration::from_millis(ms);
        let mut waiting = Waiting::default();
        waiting.park(Turn::First, Duration::from_millis(100), start);
        waiting.park(Turn::Retry, Duration::from_millis(3_000), start);
        waiting.park(Turn::Retry, Duration::from_secs(3_600), start);
        assert_eq!((waiting.count(), waiting.firsts_soon(start)), (3, true));
        waiting.arrive(Turn::Retry, ms(100));
        assert_eq!(waiting.count(), 3, "no retry was due");
        waiting.arrive(Turn::First, ms(100));
        assert_eq!((waiting.count(), waiting.firsts_soon(ms(100))), (2, false));
        waiting.arrive(Turn::First, ms(5_000));
        assert_eq!(waiting.count(), 1, "the one due at 3 s is late");
        waiting.arrive(Turn::First, ms(200_000));
        assert_eq!(waiting.count(), 0);
    }

    #[test]
    fn first_attempts_due_later_are_not_soon() {
        let start = Instant::now();
        let mut waiting = Waiting::default();
        waiting.park(Turn::First, Duration::from_secs(10), start);
        assert!(!waiting.firsts_soon(start));
        assert!(waiting.firsts_soon(start + Duration::from_secs(9)));
    }
}
