//! Suspends a handler that waits: the wait never returns, the worker drops the handler and settles its attempt as a wait.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive_core::{Invalid, Outcome, Timestamp, Wait, WaitCondition};
use tokio::sync::Notify;

/// The waits of one handler, and the number of its parts that are still running.
#[derive(Default)]
pub(crate) struct Suspensions {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    /// What the handler waits for, by number. A wait that is dropped is removed.
    waits: BTreeMap<u64, Suspension>,
    next: u64,
    /// The number of running steps, and of waits that do not know yet whether they must suspend the handler.
    busy: usize,
    /// A problem to report with the wait.
    problem: Option<String>,
}

/// What ends a wait: a condition, a deadline, or whichever of the two comes first.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Suspension {
    pub(crate) until: Option<WaitCondition>,
    pub(crate) deadline: Option<Timestamp>,
}

impl Suspensions {
    /// Suspends the handler and then drops `busy`. Never returns: either the worker drops the handler and runs it again later,
    /// or the handler drops this wait because another one has completed.
    pub(crate) async fn suspend<T>(&self, suspension: Suspension, busy: BusyGuard<'_>) -> T {
        let _wait = self.add(suspension);
        drop(busy);
        std::future::pending().await
    }

    fn add(&self, suspension: Suspension) -> SuspensionGuard<'_> {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.waits.insert(number, suspension);
        SuspensionGuard { suspensions: self, number }
    }

    /// Counts a running part of the handler until the guard is dropped. The handler is not suspended before that.
    pub(crate) fn busy(&self) -> BusyGuard<'_> {
        self.lock().busy += 1;
        BusyGuard(self)
    }

    /// Sets the problem that the job shows while it waits. It replaces an earlier one.
    pub(crate) fn report(&self, problem: String) {
        self.lock().problem = Some(problem);
    }

    /// Returns once the handler waits and none of its code runs. The outcome is one wait that covers everything it waits for.
    /// `now` returns the store's time.
    pub(crate) async fn outcome(&self, now: impl Fn() -> Timestamp) -> Outcome {
        loop {
            if let Some(outcome) = self.outcome_at(now()) {
                return outcome;
            }
            self.changed.notified().await;
        }
    }

    fn outcome_at(&self, now: Timestamp) -> Option<Outcome> {
        let state = self.lock();
        if state.busy > 0 || state.waits.is_empty() {
            return None;
        }
        let wait = combine(state.waits.values(), now);
        Some(match wait {
            Ok((Some(until), at_most)) => {
                Outcome::Wait(Wait { until, at_most, problem: state.problem.clone() })
            }
            Ok((None, at_most)) => Outcome::Snooze(at_most.unwrap_or_default()),
            Err(invalid) => Outcome::reject(invalid),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Combines several waits into one. It ends when the first of them ends; the handler then finds out which one that was.
fn combine<'a>(
    waits: impl Iterator<Item = &'a Suspension> + Clone,
    now: Timestamp,
) -> Result<(Option<WaitCondition>, Option<Duration>), Invalid> {
    let deadline = waits.clone().filter_map(|wait| wait.deadline).min();
    let parts: Vec<WaitCondition> = waits.filter_map(|wait| wait.until.clone()).collect();
    let until = if parts.is_empty() { None } else { Some(WaitCondition::any(parts)?) };
    Ok((until, deadline.map(|deadline| deadline.since(now))))
}

/// A wait of the handler, until it is dropped.
struct SuspensionGuard<'a> {
    suspensions: &'a Suspensions,
    number: u64,
}

impl Drop for SuspensionGuard<'_> {
    fn drop(&mut self) {
        self.suspensions.lock().waits.remove(&self.number);
    }
}

/// A running part of the handler, until it is dropped.
pub(crate) struct BusyGuard<'a>(&'a Suspensions);

impl Drop for BusyGuard<'_> {
    fn drop(&mut self) {
        self.0.lock().busy -= 1;
        self.0.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use redrive_core::SignalName;

    use super::*;

    fn signal(name: &str) -> WaitCondition {
        WaitCondition::Signal(SignalName::new(name).unwrap())
    }

    fn at(s: u64) -> Timestamp {
        Timestamp::default().after(Duration::from_secs(s))
    }

    #[test]
    fn several_waits_become_one_that_ends_with_the_first() {
        let timer = |s| Suspension { until: None, deadline: Some(at(s)) };
        let wait = |name, deadline: Option<u64>| Suspension {
            until: Some(signal(name)),
            deadline: deadline.map(at),
        };
        let both = WaitCondition::any([signal("a"), signal("b")]).unwrap();
        for (waits, until, at_most) in [
            (vec![timer(3), timer(2)], None, Some(1)),
            (vec![timer(3), wait("a", None)], Some(signal("a")), Some(2)),
            (vec![wait("a", Some(9)), timer(3)], Some(signal("a")), Some(2)),
            (vec![wait("a", None), wait("a", None)], Some(signal("a")), None),
            (vec![wait("a", None), wait("b", Some(60))], Some(both), Some(59)),
        ] {
            let combined = combine(waits.iter(), at(1)).unwrap();
            assert_eq!(combined, (until, at_most.map(Duration::from_secs)), "{waits:?}");
        }
    }

    #[test]
    fn a_dropped_wait_does_not_suspend_the_handler() {
        let suspensions = Suspensions::default();
        let first = suspensions.add(Suspension { until: Some(signal("a")), deadline: None });
        let busy = suspensions.busy();
        assert_eq!(suspensions.outcome_at(at(0)), None, "a part of the handler runs");
        drop(busy);
        let second = suspensions.add(Suspension { until: Some(signal("b")), deadline: None });
        drop(first);
        assert_eq!(suspensions.outcome_at(at(0)), Some(Outcome::Wait(Wait::until(signal("b")))));
        drop(second);
        assert_eq!(suspensions.outcome_at(at(0)), None);
    }
}
