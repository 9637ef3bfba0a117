//! Events of the jobs of a worker, for hooks.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::panics::catch;
use redrive_core::store::{SettleResult, Settlement};
use redrive_core::{Job, Reason, State, Timestamp, Verdict};
use redrive_worker::Observer;

/// An event of a job on this worker. The job in it is the job as it was claimed.
///
/// Every event except [`Event::Claimed`] comes after the store has written the change. A crash loses the events of the jobs that
/// were running. Use events for metrics, logs and live views, and a job for work that must not be lost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Event<'a> {
    /// An attempt is about to start.
    Claimed {
        /// The job.
        job: &'a Job,
    },
    /// The job has succeeded.
    Succeeded {
        /// The job.
        job: &'a Job,
        /// The output of the handler, as JSON.
        output: Option<&'a [u8]>,
    },
    /// The attempt failed, and another one follows.
    Retrying {
        /// The job.
        job: &'a Job,
        /// The time until the next attempt.
        wait: Duration,
        /// The error of the attempt.
        error: Option<&'a str>,
    },
    /// Nothing failed, and the job runs again later.
    Snoozed {
        /// The job.
        job: &'a Job,
        /// The time until the job runs again.
        wait: Duration,
    },
    /// The job waits for a signal, its children, or a resume by an operator.
    Waiting {
        /// The job.
        job: &'a Job,
    },
    /// The worker shuts down and has handed the job back.
    Released {
        /// The job.
        job: &'a Job,
    },
    /// The job is dead.
    Dead {
        /// The job.
        job: &'a Job,
        /// Why it is dead.
        reason: Reason,
        /// The error of the last attempt.
        error: Option<&'a str>,
    },
    /// The job was cancelled.
    Cancelled {
        /// The job.
        job: &'a Job,
    },
    /// The worker had lost its lease: another worker has taken over or settled the job. Nothing was written.
    LeaseLost {
        /// The job.
        job: &'a Job,
    },
}

impl<'a> Event<'a> {
    /// The job.
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

    /// The name of the event, for logs and metrics.
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

    fn of_settlement(job: &'a Job, settlement: &'a Settlement, result: SettleResult) -> Self {
        let error = settlement.error.as_deref();
        match (result, &settlement.verdict) {
            (SettleResult::LeaseLost, _) => Self::LeaseLost { job },
            // The store cancels a job that would run again if a cancel was requested meanwhile.
            (SettleResult::Applied(State::Cancelled), _) | (_, Verdict::Cancel) => Self::Cancelled { job },
            (_, Verdict::Complete(output)) => Self::Succeeded { job, output: output.as_deref() },
            (_, Verdict::Retry(wait)) => Self::Retrying { job, wait: *wait, error },
            (_, Verdict::Snooze(wait) | Verdict::Hold(wait)) => Self::Snoozed { job, wait: *wait },
            (_, Verdict::Wait(_)) => Self::Waiting { job },
            (_, Verdict::Release) => Self::Released { job },
            (_, Verdict::DeadLetter(reason)) => Self::Dead { job, reason: *reason, error },
        }
    }
}

/// An observer that calls a closure for each event.
pub(crate) struct EventHook<F>(pub(crate) F);

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> EventHook<F> {
    /// Calls the hook. If it panics for one job of a batch, it is still called for the others.
    fn call(&self, event: &Event<'_>) {
        if let Err(panic) = catch("the hook passed to on_event", || (self.0)(event)) {
            tracing::error!(job = %event.job().id, event = event.name(), %panic, "a hook panicked; the worker continues");
        }
    }
}

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Observer for EventHook<F> {
    fn claimed(&self, jobs: &[Arc<Job>], _now: Timestamp) {
        jobs.iter().for_each(|job| self.call(&Event::Claimed { job }));
    }

    fn settled(&self, job: &Job, settlement: &Settlement, result: SettleResult) {
        self.call(&Event::of_settlement(job, settlement, result));
    }
}

#[cfg(test)]
mod tests {
    use redrive_core::{Lease, Wait, WaitCondition};

    use super::*;
    use crate::{Redrive, Task};

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Nothing {}

    impl Task for Nothing {
        const KIND: &'static str = "nothing";
        type Output = ();
    }

    #[tokio::test]
    async fn each_event_says_what_the_store_wrote() {
        let redrive = Redrive::open("sqlite::memory:").await.unwrap();
        let id = redrive.enqueue(Nothing {}).await.unwrap().id();
        let job = redrive.get(id).await.unwrap().unwrap();
        let retry = Verdict::Retry(Duration::ZERO);
        let cases = [
            (Verdict::Complete(None), SettleResult::Applied(State::Succeeded), "succeeded"),
            (Verdict::Complete(None), SettleResult::LeaseLost, "lease_lost"),
            (retry.clone(), SettleResult::Applied(State::Retrying), "retrying"),
            (retry, SettleResult::Applied(State::Cancelled), "cancelled"),
            (Verdict::Cancel, SettleResult::Applied(State::Cancelled), "cancelled"),
            (Verdict::Snooze(Duration::ZERO), SettleResult::Applied(State::Pending), "snoozed"),
            (Verdict::Hold(Duration::ZERO), SettleResult::Applied(State::Pending), "snoozed"),
            (Verdict::Release, SettleResult::Applied(State::Pending), "released"),
            (
                Verdict::Wait(Wait::until(WaitCondition::Unpaused)),
                SettleResult::Applied(State::Waiting),
                "waiting",
            ),
            (Verdict::DeadLetter(Reason::BodyLost), SettleResult::Applied(State::Dead), "dead"),
        ];
        for (verdict, result, name) in cases {
            let settlement = Settlement::new(Lease { id, epoch: 1 }, verdict);
            let event = Event::of_settlement(&job, &settlement, result);
            assert_eq!((event.name(), event.job().id), (name, id));
        }
    }
}
