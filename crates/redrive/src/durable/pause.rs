//! How a handler stops in the middle: it asks for a pause and never goes on; its attempt is settled as a wait.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive_core::{Await, Invalid, Outcome, Timestamp, Wait};
use tokio::sync::Notify;

/// The pauses that a handler asks for, and what is still busy beside them.
#[derive(Default)]
pub(crate) struct Pauses {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    /// What the handler waits for now, by number. A wait that is dropped is taken out.
    wanted: BTreeMap<u64, Pause>,
    next: u64,
    /// Steps that run, and waits that have not found out yet whether they must pause.
    busy: usize,
    /// A problem to report with the pause.
    problem: Option<String>,
}

/// Until something has come, or until an instant, or whichever is first.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Pause {
    pub(crate) until: Option<Await>,
    pub(crate) deadline: Option<Timestamp>,
}

impl Pauses {
    /// Asks for a pause, after which `busy` is over. It never returns: the handler is dropped and starts again afterwards, or
    /// it drops this wait because another one has completed.
    pub(crate) async fn pause<T>(&self, pause: Pause, busy: BusyGuard<'_>) -> T {
        let _wanted = self.want(pause);
        drop(busy);
        std::future::pending().await
    }

    fn want(&self, pause: Pause) -> PauseRequest<'_> {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.wanted.insert(number, pause);
        PauseRequest { pauses: self, number }
    }

    /// Counts something that is busy, until the guard is dropped: no pause is taken meanwhile.
    pub(crate) fn busy(&self) -> BusyGuard<'_> {
        self.lock().busy += 1;
        BusyGuard(self)
    }

    /// Adds a problem that a person should read once the job waits.
    pub(crate) fn report(&self, problem: String) {
        self.lock().problem = Some(problem);
    }

    /// Returns when the handler asks for a pause and nothing is busy any more: one wait for everything that it waits for.
    /// `now` is asked for the store's time.
    pub(crate) async fn wanted(&self, now: impl Fn() -> Timestamp) -> Outcome {
        loop {
            if let Some(outcome) = self.outcome(now()) {
                return outcome;
            }
            self.changed.notified().await;
        }
    }

    fn outcome(&self, now: Timestamp) -> Option<Outcome> {
        let state = self.lock();
        if state.busy > 0 || state.wanted.is_empty() {
            return None;
        }
        let wait = combine(state.wanted.values(), now);
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

/// One wait for several: it ends with whichever ends first, and the handler finds out which.
fn combine<'a>(
    pauses: impl Iterator<Item = &'a Pause> + Clone,
    now: Timestamp,
) -> Result<(Option<Await>, Option<Duration>), Invalid> {
    let deadline = pauses.clone().filter_map(|pause| pause.deadline).min();
    let parts: Vec<Await> = pauses.filter_map(|pause| pause.until.clone()).collect();
    let until = if parts.is_empty() { None } else { Some(Await::any(parts)?) };
    Ok((until, deadline.map(|deadline| deadline.since(now))))
}

/// A pause that is asked for.
struct PauseRequest<'a> {
    pauses: &'a Pauses,
    number: u64,
}

impl Drop for PauseRequest<'_> {
    fn drop(&mut self) {
        self.pauses.lock().wanted.remove(&self.number);
    }
}

/// Something that is busy.
pub(crate) struct BusyGuard<'a>(&'a Pauses);

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

    fn signal(name: &str) -> Await {
        Await::Signal(SignalName::new(name).unwrap())
    }

    fn at(s: u64) -> Timestamp {
        Timestamp::default().after(Duration::from_secs(s))
    }

    #[test]
    fn several_pauses_are_one_wait_for_whichever_ends_first() {
        let timer = |s| Pause { until: None, deadline: Some(at(s)) };
        let wait =
            |name, deadline: Option<u64>| Pause { until: Some(signal(name)), deadline: deadline.map(at) };
        let both = Await::any([signal("a"), signal("b")]).unwrap();
        for (pauses, until, at_most) in [
            (vec![timer(3), timer(2)], None, Some(1)),
            (vec![timer(3), wait("a", None)], Some(signal("a")), Some(2)),
            (vec![wait("a", Some(9)), timer(3)], Some(signal("a")), Some(2)),
            (vec![wait("a", None), wait("a", None)], Some(signal("a")), None),
            (vec![wait("a", None), wait("b", Some(60))], Some(both), Some(59)),
        ] {
            let combined = combine(pauses.iter(), at(1)).unwrap();
            assert_eq!(combined, (until, at_most.map(Duration::from_secs)), "{pauses:?}");
        }
    }

    #[test]
    fn a_wait_that_was_dropped_is_not_paused_for() {
        let pauses = Pauses::default();
        let first = pauses.want(Pause { until: Some(signal("a")), deadline: None });
        let busy = pauses.busy();
        assert_eq!(pauses.outcome(at(0)), None, "something is busy");
        drop(busy);
        let second = pauses.want(Pause { until: Some(signal("b")), deadline: None });
        drop(first);
        assert_eq!(pauses.outcome(at(0)), Some(Outcome::Wait(Wait::until(signal("b")))));
        drop(second);
        assert_eq!(pauses.outcome(at(0)), None);
    }
}
