//! What a program hears of its worker's jobs while they happen.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::panics::catch;
use redrive_core::store::{Settled, Settlement};
use redrive_core::{Job, Reason, State, Timestamp, Verdict};
use redrive_worker::Observer;

/// What happened to a job on this worker. A job is shown as it was claimed.
///
/// Except for [`Event::Claimed`] it is told after the store has written it. After a crash nothing is told of what was
/// under way: an event is for metrics, logs and live views, and a job for what must happen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Event<'a> {
    /// An attempt is about to start.
    Claimed {
        /// The job.
        job: &'a Job,
    },
    /// It is done.
    Succeeded {
        /// The job.
        job: &'a Job,
        /// What the handler returned, as JSON.
        output: Option<&'a [u8]>,
    },
    /// The attempt failed and another follows.
    Retrying {
        /// The job.
        job: &'a Job,
        /// After this wait.
        wait: Duration,
        /// What went wrong.
        error: Option<&'a str>,
    },
    /// Nothing failed; it goes on after a wait.
    Snoozed {
        /// The job.
        job: &'a Job,
        /// The wait.
        wait: Duration,
    },
    /// It waits for something outside.
    Waiting {
        /// The job.
        job: &'a Job,
    },
    /// It went back to its queue because the worker shuts down.
    Released {
        /// The job.
        job: &'a Job,
    },
    /// It is dead.
    Dead {
        /// The job.
        job: &'a Job,
        /// Why.
        reason: Reason,
        /// What went wrong in the last attempt.
        error: Option<&'a str>,
    },
    /// It was ended by request.
    Cancelled {
        /// The job.
        job: &'a Job,
    },
    /// The result came too late: someone else holds or has settled the lease, and nothing was written.
    LeaseLost {
        /// The job.
        job: &'a Job,
    },
}

impl<'a> Event<'a> {
    /// The job it is about.
    pub fn job(&self) -> &'a Job {
        match self {
            Self::Claimed { job }
            | Self::Succeeded { job, .. }
            | Self::Retrying { job, .. }
            | Self::Snoozed { job, .. }
            | Self::Waiting { job }
            | Self::Released { job }
            | Self::Dead { job, .. }
            | Self::Cancelled { job }
            | Self::LeaseLost { job } => job,
        }
    }

    /// Its name for logs and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Claimed { .. } => "claimed",
            Self::Succeeded { .. } => "succeeded",
            Self::Retrying { .. } => "retrying",
            Self::Snoozed { .. } => "snoozed",
            Self::Waiting { .. } => "waiting",
            Self::Released { .. } => "released",
            Self::Dead { .. } => "dead",
            Self::Cancelled { .. } => "cancelled",
            Self::LeaseLost { .. } => "lease_lost",
        }
    }

    fn of_settlement(job: &'a Job, settlement: &'a Settlement, answer: Settled) -> Self {
        let error = settlement.error.as_deref();
        match (answer, &settlement.verdict) {
            (Settled::LeaseLost, _) => Self::LeaseLost { job },
            // What would go on is cancelled instead when someone asked for it meanwhile.
            (Settled::Applied(State::Cancelled), _) | (_, Verdict::Cancel) => Self::Cancelled { job },
            (_, Verdict::Complete(output)) => Self::Succeeded { job, output: output.as_deref() },
            (_, Verdict::Retry(wait)) => Self::Retrying { job, wait: *wait, error },
            (_, Verdict::Snooze(wait) | Verdict::Park(wait)) => Self::Snoozed { job, wait: *wait },
            (_, Verdict::Wait(_)) => Self::Waiting { job },
            (_, Verdict::Release) => Self::Released { job },
            (_, Verdict::DeadLetter(reason)) => Self::Dead { job, reason: *reason, error },
        }
    }
}

/// An observer that tells a closure.
pub(crate) struct Hook<F>(pub(crate) F);

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Hook<F> {
    /// Calls the hook. If it panics for one job, it still hears of the other jobs of a batch.
    fn tell(&self, event: &Event<'_>) {
        if let Err(panic) = catch("the hook passed to on_event", || (self.0)(event)) {
            tracing::error!(job = %event.job().id, event = event.name(), %panic, "the worker continues");
        }
    }
}

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Observer for Hook<F> {
    fn claimed(&self, jobs: &[Arc<Job>], _now: Timestamp) {
        jobs.iter().for_each(|job| self.tell(&Event::Claimed { job }));
    }

    fn settled(&self, job: &Job, settlement: &Settlement, answer: Settled) {
        self.tell(&Event::of_settlement(job, settlement, answer));
    }
}

#[cfg(test)]
mod tests {
    use redrive_core::{Await, Lease, Wait};

    use super::*;
    use crate::{Redrive, Task};

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Nothing {}

    impl Task for Nothing {
        const KIND: &'static str = "nothing";
        type Output = ();
    }

    #[tokio::test]
    async fn each_settlement_is_told_as_what_the_store_made_of_it() {
        let redrive = Redrive::open("sqlite::memory:").await.unwrap();
        let id = redrive.enqueue(Nothing {}).await.unwrap().id();
        let job = redrive.get(id).await.unwrap().unwrap();
        let retry = Verdict::Retry(Duration::ZERO);
        let cases = [
            (Verdict::Complete(None), Settled::Applied(State::Succeeded), "succeeded"),
            (Verdict::Complete(None), Settled::LeaseLost, "lease_lost"),
            (retry.clone(), Settled::Applied(State::Retrying), "retrying"),
            (retry, Settled::Applied(State::Cancelled), "cancelled"),
            (Verdict::Cancel, Settled::Applied(State::Cancelled), "cancelled"),
            (Verdict::Snooze(Duration::ZERO), Settled::Applied(State::Pending), "snoozed"),
            (Verdict::Park(Duration::ZERO), Settled::Applied(State::Pending), "snoozed"),
            (Verdict::Release, Settled::Applied(State::Pending), "released"),
            (Verdict::Wait(Wait::until(Await::Unhold)), Settled::Applied(State::Waiting), "waiting"),
            (Verdict::DeadLetter(Reason::BodyLost), Settled::Applied(State::Dead), "dead"),
        ];
        for (verdict, answer, name) in cases {
            let settlement = Settlement::new(Lease { id, epoch: 1 }, verdict);
            let event = Event::of_settlement(&job, &settlement, answer);
            assert_eq!((event.name(), event.job().id), (name, id));
        }
    }
}
