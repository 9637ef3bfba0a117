//! A queue of events in simulated time.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::Duration;

/// Events in the order of their times. Events with the same time keep the order in which they were added.
pub(crate) struct EventQueue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    added: u64,
}

struct Entry<E> {
    at: Duration,
    number: u64,
    event: E,
}

impl<E> EventQueue<E> {
    pub(crate) fn new() -> Self {
        Self { heap: BinaryHeap::new(), added: 0 }
    }

    pub(crate) fn add(&mut self, at: Duration, event: E) {
        self.added += 1;
        self.heap.push(Reverse(Entry { at, number: self.added, event }));
    }

    pub(crate) fn next(&mut self) -> Option<(Duration, E)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }
}

impl<E> Entry<E> {
    fn rank(&self) -> (Duration, u64) {
        (self.at, self.number)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_ordered_by_time_and_then_by_insertion() {
        let ms = Duration::from_millis;
        let mut events = EventQueue::new();
        for (at, event) in [(7, "last"), (3, "first"), (5, "second"), (5, "third")] {
            events.add(ms(at), event);
        }
        let mut order = Vec::new();
        while let Some((_, event)) = events.next() {
            order.push(event);
        }
        assert_eq!(order, ["first", "second", "third", "last"]);
    }
}
