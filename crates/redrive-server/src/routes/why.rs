//! Why a task or job is not running now.

use std::sync::Arc;

use axum::extract::State;
use redrive_core::records::{EVERY_QUEUE, QueuePause};
use redrive_core::{Job, JobId, QueueLimits, Records, State as JobState, Timestamp, text};

use super::tasks::find;
use crate::api::{self, Api};
use crate::auth::Reader;
use crate::error::Answer;
use crate::extract::{Json, PathParam, TaskId};
use redrive_wire::state::{DeadReason, JobState as JobStateShown, WaitingFor, WaitingForKind};
use redrive_wire::why::{ExplanationKind, JobExplanation, JobWhy, Why};

/// Why a task is not running now.
#[utoipa::path(get, operation_id = "whyTask", path = "/v1/tasks/{taskId}/why", tag = "tasks",
    params(("taskId" = String, Path, description = "the task")),
    responses((status = 200, description = "the reason", body = Why)))]
pub(super) async fn of_task(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    TaskId(id): TaskId,
) -> Answer<Json<Why>> {
    let job = find(&api, &caller, id).await?;
    let explanation = why(&api, &job).await?;
    Ok(Json(Why { task_id: job.id.to_string(), state: JobStateShown::of(&job, api::now()), explanation }))
}

/// Why a job is not running now.
#[utoipa::path(get, operation_id = "whyJob", path = "/v1/jobs/{jobId}/why", tag = "jobs",
    params(("jobId" = String, Path, description = "the job")),
    responses((status = 200, description = "the reason", body = JobWhy)))]
pub(super) async fn of_job(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    PathParam(id): PathParam<JobId>,
) -> Answer<Json<JobWhy>> {
    let job = api.find_job(&caller, id).await?;
    let explanation = why(&api, &job).await?;
    Ok(Json(JobWhy { job_id: job.id.to_string(), state: JobStateShown::of(&job, api::now()), explanation }))
}

async fn why(api: &Api, job: &Job) -> Answer<JobExplanation> {
    match job.state {
        JobState::Running => Ok(why_running(job)),
        JobState::Succeeded | JobState::Dead | JobState::Cancelled => Ok(why_ended(job)),
        JobState::Pending | JobState::Retrying | JobState::Waiting => why_not_started(api, job).await,
    }
}

fn why_running(job: &Job) -> JobExplanation {
    let worker = job.worker.as_ref().map(|worker| worker.as_str().to_owned());
    let until = job.lease_until.map(|at| at.as_ms());
    let by = worker.as_deref().unwrap_or("a worker");
    let detail = format!("attempt {} is running: {by} holds its lease and renews it", job.attempt);
    JobExplanation { until, worker, ..JobExplanation::new(ExplanationKind::Running, detail) }
}

fn why_ended(job: &Job) -> JobExplanation {
    let attempts = text::count_of(job.attempt.into(), "attempt");
    let detail = match job.reason {
        Some(reason) => {
            let error = job.last_error.as_deref().map(|error| format!("; last error: {error}"));
            let why = DeadReason::from(reason).explanation();
            format!("dead after {attempts}: {why}{}", error.unwrap_or_default())
        }
        None => format!("{} after {attempts}", job.state),
    };
    let until = job.finished_at.map(|at| at.as_ms());
    JobExplanation { until, ..JobExplanation::new(ExplanationKind::Ended, detail) }
}

/// Returns the first reason that keeps a job from running: a pause by an operator, its wait condition, a paused queue, the gate
/// of its origin, its due time, the limits of its queue.
async fn why_not_started(api: &Api, job: &Job) -> Answer<JobExplanation> {
    if job.paused {
        return Ok(JobExplanation::new(
            ExplanationKind::Paused,
            "an operator paused it; resume it to let it run",
        ));
    }
    if let Some(waiting_for) = WaitingFor::of(job, api::now()) {
        return Ok(why_waiting(waiting_for));
    }
    for queue in [EVERY_QUEUE, job.queue.as_str()] {
        if Records::<QueuePause>::new(&*api.store).contains(queue).await? {
            let detail = format!("the queue {} is paused", job.queue);
            return Ok(JobExplanation::new(ExplanationKind::QueuePaused, detail));
        }
    }
    let now = api::now();
    if let Some(hold) = at_gate(api, job, now) {
        return Ok(hold);
    }
    if job.next_run_at > now {
        let wait =
            format!("attempt {} is due in {}", job.attempt + 1, text::duration(job.next_run_at.since(now)));
        // The error of the last attempt, or the reason why its node postponed it.
        let detail = match job.last_error.as_ref().filter(|_| job.started_at.is_some()) {
            Some(error) => format!("{wait}; the last error was: {error}"),
            None => wait,
        };
        let until = Some(job.next_run_at.as_ms());
        return Ok(JobExplanation { until, ..JobExplanation::new(ExplanationKind::Waiting, detail) });
    }
    if let Some(hold) = without_free_slot(api, job).await? {
        return Ok(hold);
    }
    let late = text::duration(now.since(job.next_run_at));
    let detail = format!("due for {late}: it starts as soon as a worker for its kind has a free slot");
    Ok(JobExplanation::new(ExplanationKind::Due, detail))
}

fn why_waiting(waiting: WaitingFor) -> JobExplanation {
    let because = match waiting.kind {
        WaitingForKind::Signal => ExplanationKind::WaitsForSignal,
        WaitingForKind::Timer => ExplanationKind::WaitsForTimer,
        WaitingForKind::Children => ExplanationKind::WaitsForChildren,
        WaitingForKind::Slot => ExplanationKind::WaitsForSlot,
        WaitingForKind::Unpause => ExplanationKind::Paused,
        WaitingForKind::Any => ExplanationKind::WaitsForAny,
    };
    JobExplanation { until: waiting.until, ..JobExplanation::new(because, waiting.detail) }
}

/// A job that is not due has been at the gate only if an earlier claim ended with a hold.
fn at_gate(api: &Api, job: &Job, now: Timestamp) -> Option<JobExplanation> {
    let was_held = job.state == JobState::Pending && job.started_at.is_some();
    if !api.is_task(job) || !(was_held || job.next_run_at <= now) {
        return None;
    }
    let hold = api.gate_hold(job)?;
    let until = now.after(hold.ends_in).max(job.next_run_at).as_ms();
    let why = JobExplanation::new(ExplanationKind::GateHolds, hold.detail);
    Some(JobExplanation { until: Some(until), origin: Some(hold.origin), ..why })
}

/// Returns a reason if as many jobs of the queue are running as its limits allow.
async fn without_free_slot(api: &Api, job: &Job) -> Answer<Option<JobExplanation>> {
    let limits = Records::<QueueLimits>::new(&*api.store).get(job.queue.as_str()).await?;
    let Some(most) = limits.and_then(|record| record.value.concurrency) else { return Ok(None) };
    let counts = api.store.stats().await?.counts;
    let running = counts.get(&(job.queue.clone(), JobState::Running)).copied().unwrap_or_default();
    let detail =
        format!("{running} jobs of the queue {} are running, and its limits allow {most}", job.queue);
    Ok((running >= u64::from(most)).then(|| JobExplanation::new(ExplanationKind::LimitsReached, detail)))
}
