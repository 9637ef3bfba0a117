//! Replays the failures of recent tasks under another policy: a bounded sample of tasks that needed more than one attempt.

use std::time::Duration;

use redrive_core::policy::replay::{FailureHistory, ReplayEnd};
use redrive_core::store::{Filter, PageRequest};
use redrive_core::{Attempt, FailureKind, Job, Kind, Policy, State, StoreError};
use redrive_delivery::{Evidence, KIND};
use tokio::time::Instant;

use crate::api::Api;
use crate::error::Answer;
use crate::job_search::search_jobs;
use crate::selection::JobSelection;
use redrive_wire::millis::ms;
use redrive_wire::replay::{Replay, ReplayTotals};

/// Tasks that are replayed.
const TASKS_MAX: usize = 500;
/// Tasks in one read.
const PAGE_ITEMS: usize = 250;
/// Attempts that are read for each task.
const ATTEMPTS_MAX: usize = 200;
/// How long a replay searches for tasks and reads their attempts.
const REPLAY_TIME_MAX: Duration = Duration::from_secs(1);

/// The tasks whose failures are replayed: those that the filter selects and that ended in the last `days` days.
pub(crate) struct ReplaySelection {
    pub(crate) filter: Filter,
    pub(crate) days: u32,
}

impl Api {
    /// Compares how tasks ended with how they would have ended under `policy`.
    pub(crate) async fn replay(&self, policy: &Policy, selection: ReplaySelection) -> Answer<Replay> {
        let began = Instant::now();
        let selection = self.ended_tasks(selection).await?;
        let (mut replay, mut after) = (ReplayComparison::default(), None);
        loop {
            let page = PageRequest { after, limit: PAGE_ITEMS };
            let found =
                search_jobs(&*self.store, &selection, page, REPLAY_TIME_MAX.saturating_sub(began.elapsed()))
                    .await?;
            replay.examined += found.items.len() as u64;
            for job in found.items.iter().filter(|job| job.attempt > 1) {
                if replay.tasks as usize >= TASKS_MAX || began.elapsed() >= REPLAY_TIME_MAX {
                    return Ok(replay.into_wire(false));
                }
                replay.add(policy, job, &self.attempts_of(job).await?);
            }
            after = found.next;
            if after.is_none() || began.elapsed() >= REPLAY_TIME_MAX {
                return Ok(replay.into_wire(after.is_none()));
            }
        }
    }

    async fn ended_tasks(&self, selection: ReplaySelection) -> Answer<JobSelection> {
        let back = Duration::from_secs(u64::from(selection.days) * 24 * 60 * 60);
        let now = self.store.stats().await?.now;
        let filter = Filter {
            states: vec![State::Succeeded, State::Dead],
            kind: Some(Kind::new(KIND)?),
            finished_from: Some(now.before(back)),
            ..selection.filter
        };
        Ok(JobSelection::from_store_filter(filter))
    }

    /// The attempts of a task's last run, oldest first.
    async fn attempts_of(&self, job: &Job) -> Result<Vec<Attempt>, StoreError> {
        let page = self.store.attempts(job.id, PageRequest::first(ATTEMPTS_MAX)).await?;
        Ok(page.items.into_iter().rev().filter(|attempt| attempt.entry.run == job.run).collect())
    }
}

/// The totals of the examined tasks.
#[derive(Default)]
struct ReplayComparison {
    examined: u64,
    tasks: u64,
    actual: OutcomeTotals,
    replayed: OutcomeTotals,
}

/// How tasks ended: the attempts they took, and the time to success.
#[derive(Default)]
struct OutcomeTotals {
    attempts: u64,
    dead: u64,
    succeeded: u64,
    to_success: Duration,
}

impl ReplayComparison {
    fn add(&mut self, policy: &Policy, job: &Job, attempts: &[Attempt]) {
        let finished_at = job.finished_at.unwrap_or(job.began_at);
        let end = match job.state {
            State::Succeeded => Some(finished_at.since(job.began_at)),
            State::Pending
            | State::Retrying
            | State::Running
            | State::Waiting
            | State::Dead
            | State::Cancelled => None,
        };
        self.tasks += 1;
        self.actual.add(job.attempt, end);
        // The seed is the task's id, so that the results of two replays differ only because of the policy.
        let mut rng = fastrand::Rng::with_seed(job.id.0.as_u64_pair().1);
        let replayed = policy.replay(&failure_history(job, attempts), &mut || rng.f64());
        let end = match replayed.end {
            ReplayEnd::Succeeded(took) => Some(took),
            ReplayEnd::Dead(_) => None,
        };
        self.replayed.add(replayed.attempts, end);
    }

    fn into_wire(self, complete: bool) -> Replay {
        let Self { examined, tasks, actual, replayed } = self;
        Replay { examined, complete, tasks, actual: actual.into_wire(), replayed: replayed.into_wire() }
    }
}

impl OutcomeTotals {
    fn add(&mut self, attempts: u32, succeeded_after: Option<Duration>) {
        self.attempts += u64::from(attempts);
        match succeeded_after {
            Some(took) => {
                self.succeeded += 1;
                self.to_success += took;
            }
            None => self.dead += 1,
        }
    }

    fn into_wire(self) -> ReplayTotals {
        let Self { attempts, dead, succeeded, to_success } = self;
        let mean = ms(to_success).checked_div(succeeded);
        ReplayTotals { attempts, dead, succeeded, mean_ms_to_success: mean }
    }
}

/// The failures of a task from its attempt log. The target counts as working from the start of the successful attempt.
fn failure_history(job: &Job, attempts: &[Attempt]) -> FailureHistory {
    let failed = attempts.iter().filter(|attempt| attempt.entry.error.is_some());
    let worked = attempts.iter().find(|attempt| attempt.led_to == State::Succeeded);
    let spent: Duration = attempts.iter().map(|attempt| attempt.entry.duration).sum();
    let count = u32::try_from(attempts.len()).unwrap_or(u32::MAX).max(1);
    let works_from = match (worked, job.state) {
        (Some(attempt), _) => Some(attempt.entry.started_at),
        // The task succeeded, but the log does not contain the successful attempt.
        (None, State::Succeeded) => job.finished_at,
        (None, _) => None,
    };
    FailureHistory {
        began_at: job.began_at,
        works_from,
        failures: failed.map(failure_kind).collect(),
        call: spent / count,
    }
}

/// The kind of a failure, from the evidence of the attempt.
fn failure_kind(attempt: &Attempt) -> FailureKind {
    let evidence = attempt.entry.detail.as_deref().and_then(Evidence::from_json);
    match evidence {
        // The response may have started before the timeout.
        _ if attempt.entry.outcome == "timeout" => FailureKind::Timeout,
        // Older logs contain the HTTP status of a gRPC call beside its code. This status is always 200.
        Some(Evidence { grpc_code: Some(code), .. }) => FailureKind::Grpc(code),
        // If the attempt failed although the status is a success, the connection broke afterwards.
        Some(Evidence { status: Some(status @ (..200 | 300..)), .. }) => FailureKind::Status(status),
        _ => FailureKind::Connection,
    }
}
