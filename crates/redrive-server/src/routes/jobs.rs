//! Jobs of every kind, those of the library beside the tasks: look them up and operate on them.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use redrive_core::steps::Hold;
use redrive_core::store::{Cancelled, Discarded, Redriven, RunNow};
use redrive_core::{JobId, State as JobState};

use crate::api::Api;
use crate::auth::{Admin, Reader, Writer};
use crate::error::{Answer, Code, Problem};
use crate::extract::{Json, Named, OptionalJson, Query};
use crate::jobs::no_job;
use crate::walk::{self, PATIENCE};
use crate::wire::content::Detail;
use crate::wire::count::JobCount;
use crate::wire::filter::JobFilter;
use crate::wire::job::{Job, JobAttempt, JobStep, RedriveJob, StepsOnRedrive};
use crate::wire::listing::{JobQuery, StepsQuery};
use crate::wire::page::{Page, PageQuery};

/// Jobs of every kind, newest first.
///
/// A payload, output or metadata over 1 KiB is shown by its size here, and whole with its job. An answer looks at so many
/// jobs as it can in a tenth of a second: where few match, a page may be short while `nextCursor` is there.
#[utoipa::path(get, operation_id = "listJobs", path = "/jobs", tag = "jobs", params(JobQuery),
    responses((status = 200, description = "a page of jobs", body = Page<Job>)))]
pub(super) async fn list(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    Query(query): Query<JobQuery>,
) -> Answer<Json<Page<Job>>> {
    let wanted = query.filter().wanted_by(&caller)?;
    Ok(Json(api.jobs(&caller, &wanted, query.page(&api.cursors(&caller))?).await?))
}

/// How many jobs match.
///
/// Exact where only a state and a queue are named; else it counts for a tenth of a second and says whether there may be
/// more.
#[utoipa::path(get, operation_id = "countJobs", path = "/jobs/count", tag = "jobs", params(JobFilter),
    responses((status = 200, description = "how many", body = JobCount)))]
pub(super) async fn count(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    Query(filter): Query<JobFilter>,
) -> Answer<Json<JobCount>> {
    let counted = walk::count(&*api.store, &filter.wanted_by(&caller)?, PATIENCE).await?;
    Ok(Json(JobCount { count: counted.jobs, at_least: counted.at_least }))
}

/// A job of any kind.
#[utoipa::path(get, operation_id = "getJob", path = "/jobs/{jobId}", tag = "jobs",
    params(("jobId" = String, Path, description = "the job")),
    responses((status = 200, description = "the job", body = Job)))]
pub(super) async fn get(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    Named(id): Named<JobId>,
) -> Answer<Json<Job>> {
    Ok(Json(api.job(&api.find_job(&caller, id).await?, caller.detail(Detail::Whole)).await?))
}

/// The attempts in a job's log, oldest first.
#[utoipa::path(get, operation_id = "listJobAttempts", path = "/jobs/{jobId}/attempts", tag = "jobs",
    params(("jobId" = String, Path, description = "the job"), PageQuery),
    responses((status = 200, description = "a page of attempts", body = Page<JobAttempt>)))]
pub(super) async fn attempts(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    Named(id): Named<JobId>,
    Query(query): Query<PageQuery>,
) -> Answer<Json<Page<JobAttempt>>> {
    api.find_job(&caller, id).await?;
    let request = query.request()?;
    let page = api.store.attempts(id, request).await?;
    let shown = caller.detail(Detail::Whole);
    let items = page.items.into_iter().map(|attempt| JobAttempt::show(attempt, shown)).collect();
    Ok(Json(Page { items, next_cursor: page.next.map(|cursor| cursor.to_string()), looked_at: None }))
}

/// The steps that a job remembers, in their order.
#[utoipa::path(get, operation_id = "listJobSteps", path = "/jobs/{jobId}/steps", tag = "jobs",
    params(("jobId" = String, Path, description = "the job"), StepsQuery),
    responses((status = 200, description = "a page of steps", body = Page<JobStep>)))]
pub(super) async fn steps(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    Named(id): Named<JobId>,
    Query(query): Query<StepsQuery>,
) -> Answer<Json<Page<JobStep>>> {
    api.find_job(&caller, id).await?;
    let limit = query.limit()?;
    let steps = api.redrive.steps(id, query.from()?, limit + 1).await?;
    let shown = caller.detail(Detail::Whole);
    let items = steps.iter().take(limit).map(|step| JobStep::show(step, shown)).collect();
    let next_cursor = steps.get(limit).map(|next| StepsQuery::cursor_at(next.place));
    Ok(Json(Page { items, next_cursor, looked_at: None }))
}

/// Cancel a job, and everything below it: its children and theirs.
///
/// One that waits has ended at once. One that is running is asked to end: an attempt that succeeds meanwhile counts.
#[utoipa::path(post, operation_id = "cancelJob", path = "/jobs/{jobId}/cancel", tag = "jobs",
    params(("jobId" = String, Path, description = "the job")),
    responses(
        (status = 200, description = "cancelled", body = Job),
        (status = 202, description = "running: asked to end", body = Job),
        (status = 409, description = "it has ended before"),
    ))]
pub(super) async fn cancel(
    Writer(caller): Writer,
    State(api): State<Arc<Api>>,
    Named(id): Named<JobId>,
) -> Answer<Response> {
    api.find_job(&caller, id).await?;
    let status = match api.redrive.cancel(id).await? {
        Cancelled::Done => StatusCode::OK,
        Cancelled::Requested => StatusCode::ACCEPTED,
        Cancelled::Ended(state) => return Err(ended(state)),
        Cancelled::NotFound => return Err(no_job(id)),
    };
    Ok((status, Json(api.changed_job(&caller, id).await?)).into_response())
}

/// Drive a dead job again.
///
/// Attempts and budget start anew, due at once; the log keeps the earlier attempts. It goes on from the steps it
/// remembers, unless they are to be forgotten.
#[utoipa::path(post, operation_id = "redriveJob", path = "/jobs/{jobId}/redrive", tag = "jobs", request_body = Option<RedriveJob>,
    params(("jobId" = String, Path, description = "the job")),
    responses(
        (status = 200, description = "driven again", body = Job),
        (status = 409, description = "it is not dead"),
    ))]
pub(super) async fn redrive(
    Writer(caller): Writer,
    State(api): State<Arc<Api>>,
    Named(id): Named<JobId>,
    OptionalJson(request): OptionalJson<RedriveJob>,
) -> Answer<Json<Job>> {
    api.find_job(&caller, id).await?;
    let redriven = match request.steps {
        StepsOnRedrive::Keep => api.redrive.retry_dead(id).await?,
        StepsOnRedrive::Forget => api.redrive.retry_dead_from_start(id).await?,
    };
    match redriven {
        Redriven::Done => Ok(Json(api.changed_job(&caller, id).await?)),
        Redriven::NotDead(state) => Err(not_dead(state)),
        Redriven::NotFound => Err(no_job(id)),
    }
}

/// Skip the wait of a job: it is due at once.
#[utoipa::path(post, operation_id = "runJobNow", path = "/jobs/{jobId}/run-now", tag = "jobs",
    params(("jobId" = String, Path, description = "the job")),
    responses(
        (status = 200, description = "due", body = Job),
        (status = 409, description = "it does not wait for its time"),
    ))]
pub(super) async fn run_now(
    Writer(caller): Writer,
    State(api): State<Arc<Api>>,
    Named(id): Named<JobId>,
) -> Answer<Json<Job>> {
    api.find_job(&caller, id).await?;
    match api.store.run_now(vec![id]).await?.pop() {
        Some(RunNow::Done) => Ok(Json(api.changed_job(&caller, id).await?)),
        Some(RunNow::NotWaiting(state)) => {
            let detail =
                format!("the job is {state}: only one that is pending or retrying waits for its time");
            Err(Problem::new(Code::JobNotWaiting, detail))
        }
        Some(RunNow::NotFound) | None => Err(no_job(id)),
    }
}

/// Pause a job.
///
/// One that waits for its time is set aside at once; one that is running makes no further attempt.
#[utoipa::path(post, operation_id = "pauseJob", path = "/jobs/{jobId}/pause", tag = "jobs",
    params(("jobId" = String, Path, description = "the job")),
    responses(
        (status = 200, description = "paused", body = Job),
        (status = 409, description = "it has ended before"),
    ))]
pub(super) async fn pause(
    Writer(caller): Writer,
    State(api): State<Arc<Api>>,
    Named(id): Named<JobId>,
) -> Answer<Json<Job>> {
    api.find_job(&caller, id).await?;
    match api.redrive.pause_job(id).await? {
        Hold::Done(_) => Ok(Json(api.changed_job(&caller, id).await?)),
        Hold::Ended(state) => Err(ended(state)),
        Hold::NotFound => Err(no_job(id)),
    }
}

/// Let a paused job go on.
#[utoipa::path(post, operation_id = "resumeJob", path = "/jobs/{jobId}/resume", tag = "jobs",
    params(("jobId" = String, Path, description = "the job")),
    responses(
        (status = 200, description = "it goes on, or was not paused", body = Job),
        (status = 409, description = "it has ended before"),
    ))]
pub(super) async fn resume(
    Writer(caller): Writer,
    State(api): State<Arc<Api>>,
    Named(id): Named<JobId>,
) -> Answer<Json<Job>> {
    api.find_job(&caller, id).await?;
    match api.redrive.resume_job(id).await? {
        Hold::Done(_) => Ok(Json(api.changed_job(&caller, id).await?)),
        Hold::Ended(state) => Err(ended(state)),
        Hold::NotFound => Err(no_job(id)),
    }
}

/// Remove a dead job for good, with its log.
#[utoipa::path(post, operation_id = "discardJob", path = "/jobs/{jobId}/discard", tag = "jobs",
    params(("jobId" = String, Path, description = "the job")),
    responses(
        (status = 204, description = "removed"),
        (status = 409, description = "it is not dead"),
    ))]
pub(super) async fn discard(
    Admin(caller): Admin,
    State(api): State<Arc<Api>>,
    Named(id): Named<JobId>,
) -> Answer<StatusCode> {
    api.find_job(&caller, id).await?;
    match api.redrive.discard(id).await? {
        Discarded::Done => Ok(StatusCode::NO_CONTENT),
        Discarded::NotDead(state) => Err(not_dead(state)),
        Discarded::NotFound => Err(no_job(id)),
    }
}

pub(super) fn ended(state: JobState) -> Problem {
    Problem::new(Code::JobEnded, format!("the job is {state} already"))
}

fn not_dead(state: JobState) -> Problem {
    Problem::new(Code::JobNotDead, format!("the job is {state}"))
}
