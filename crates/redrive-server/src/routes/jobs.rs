//! Jobs of every kind: list, show, cancel, redrive, pause, discard.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use redrive_core::steps::PauseResult;
use redrive_core::store::{CancelResult, DiscardResult, RedriveResult, RunNowResult};
use redrive_core::{JobId, State as JobState};

use crate::api::Api;
use crate::auth::{Admin, Reader, Writer};
use crate::error::{Answer, Problem};
use crate::extract::{FilterQuery, Json, OptionalJson, PathParam, Query};
use crate::job_search::{self, LIST_SEARCH_TIME};
use crate::jobs::no_job;
use crate::selection::JobSelection;
use redrive_wire::Code;
use redrive_wire::content::Detail;
use redrive_wire::count::JobCount;
use redrive_wire::filter::JobFilter;
use redrive_wire::job::{Job, JobAttempt, JobStep, RedriveJob, StepsOnRedrive};
use redrive_wire::page::{Page, PageQuery, StepsQuery};

/// Jobs of every kind, newest first.
///
/// A payload, output or metadata over 1 KiB is listed with its size only. A request examines jobs for at most 100 ms. If few jobs
/// match, a page may be short or empty although there is a `nextCursor`.
#[utoipa::path(get, operation_id = "listJobs", path = "/v1/jobs", tag = "jobs", params(JobFilter, PageQuery),
    responses((status = 200, description = "a page of jobs", body = Page<Job>)))]
pub(super) async fn list(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    FilterQuery(filter, page): FilterQuery,
) -> Answer<Json<Page<Job>>> {
    let selection = JobSelection::for_caller(&filter, &caller)?;
    Ok(Json(api.jobs(&caller, &selection, api.cursors(&caller).page(&page)?).await?))
}

/// Count the jobs that match a filter.
///
/// The count is exact if the filter names only a queue and a state other than pending, retrying and waiting. Otherwise counting
/// stops after 100 ms, and `atLeast` says whether there may be more.
#[utoipa::path(get, operation_id = "countJobs", path = "/v1/jobs/count", tag = "jobs", params(JobFilter),
    responses((status = 200, description = "the number of jobs", body = JobCount)))]
pub(super) async fn count(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    Query(filter): Query<JobFilter>,
) -> Answer<Json<JobCount>> {
    let counted =
        job_search::count(&*api.store, &JobSelection::for_caller(&filter, &caller)?, LIST_SEARCH_TIME)
            .await?;
    Ok(Json(JobCount { count: counted.jobs, at_least: counted.at_least }))
}

/// A job of any kind.
#[utoipa::path(get, operation_id = "getJob", path = "/v1/jobs/{jobId}", tag = "jobs",
    params(("jobId" = String, Path, description = "the job")),
    responses((status = 200, description = "the job", body = Job)))]
pub(super) async fn get(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    PathParam(id): PathParam<JobId>,
) -> Answer<Json<Job>> {
    Ok(Json(api.job(&api.find_job(&caller, id).await?, caller.detail(Detail::Whole)).await?))
}

/// The attempts in a job's log, newest first.
#[utoipa::path(get, operation_id = "listJobAttempts", path = "/v1/jobs/{jobId}/attempts", tag = "jobs",
    params(("jobId" = String, Path, description = "the job"), PageQuery),
    responses((status = 200, description = "a page of attempts", body = Page<JobAttempt>)))]
pub(super) async fn attempts(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    PathParam(id): PathParam<JobId>,
    Query(query): Query<PageQuery>,
) -> Answer<Json<Page<JobAttempt>>> {
    api.find_job(&caller, id).await?;
    let request = query.request()?;
    let page = api.store.attempts(id, request).await?;
    let shown = caller.detail(Detail::Whole);
    let items = page.items.into_iter().map(|attempt| JobAttempt::show(attempt, shown)).collect();
    Ok(Json(Page { items, next_cursor: page.next.map(|cursor| cursor.to_string()), examined: None }))
}

/// The stored steps of a job, in the order of their places.
#[utoipa::path(get, operation_id = "listJobSteps", path = "/v1/jobs/{jobId}/steps", tag = "jobs",
    params(("jobId" = String, Path, description = "the job"), StepsQuery),
    responses((status = 200, description = "a page of steps", body = Page<JobStep>)))]
pub(super) async fn steps(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    PathParam(id): PathParam<JobId>,
    Query(query): Query<StepsQuery>,
) -> Answer<Json<Page<JobStep>>> {
    api.find_job(&caller, id).await?;
    let limit = query.limit()?;
    let steps = api.redrive.steps(id, query.from()?, limit + 1).await?;
    let shown = caller.detail(Detail::Whole);
    let items = steps.iter().take(limit).map(|step| JobStep::show(step, shown)).collect();
    let next_cursor = steps.get(limit).map(|next| StepsQuery::cursor_at(next.place));
    Ok(Json(Page { items, next_cursor, examined: None }))
}

/// Cancel a job and its children, except detached ones.
///
/// A job that is not running ends at once. A running job is asked to end; if its attempt succeeds first, the job has succeeded.
#[utoipa::path(post, operation_id = "cancelJob", path = "/v1/jobs/{jobId}/cancel", tag = "jobs",
    params(("jobId" = String, Path, description = "the job")),
    responses(
        (status = 200, description = "cancelled", body = Job),
        (status = 202, description = "running: asked to end", body = Job),
        (status = 409, description = "the job has already ended"),
    ))]
pub(super) async fn cancel(
    Writer(caller): Writer,
    State(api): State<Arc<Api>>,
    PathParam(id): PathParam<JobId>,
) -> Answer<Response> {
    api.find_job(&caller, id).await?;
    let status = match api.redrive.cancel(id).await? {
        CancelResult::Done => StatusCode::OK,
        CancelResult::Requested => StatusCode::ACCEPTED,
        CancelResult::Ended(state) => return Err(job_ended(state)),
        CancelResult::NotFound => return Err(no_job(id)),
    };
    Ok((status, Json(api.changed_job(&caller, id).await?)).into_response())
}

/// Redrive a dead job.
///
/// The job gets a new run, due at once, with new attempts and a new time budget. The log keeps the earlier attempts. The job continues
/// after its stored steps unless `steps` is `forget`.
#[utoipa::path(post, operation_id = "redriveJob", path = "/v1/jobs/{jobId}/redrive", tag = "jobs", request_body = Option<RedriveJob>,
    params(("jobId" = String, Path, description = "the job")),
    responses(
        (status = 200, description = "redriven", body = Job),
        (status = 409, description = "the job is not dead"),
    ))]
pub(super) async fn redrive(
    Writer(caller): Writer,
    State(api): State<Arc<Api>>,
    PathParam(id): PathParam<JobId>,
    OptionalJson(request): OptionalJson<RedriveJob>,
) -> Answer<Json<Job>> {
    api.find_job(&caller, id).await?;
    let redriven = match request.steps {
        StepsOnRedrive::Keep => api.redrive.redrive_job(id).await?,
        StepsOnRedrive::Forget => api.redrive.redrive_from_start(id).await?,
    };
    match redriven {
        RedriveResult::Done => Ok(Json(api.changed_job(&caller, id).await?)),
        RedriveResult::NotDead(state) => Err(not_dead(state)),
        RedriveResult::NotFound => Err(no_job(id)),
    }
}

/// Make a job due at once.
#[utoipa::path(post, operation_id = "runJobNow", path = "/v1/jobs/{jobId}/run-now", tag = "jobs",
    params(("jobId" = String, Path, description = "the job")),
    responses(
        (status = 200, description = "due", body = Job),
        (status = 409, description = "the job does not wait for its time"),
    ))]
pub(super) async fn run_now(
    Writer(caller): Writer,
    State(api): State<Arc<Api>>,
    PathParam(id): PathParam<JobId>,
) -> Answer<Json<Job>> {
    api.find_job(&caller, id).await?;
    match api.store.run_now(vec![id]).await?.pop() {
        Some(RunNowResult::Done) => Ok(Json(api.changed_job(&caller, id).await?)),
        Some(RunNowResult::NotWaiting(state)) => {
            let detail = format!("the job is {state}; only a pending or retrying job can be made due");
            Err(Problem::new(Code::JobNotWaiting, detail))
        }
        Some(RunNowResult::NotFound) | None => Err(no_job(id)),
    }
}

/// Pause a job.
///
/// A running attempt continues, and no further attempt starts until the job is resumed.
#[utoipa::path(post, operation_id = "pauseJob", path = "/v1/jobs/{jobId}/pause", tag = "jobs",
    params(("jobId" = String, Path, description = "the job")),
    responses(
        (status = 200, description = "paused", body = Job),
        (status = 409, description = "the job has already ended"),
    ))]
pub(super) async fn pause(
    Writer(caller): Writer,
    State(api): State<Arc<Api>>,
    PathParam(id): PathParam<JobId>,
) -> Answer<Json<Job>> {
    api.find_job(&caller, id).await?;
    match api.redrive.pause_job(id).await? {
        PauseResult::Done(_) => Ok(Json(api.changed_job(&caller, id).await?)),
        PauseResult::Ended(state) => Err(job_ended(state)),
        PauseResult::NotFound => Err(no_job(id)),
    }
}

/// Resume a paused job.
#[utoipa::path(post, operation_id = "resumeJob", path = "/v1/jobs/{jobId}/resume", tag = "jobs",
    params(("jobId" = String, Path, description = "the job")),
    responses(
        (status = 200, description = "the job is not paused", body = Job),
        (status = 409, description = "the job has already ended"),
    ))]
pub(super) async fn resume(
    Writer(caller): Writer,
    State(api): State<Arc<Api>>,
    PathParam(id): PathParam<JobId>,
) -> Answer<Json<Job>> {
    api.find_job(&caller, id).await?;
    match api.redrive.resume_job(id).await? {
        PauseResult::Done(_) => Ok(Json(api.changed_job(&caller, id).await?)),
        PauseResult::Ended(state) => Err(job_ended(state)),
        PauseResult::NotFound => Err(no_job(id)),
    }
}

/// Remove a dead job for good, with its log.
#[utoipa::path(post, operation_id = "discardJob", path = "/v1/jobs/{jobId}/discard", tag = "jobs",
    params(("jobId" = String, Path, description = "the job")),
    responses(
        (status = 204, description = "removed"),
        (status = 409, description = "the job is not dead"),
    ))]
pub(super) async fn discard(
    Admin(caller): Admin,
    State(api): State<Arc<Api>>,
    PathParam(id): PathParam<JobId>,
) -> Answer<StatusCode> {
    api.find_job(&caller, id).await?;
    match api.redrive.discard(id).await? {
        DiscardResult::Done => Ok(StatusCode::NO_CONTENT),
        DiscardResult::NotDead(state) => Err(not_dead(state)),
        DiscardResult::NotFound => Err(no_job(id)),
    }
}

pub(super) fn job_ended(state: JobState) -> Problem {
    Problem::new(Code::JobEnded, format!("the job is already {state}"))
}

fn not_dead(state: JobState) -> Problem {
    let detail = format!("the job is {state}; only a dead job can be redriven or discarded");
    Problem::new(Code::JobNotDead, detail)
}
