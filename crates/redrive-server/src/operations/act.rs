//! What an operation does to the next jobs that it is about.

use std::time::Duration;

use redrive_core::store::{Backend, Cancelled, Discarded, PageRequest, Redriven, RunNow};
use redrive_core::{Job, JobId, State};

use super::{Kept, cursor};
use crate::api::{self, Api};
use crate::error::Answer;
use crate::walk::{Walked, walk};
use crate::wire::event::TaskEvent;
use crate::wire::operation::{OperationKind, OperationState};
use crate::wire::status::Status;

/// How long one step looks for jobs.
const LOOK_FOR: Duration = Duration::from_secs(1);

/// Acts on the next jobs; says how many it found.
pub(super) async fn act(api: &Api, kept: &mut Kept) -> Answer<usize> {
    let page = PageRequest { after: cursor(kept.cursor.as_deref())?, limit: kept.step_items() };
    let Walked { items, next, .. } = walk(&*api.store, &kept.wanted()?, page, LOOK_FOR).await?;
    let (found, items) = (items.len(), kept.unvisited(items));
    let done = match kept.kind {
        OperationKind::Redrive => redrive(api, &items).await?,
        OperationKind::Discard => discard(api, &items).await?,
        OperationKind::Cancel => cancel(api, &items).await?,
        OperationKind::RunNow => run_now(api, &items).await?,
    };
    kept.done += done.len() as u64;
    kept.failed += (items.len() - done.len()) as u64;
    if kept.canary.is_some() && !kept.canary_passed {
        kept.canaries = done;
    }
    kept.cursor = next.map(|cursor| cursor.to_string());
    if next.is_none() && kept.canaries.is_empty() {
        kept.end(OperationState::Done);
    }
    Ok(found)
}

impl Kept {
    /// Those that it has not been to, which only a crash before a save makes it meet again: what was asked to end, and
    /// what was started since.
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
    let answers = api.store.redrive(ids(jobs)).await?;
    let driven = chosen(jobs, &answers, |answer| *answer == Redriven::Done);
    driven.iter().for_each(|job| tell(api, job, Status::Pending, 0));
    Ok(ids_of(&driven))
}

async fn discard(api: &Api, jobs: &[Job]) -> Answer<Vec<JobId>> {
    let answers = api.store.discard(ids(jobs)).await?;
    Ok(ids_of(&chosen(jobs, &answers, |answer| *answer == Discarded::Done)))
}

/// Ends them with everything below them; a parent that waited for one goes on.
async fn cancel(api: &Api, jobs: &[Job]) -> Answer<Vec<JobId>> {
    let answers = api.store.cancel(ids(jobs)).await?;
    let ended = chosen(jobs, &answers, |answer| *answer == Cancelled::Done);
    let parents: Vec<JobId> = ended.iter().filter_map(|job| job.parent.map(|parent| parent.id)).collect();
    if !parents.is_empty() {
        api.store.resume(parents).await?;
    }
    ended.iter().for_each(|job| tell(api, job, Status::Cancelled, job.attempt));
    // One that went with its parent is as cancelled as the others.
    let cancelled = chosen(jobs, &answers, |answer| match answer {
        Cancelled::Done | Cancelled::Requested | Cancelled::Ended(State::Cancelled) => true,
        Cancelled::Ended(_) | Cancelled::NotFound => false,
    });
    Ok(ids_of(&cancelled))
}

async fn run_now(api: &Api, jobs: &[Job]) -> Answer<Vec<JobId>> {
    let answers = api.store.run_now(ids(jobs)).await?;
    let due = chosen(jobs, &answers, |answer| *answer == RunNow::Done);
    due.iter().for_each(|job| tell(api, job, Status::Pending, job.attempt));
    Ok(ids_of(&due))
}

fn ids(jobs: &[Job]) -> Vec<JobId> {
    jobs.iter().map(|job| job.id).collect()
}

fn ids_of(jobs: &[&Job]) -> Vec<JobId> {
    jobs.iter().map(|job| job.id).collect()
}

/// The jobs whose answer is one of those that count.
fn chosen<'a, T>(jobs: &'a [Job], answers: &[T], counts: impl Fn(&T) -> bool) -> Vec<&'a Job> {
    jobs.iter().zip(answers).filter(|(_, answer)| counts(answer)).map(|(job, _)| job).collect()
}

fn tell(api: &Api, job: &Job, status: Status, attempt: u32) {
    if api.is_task(job) {
        api.events.tell(job.id, &job.tenant, || TaskEvent::new(job.id, status, attempt, api::now()));
    }
}

/// Looks at those that went first; says whether they have come to an end.
pub(super) async fn watch(store: &dyn Backend, kept: &mut Kept) -> Answer<bool> {
    let jobs = store.get(kept.canaries.clone()).await?;
    let failed = |job: &Option<Job>| {
        job.as_ref().is_none_or(|job| matches!(job.state, State::Dead | State::Cancelled))
    };
    if jobs.iter().any(failed) {
        kept.end(OperationState::CanaryFailed);
        return Ok(true);
    }
    let passed = jobs.iter().flatten().all(|job| job.state == State::Succeeded);
    if passed {
        kept.canary_passed = true;
        kept.canaries.clear();
        if kept.cursor.is_none() {
            kept.end(OperationState::Done);
        }
    }
    Ok(passed)
}
