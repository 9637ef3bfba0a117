//! How a handler stops in the middle: it asks for a pause and never goes on; its attempt is settled as a wait.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive_core::{Await, Outcome, Wait};
use tokio::sync::Notify;

/// How often a handler is looked at that waits for several things at once, of which a store watches one.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The pauses that a handler has asked for, and the steps that still run beside them.
#[derive(Default)]
pub(crate) struct Pauses {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    wanted: Option<Pause>,
    steps: usize,
}

/// Until something has come, or for a while, or whichever is first.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pause {
    pub(crate) until: Option<Await>,
    pub(crate) at_most: Option<Duration>,
}

impl Pauses {
    /// Asks for a pause. It never returns: the handler is dropped, and starts again afterwards.
    pub(crate) async fn pause<T>(&self, pause: Pause) -> T {
        self.want(pause);
        std::future::pending().await
    }

    fn want(&self, pause: Pause) {
        let mut state = self.lock();
        state.wanted = Some(match state.wanted.take() {
            Some(other) => other.or(pause),
            None => pause,
        });
        self.changed.notify_one();
    }

    /// Counts a step that runs, until the guard is dropped: a pause beside it waits for its end.
    pub(crate) fn step(&self) -> RunningStep<'_> {
        self.lock().steps += 1;
        RunningStep(self)
    }

    /// Returns when the handler has asked for a pause and no step runs any more.
    pub(crate) async fn wanted(&self) -> Outcome {
        loop {
            if let Some(outcome) = self.outcome() {
                return outcome;
            }
            self.changed.notified().await;
        }
    }

    fn outcome(&self) -> Option<Outcome> {
        let state = self.lock();
        state.wanted.clone().filter(|_| state.steps == 0).map(Pause::outcome)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pause {
    fn outcome(self) -> Outcome {
        match self {
            Self { until: Some(until), at_most } => Outcome::Wait(Wait { until, at_most }),
            Self { until: None, at_most } => Outcome::Snooze(at_most.unwrap_or_default()),
        }
    }

    /// One pause for two that a handler asks for at once: whichever ends first.
    fn or(self, other: Self) -> Self {
        let both = self.until.is_some() && other.until.is_some() && self.until != other.until;
        let look = both.then_some(LOOK_EVERY);
        Self {
            at_most: [self.at_most, other.at_most, look].into_iter().flatten().min(),
            until: self.until.or(other.until),
        }
    }
}

/// A step that runs.
pub(crate) struct RunningStep<'a>(&'a Pauses);

impl Drop for RunningStep<'_> {
    fn drop(&mut self) {
        self.0.lock().steps -= 1;
        self.0.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use redrive_core::SignalName;

    use super::*;

    #[test]
    fn of_two_pauses_the_shorter_one_counts() {
        let signal = |name| Some(Await::Signal(SignalName::new(name).unwrap()));
        let timer = |s| Pause { until: None, at_most: Some(Duration::from_secs(s)) };
        let wait = |name, at_most: Option<u64>| Pause {
            until: signal(name),
            at_most: at_most.map(Duration::from_secs),
        };
        for (one, other, both) in [
            (timer(3), timer(2), timer(2)),
            (timer(3), wait("a", None), wait("a", Some(3))),
            (wait("a", Some(9)), timer(3), wait("a", Some(3))),
            (wait("a", None), wait("a", None), wait("a", None)),
            (wait("a", None), wait("b", Some(60)), wait("a", Some(5))),
        ] {
            assert_eq!(one.or(other), both);
        }
    }
}
