//! Why a task or job is not running now.

use std::sync::Arc;

use axum::extract::State;
use redrive_core::quota::{QUOTA, Quota};
use redrive_core::records::{EVERY_QUEUE, PAUSED};
use redrive_core::{Await, Job, JobId, State as JobState, Timestamp};

use super::tasks::find;
use crate::api::{self, Api};
use crate::auth::Reader;
use crate::error::Answer;
use crate::extract::{Json, Named, TaskId};
use crate::wire::job::Awaits;
use crate::wire::why::{Because, Holding, JobWhy, Why};

/// Why a task is not running now.
#[utoipa::path(get, operation_id = "whyTask", path = "/retry-tasks/{taskId}/why", tag = "tasks",
    params(("taskId" = String, Path, description = "the task")),
    responses((status = 200, description = "what holds it", body = Why)))]
pub(super) async fn of_task(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    TaskId(id): TaskId,
) -> Answer<Json<Why>> {
    let job = find(&api, &caller, id).await?;
    let hold = why(&api, &job).await?;
    Ok(Json(Why { task_id: job.id.to_string(), status: job.state.into(), hold }))
}

/// Why a job is not running now.
#[utoipa::path(get, operation_id = "whyJob", path = "/jobs/{jobId}/why", tag = "jobs",
    params(("jobId" = String, Path, description = "the job")),
    responses((status = 200, description = "what holds it", body = JobWhy)))]
pub(super) async fn of_job(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    Named(id): Named<JobId>,
) -> Answer<Json<JobWhy>> {
    let job = api.find_job(&caller, id).await?;
    let hold = why(&api, &job).await?;
    Ok(Json(JobWhy { job_id: job.id.to_string(), state: job.state.into(), hold }))
}

async fn why(api: &Api, job: &Job) -> Answer<Holding> {
    match job.state {
        JobState::Running => Ok(leased(job)),
        JobState::Succeeded | JobState::Dead | JobState::Cancelled => Ok(ended(job)),
        JobState::Pending | JobState::Retrying | JobState::Waiting => held(api, job).await,
    }
}

fn leased(job: &Job) -> Holding {
    let worker = job.worker.as_ref().map(|worker| worker.as_str().to_owned());
    let until = job.lease_until.map(|at| at.as_ms());
    let by = worker.as_deref().unwrap_or("a worker");
    let detail = format!("attempt {} is running: {by} holds its lease and renews it", job.attempt);
    Holding { until, worker, ..Holding::new(Because::Leased, detail) }
}

fn ended(job: &Job) -> Holding {
    let detail = match job.reason {
        Some(reason) => {
            let error = job.last_error.as_deref().map(|error| format!(": {error}")).unwrap_or_default();
            format!("it was given up after {} attempts, {}{error}", job.attempt, reason.name())
        }
        None => format!("it is {} after {} attempts", job.state, job.attempt),
    };
    let until = job.finished_at.map(|at| at.as_ms());
    Holding { until, ..Holding::new(Because::Ended, detail) }
}

/// What holds a job that could run: someone, what it waits for, its queue, its origin's gate, its time or its queue's
/// quota, in this order.
async fn held(api: &Api, job: &Job) -> Answer<Holding> {
    if job.held {
        return Ok(Holding::new(Because::Held, "someone has paused it: it goes on when it is resumed"));
    }
    if let Some(awaits) = &job.awaits {
        return Ok(awaiting(job, awaits));
    }
    for queue in [EVERY_QUEUE, job.queue.as_str()] {
        if api.store.read(PAUSED, queue).await?.is_some() {
            let detail = format!("the queue {} is paused", job.queue);
            return Ok(Holding::new(Because::QueuePaused, detail));
        }
    }
    let now = api::now();
    if let Some(hold) = at_gate(api, job, now) {
        return Ok(hold);
    }
    if job.next_run_at > now {
        let wait = format!("attempt {} is due in {:?}", job.attempt + 1, job.next_run_at.since(now));
        // Of one that failed, or that its node put off because it lacks something.
        let detail = match job.last_error.as_ref().filter(|_| job.started_at.is_some()) {
            Some(error) => format!("{wait}; the last error was: {error}"),
            None => wait,
        };
        let until = Some(job.next_run_at.as_ms());
        return Ok(Holding { until, ..Holding::new(Because::Waiting, detail) });
    }
    if let Some(hold) = without_room(api, job).await? {
        return Ok(hold);
    }
    let late = now.since(job.next_run_at);
    let detail =
        format!("it has been due for {late:?}: a worker that knows its kind takes it as soon as it has room");
    Ok(Holding::new(Because::Due, detail))
}

fn awaiting(job: &Job, awaits: &Await) -> Holding {
    let because = match awaits {
        Await::Signal(_) => Because::AwaitsSignal,
        Await::Children { .. } => Because::AwaitsChildren,
        Await::Unhold => Because::Held,
        Await::Turn => Because::AwaitsTurn,
        Await::Any(_) => Because::AwaitsAny,
    };
    // One that waits at most until its time is due then.
    let until = job.state.is_claimable().then(|| job.next_run_at.as_ms());
    Holding { until, ..Holding::new(because, Awaits::show(awaits).detail) }
}

/// One that was never claimed, or that failed, waits for its own time and has not come to the gate.
fn at_gate(api: &Api, job: &Job, now: Timestamp) -> Option<Holding> {
    let parked = job.state == JobState::Pending && job.started_at.is_some();
    if !api.is_task(job) || !(parked || job.next_run_at <= now) {
        return None;
    }
    let hold = api.gate_hold(job)?;
    let until = now.after(hold.opens_in).max(job.next_run_at).as_ms();
    let why = Holding::new(Because::GateHolds, hold.detail);
    Some(Holding { until: Some(until), origin: Some(hold.origin), ..why })
}

/// Whether as many jobs of the queue run as may at once.
async fn without_room(api: &Api, job: &Job) -> Answer<Option<Holding>> {
    let Some(record) = api.store.read(QUOTA, job.queue.as_str()).await? else { return Ok(None) };
    let Some(most) = Quota::read(&record.value).concurrency else { return Ok(None) };
    let counts = api.store.stats().await?.counts;
    let running = counts.get(&(job.queue.clone(), JobState::Running)).copied().unwrap_or_default();
    let detail = format!("{running} jobs of the queue {} are running, its quota allows {most}", job.queue);
    Ok((running >= u64::from(most)).then(|| Holding::new(Because::QuotaReached, detail)))
}
