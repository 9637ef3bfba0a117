//! Why a task is not running now.

use std::sync::Arc;

use axum::extract::State;
use redrive_core::records::{EVERY_QUEUE, PAUSED};
use redrive_core::{Job, State as JobState};

use super::tasks::find;
use crate::api::{self, Api};
use crate::auth::Reader;
use crate::error::Answer;
use crate::extract::{Json, TaskId};
use crate::wire::status::Status;
use crate::wire::why::{Because, Why};

/// Why a task is not running now.
#[utoipa::path(get, operation_id = "whyTask", path = "/retry-tasks/{taskId}/why", tag = "tasks",
    params(("taskId" = String, Path, description = "the task")),
    responses((status = 200, description = "what holds it", body = Why)))]
pub(super) async fn why(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    TaskId(id): TaskId,
) -> Answer<Json<Why>> {
    let job = find(&api, &caller, id).await?;
    let why = match job.state {
        JobState::Running => leased(&job),
        JobState::Succeeded | JobState::Dead | JobState::Cancelled => ended(&job),
        JobState::Pending | JobState::Retrying | JobState::Waiting => held(&api, &job).await?,
    };
    Ok(Json(why))
}

fn because(job: &Job, because: Because, detail: String) -> Why {
    Why {
        task_id: job.id.to_string(),
        status: job.state.into(),
        because,
        detail,
        until: None,
        worker: None,
        origin: None,
    }
}

fn leased(job: &Job) -> Why {
    let worker = job.worker.as_ref().map(|worker| worker.as_str().to_owned());
    let until = job.lease_until.map(|at| at.as_ms());
    let by = worker.as_deref().unwrap_or("a worker");
    let detail = format!("attempt {} is running: {by} holds its lease and renews it", job.attempt);
    Why { until, worker, ..because(job, Because::Leased, detail) }
}

fn ended(job: &Job) -> Why {
    let detail = match job.reason {
        Some(reason) => {
            let error = job.last_error.as_deref().map(|error| format!(": {error}")).unwrap_or_default();
            format!("it was given up after {} attempts, {}{error}", job.attempt, reason.name())
        }
        None => format!("it is {} after {} attempts", Status::from(job.state).name(), job.attempt),
    };
    let until = job.finished_at.map(|at| at.as_ms());
    Why { until, ..because(job, Because::Ended, detail) }
}

/// What holds a task that could run: its queue, its origin's gate, or its time, in this order.
async fn held(api: &Api, job: &Job) -> Answer<Why> {
    for queue in [EVERY_QUEUE, job.queue.as_str()] {
        if api.store.read(PAUSED, queue).await?.is_some() {
            let detail = format!("the queue {} is paused", job.queue);
            return Ok(because(job, Because::QueuePaused, detail));
        }
    }
    let now = api::now();
    // One that was never claimed, or that failed, waits for its own time and has not come to the gate.
    let parked = job.state == JobState::Pending && job.started_at.is_some();
    if let Some(hold) = api.gate_hold(job).filter(|_| parked || job.next_run_at <= now) {
        let until = now.after(hold.opens_in).max(job.next_run_at).as_ms();
        let why = because(job, Because::GateHolds, hold.detail);
        return Ok(Why { until: Some(until), origin: Some(hold.origin), ..why });
    }
    if job.state == JobState::Waiting {
        return Ok(because(job, Because::Waiting, "it waits until something resumes it".to_owned()));
    }
    if job.next_run_at > now {
        let detail = format!("attempt {} is due in {:?}", job.attempt + 1, job.next_run_at.since(now));
        return Ok(Why { until: Some(job.next_run_at.as_ms()), ..because(job, Because::Waiting, detail) });
    }
    let late = now.since(job.next_run_at);
    let detail = format!("it has been due for {late:?}: a worker takes it as soon as it has room");
    Ok(because(job, Because::Due, detail))
}
