//! Drives tasks of late again on paper, under another policy: a bounded sample of those that needed more than one attempt.

use std::time::Duration;

use redrive_core::policy::replay::{Course, End};
use redrive_core::store::{Filter, PageRequest};
use redrive_core::{Attempt, Fault, Job, Kind, Policy, State, StoreError};
use redrive_delivery::{Evidence, KIND};
use tokio::time::Instant;

use crate::api::Api;
use crate::error::Answer;
use crate::walk::walk;
use crate::wire::filter::Wanted;
use crate::wire::policy::ms;
use crate::wire::replay::{Courses, Replay};

/// Tasks that are compared.
const TASKS_MAX: usize = 500;
/// Tasks that are read at once.
const PAGE_ITEMS: usize = 250;
/// Attempts of a task that are read.
const ATTEMPTS_MAX: usize = 200;
/// How long it looks for tasks and reads their attempts.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whose failures.
pub(crate) struct Failures {
    pub(crate) filter: Filter,
    pub(crate) days: u32,
}

impl Api {
    /// What became of tasks, and what would have become of them under `policy`.
    pub(crate) async fn replay(&self, policy: &Policy, failures: Failures) -> Answer<Replay> {
        let began = Instant::now();
        let wanted = self.finished(failures).await?;
        let (mut replay, mut after) = (Comparison::default(), None);
        loop {
            let page = PageRequest { after, limit: PAGE_ITEMS };
            let walked = walk(&*self.store, &wanted, page, PATIENCE.saturating_sub(began.elapsed())).await?;
            replay.looked_at += walked.items.len() as u64;
            for job in walked.items.iter().filter(|job| job.attempt > 1) {
                if replay.tasks as usize >= TASKS_MAX || began.elapsed() >= PATIENCE {
                    return Ok(replay.show(false));
                }
                replay.add(policy, job, &self.attempts_of(job).await?);
            }
            after = walked.next;
            if after.is_none() || began.elapsed() >= PATIENCE {
                return Ok(replay.show(after.is_none()));
            }
        }
    }

    /// Tasks that ended in the last days.
    async fn finished(&self, failures: Failures) -> Answer<Wanted> {
        let back = Duration::from_secs(u64::from(failures.days) * 24 * 60 * 60);
        let now = self.store.stats().await?.now;
        let filter = Filter {
            states: vec![State::Succeeded, State::Dead],
            kind: Some(Kind::new(KIND)?),
            finished_from: Some(now.before(back)),
            ..failures.filter
        };
        Ok(Wanted { filter, text: None })
    }

    /// The attempts of a task's last run.
    async fn attempts_of(&self, job: &Job) -> Result<Vec<Attempt>, StoreError> {
        let page = self.store.attempts(job.id, PageRequest::first(ATTEMPTS_MAX)).await?;
        Ok(page.items.into_iter().filter(|attempt| attempt.entry.run == job.run).collect())
    }
}

#[derive(Default)]
struct Comparison {
    looked_at: u64,
    tasks: u64,
    actual: Sum,
    replayed: Sum,
}

#[derive(Default)]
struct Sum {
    attempts: u64,
    exhausted: u64,
    succeeded: u64,
    to_success: Duration,
}

impl Comparison {
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
        // The same task gets the same jitter each time, so that two answers differ by the policy alone.
        let mut dice = fastrand::Rng::with_seed(job.id.0.as_u64_pair().1);
        let replayed = policy.replay(&course(job, attempts), &mut || dice.f64());
        let end = match replayed.end {
            End::Succeeded(took) => Some(took),
            End::Dead(_) => None,
        };
        self.replayed.add(replayed.attempts, end);
    }

    fn show(self, complete: bool) -> Replay {
        let Self { looked_at, tasks, actual, replayed } = self;
        Replay { looked_at, complete, tasks, actual: actual.show(), replayed: replayed.show() }
    }
}

impl Sum {
    fn add(&mut self, attempts: u32, succeeded_after: Option<Duration>) {
        self.attempts += u64::from(attempts);
        match succeeded_after {
            Some(took) => {
                self.succeeded += 1;
                self.to_success += took;
            }
            None => self.exhausted += 1,
        }
    }

    fn show(self) -> Courses {
        let Self { attempts, exhausted, succeeded, to_success } = self;
        let mean = ms(to_success).checked_div(succeeded);
        Courses { attempts, exhausted, succeeded, mean_ms_to_success: mean }
    }
}

/// What the log tells of a task: the target works from the attempt on that it answered well.
fn course(job: &Job, attempts: &[Attempt]) -> Course {
    let failed = attempts.iter().filter(|attempt| attempt.entry.error.is_some());
    let worked = attempts.iter().find(|attempt| attempt.led_to == State::Succeeded);
    let spent: Duration = attempts.iter().map(|attempt| attempt.entry.duration).sum();
    let count = u32::try_from(attempts.len()).unwrap_or(u32::MAX).max(1);
    let works_from = match (worked, job.state) {
        (Some(attempt), _) => Some(attempt.entry.started_at),
        // It worked, and the log does not say when it began to.
        (None, State::Succeeded) => job.finished_at,
        (None, _) => None,
    };
    Course { began_at: job.began_at, works_from, faults: failed.map(fault).collect(), call: spent / count }
}

/// The sort of a failure, from its evidence.
fn fault(attempt: &Attempt) -> Fault {
    let evidence = attempt.entry.detail.as_deref().and_then(Evidence::from_json);
    match evidence {
        // An answer may have begun before the time was over.
        _ if attempt.entry.outcome == "timeout" => Fault::Timeout,
        // Older logs have the HTTP status of a gRPC call beside its code. It is 200 whatever the code says.
        Some(Evidence { grpc_code: Some(code), .. }) => Fault::Grpc(code),
        // An attempt that failed although its status was a success broke off after it.
        Some(Evidence { status: Some(status @ (..200 | 300..)), .. }) => Fault::Status(status),
        _ => Fault::Connection,
    }
}
