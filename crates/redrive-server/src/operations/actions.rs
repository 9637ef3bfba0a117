//! One step of an operation: its action on the next jobs, or the check of its canaries.

use std::time::Duration;

use redrive_core::store::{Backend, CancelResult, DiscardResult, PageRequest, RedriveResult, RunNowResult};
use redrive_core::{Job, JobId, State};

use super::{StoredOperation, cursor};
use crate::api::{self, Api};
use crate::error::Answer;
use crate::job_search::{SearchResult, search_jobs};
use redrive_wire::event::TaskEvent;
use redrive_wire::operation::{OperationKind, OperationState};
use redrive_wire::state::JobState;

/// How long one step searches for jobs.
const SEARCH_TIME: Duration = Duration::from_secs(1);

/// Acts on the next jobs and returns how many it found.
pub(super) async fn act(api: &Api, operation: &mut StoredOperation) -> Answer<usize> {
    let page = PageRequest { after: cursor(operation.cursor.as_deref())?, limit: operation.step_items() };
    let SearchResult { items, next, .. } =
        search_jobs(&*api.store, &operation.selected_jobs()?, page, SEARCH_TIME).await?;
    let (found, items) = (items.len(), operation.unvisited(items));
    let done = match operation.kind {
        OperationKind::Redrive => redrive(api, &items).await?,
        OperationKind::Discard => discard(api, &items).await?,
        OperationKind::Cancel => cancel(api, &items).await?,
        OperationKind::RunNow => run_now(api, &items).await?,
    };
    operation.done += done.len() as u64;
    operation.failed += (items.len() - done.len()) as u64;
    if operation.canary.is_some() && !operation.canary_passed {
        operation.canaries = done;
    }
    operation.cursor = next.map(|cursor| cursor.to_string());
    if next.is_none() && operation.canaries.is_empty() {
        operation.end(OperationState::Done);
    }
    Ok(found)
}

impl StoredOperation {
    /// Leaves out the jobs that this operation has already acted on. It finds such jobs again only after a crash before a save: jobs
    /// whose cancellation is requested, and jobs that were started since.
    fn unvisited(&self, mut jobs: Vec<Job>) -> Vec<Job> {
        match self.kind {
            OperationKind::Redrive | OperationKind::Discard => {}
            OperationKind::Cancel => jobs.retain(|job| !job.cancel_requested),
            OperationKind::RunNow => {
                jobs.retain(|job| job.started_at.is_none_or(|started| started <= self.created_at));
            }
        }
        jobs
    }
}

async fn redrive(api: &Api, jobs: &[Job]) -> Answer<Vec<JobId>> {
    let results = api.store.redrive(ids(jobs)).await?;
    let redriven = with_result(jobs, &results, |result| *result == RedriveResult::Done);
    redriven.iter().for_each(|job| publish(api, job, JobState::Pending, 0));
    Ok(ids_of(&redriven))
}

async fn discard(api: &Api, jobs: &[Job]) -> Answer<Vec<JobId>> {
    let results = api.store.discard(ids(jobs)).await?;
    Ok(ids_of(&with_result(jobs, &results, |result| *result == DiscardResult::Done)))
}

/// Cancels jobs with their children, and resumes parents that waited for them.
async fn cancel(api: &Api, jobs: &[Job]) -> Answer<Vec<JobId>> {
    let results = api.store.cancel(ids(jobs)).await?;
    let ended = with_result(jobs, &results, |result| *result == CancelResult::Done);
    let parents: Vec<JobId> = ended.iter().filter_map(|job| job.parent.map(|parent| parent.id)).collect();
    if !parents.is_empty() {
        api.store.resume(parents).await?;
    }
    ended.iter().for_each(|job| publish(api, job, JobState::Cancelled, job.attempt));
    // A job that was cancelled with its parent counts too.
    let cancelled = with_result(jobs, &results, |result| match result {
        CancelResult::Done | CancelResult::Requested | CancelResult::Ended(State::Cancelled) => true,
        CancelResult::Ended(_) | CancelResult::NotFound => false,
    });
    Ok(ids_of(&cancelled))
}

async fn run_now(api: &Api, jobs: &[Job]) -> Answer<Vec<JobId>> {
    let results = api.store.run_now(ids(jobs)).await?;
    let due = with_result(jobs, &results, |result| *result == RunNowResult::Done);
    due.iter().for_each(|job| publish(api, job, JobState::Pending, job.attempt));
    Ok(ids_of(&due))
}

fn ids(jobs: &[Job]) -> Vec<JobId> {
    jobs.iter().map(|job| job.id).collect()
}

fn ids_of(jobs: &[&Job]) -> Vec<JobId> {
    jobs.iter().map(|job| job.id).collect()
}

/// The jobs whose result satisfies `counts`.
fn with_result<'a, T>(jobs: &'a [Job], results: &[T], counts: impl Fn(&T) -> bool) -> Vec<&'a Job> {
    jobs.iter().zip(results).filter(|(_, result)| counts(result)).map(|(job, _)| job).collect()
}

fn publish(api: &Api, job: &Job, state: JobState, attempt: u32) {
    if api.is_task(job) {
        api.events.publish(job.id, &job.tenant, || TaskEvent::new(job.id, state, attempt, api::now()));
    }
}

/// Checks the canaries. Returns whether the operation has changed.
pub(super) async fn watch(store: &dyn Backend, operation: &mut StoredOperation) -> Answer<bool> {
    let jobs = store.get(operation.canaries.clone()).await?;
    let failed = |job: &Option<Job>| {
        job.as_ref().is_none_or(|job| matches!(job.state, State::Dead | State::Cancelled))
    };
    if jobs.iter().any(failed) {
        operation.end(OperationState::CanaryFailed);
        return Ok(true);
    }
    let passed = jobs.iter().flatten().all(|job| job.state == State::Succeeded);
    if passed {
        operation.canary_passed = true;
        operation.canaries.clear();
        if operation.cursor.is_none() {
            operation.end(OperationState::Done);
        }
    }
    Ok(passed)
}
