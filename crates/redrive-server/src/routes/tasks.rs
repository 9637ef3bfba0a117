//! Tasks: create, list, show, cancel, redrive.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use redrive_core::store::{CancelResult, EnqueueResult, RedriveResult, RunNowResult};
use redrive_core::{Job, JobId};

use crate::api::Api;
use crate::auth::{Caller, Reader, Writer};
use crate::creation::{CreationHeaders, draft, find_repeats};
use crate::error::{Answer, Problem};
use crate::extract::{FilterQuery, Json, Query, TaskId};
use crate::present;
use crate::selection::JobSelection;
use redrive_wire::Code;
use redrive_wire::content::Detail;
use redrive_wire::filter::JobFilter;
use redrive_wire::page::{Page, PageQuery};
use redrive_wire::task::{Task, TaskAttempt, TaskRequest};

/// The header of an answer to a repeated request: the task existed already.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// Create a task.
///
/// The task is stored when the answer arrives. A repeated request with the same idempotency key returns the first task.
#[utoipa::path(post, operation_id = "createTask", path = "/v1/tasks", tag = "tasks", request_body = TaskRequest,
    params(
        ("Idempotency-Key" = Option<String>, Header, description = "the idempotency key, if the body has none"),
        ("Redrive-Tenant" = Option<String>, Header, description = "the tenant, for an API key that is not bound to one"),
    ),
    responses(
        (status = 201, description = "created", body = Task, headers(("Location" = String))),
        (status = 200, description = "an earlier request with this idempotency key created the task", body = Task,
            headers(("Idempotency-Replayed" = String))),
    ))]
pub(super) async fn create(
    Writer(caller): Writer,
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    Json(request): Json<TaskRequest>,
) -> Answer<Response> {
    let draft = draft(&api, &caller, request, &CreationHeaders::for_one_task(&headers)?).await?;
    if let Some(known) = find_repeats(&api, &[&draft]).await?.pop().flatten() {
        return repeat_response(&api, &caller, known).await;
    }
    match api.enqueue_all(&caller, vec![draft.prepare(&api).await?]).await?.pop() {
        Some((EnqueueResult::Created(_), task)) => {
            let location = format!("/v1/tasks/{}", task.task_id);
            Ok((StatusCode::CREATED, [(header::LOCATION, location)], Json(task)).into_response())
        }
        Some((result, _)) => repeat_response(&api, &caller, result).await,
        None => Err(Problem::internal(&"the store returned no result for an enqueue")),
    }
}

/// Returns the task that an earlier request with the same key created. Fails if that request was different.
async fn repeat_response(api: &Arc<Api>, caller: &Caller, result: EnqueueResult) -> Answer<Response> {
    match result {
        EnqueueResult::Created(id) | EnqueueResult::Existing(id) | EnqueueResult::Replaced(id) => {
            let task = api.task(&find(api, caller, id).await?).await?;
            Ok(([(REPLAYED, "true")], Json(task)).into_response())
        }
        EnqueueResult::Conflict(id) => Err(key_reused(id)),
    }
}

/// A task.
#[utoipa::path(get, operation_id = "getTask", path = "/v1/tasks/{taskId}", tag = "tasks",
    params(("taskId" = String, Path, description = "the task")),
    responses((status = 200, description = "the task", body = Task)))]
pub(super) async fn get(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    TaskId(id): TaskId,
) -> Answer<Json<Task>> {
    Ok(Json(api.task(&find(&api, &caller, id).await?).await?))
}

/// Tasks, newest first.
///
/// A request examines tasks for at most 100 ms. If few tasks match, a page may be short or empty although there is a `nextCursor`.
#[utoipa::path(get, operation_id = "listTasks", path = "/v1/tasks", tag = "tasks", params(JobFilter, PageQuery),
    responses((status = 200, description = "a page of tasks", body = Page<Task>)))]
pub(super) async fn list(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    FilterQuery(filter, page): FilterQuery,
) -> Answer<Json<Page<Task>>> {
    // Reports invalid values even if no task can match.
    JobSelection::for_caller(&filter, &caller)?;
    let Some(filter) = filter.for_tasks() else { return Ok(Json(Page::empty())) };
    let selection = JobSelection::for_caller(&filter, &caller)?;
    Ok(Json(api.tasks(&caller, &selection, api.cursors(&caller).page(&page)?).await?))
}

/// Cancel a task.
///
/// A task that is not running ends at once. A running task is asked to end; if its attempt succeeds first, the task has succeeded.
#[utoipa::path(post, operation_id = "cancelTask", path = "/v1/tasks/{taskId}/cancel", tag = "tasks",
    params(("taskId" = String, Path, description = "the task")),
    responses(
        (status = 200, description = "cancelled", body = Task),
        (status = 202, description = "running: asked to end", body = Task),
        (status = 409, description = "the task has already ended"),
    ))]
pub(super) async fn cancel(
    Writer(caller): Writer,
    State(api): State<Arc<Api>>,
    TaskId(id): TaskId,
) -> Answer<Response> {
    find(&api, &caller, id).await?;
    let status = match api.redrive.cancel(id).await? {
        CancelResult::Done => StatusCode::OK,
        CancelResult::Requested => StatusCode::ACCEPTED,
        CancelResult::Ended(state) => {
            let detail = format!("the task is already {}", state.name());
            return Err(Problem::new(Code::TaskEnded, detail));
        }
        CancelResult::NotFound => return Err(no_task(id)),
    };
    let job = find(&api, &caller, id).await?;
    api.publish_change(&job);
    Ok((status, Json(api.task(&job).await?)).into_response())
}

/// The attempts of a task, newest first.
#[utoipa::path(get, operation_id = "listAttempts", path = "/v1/tasks/{taskId}/attempts", tag = "tasks",
    params(("taskId" = String, Path, description = "the task"), PageQuery),
    responses((status = 200, description = "a page of attempts", body = Page<TaskAttempt>)))]
pub(super) async fn attempts(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    TaskId(id): TaskId,
    Query(query): Query<PageQuery>,
) -> Answer<Json<Page<TaskAttempt>>> {
    find(&api, &caller, id).await?;
    let request = query.request()?;
    let page = api.store.attempts(id, request).await?;
    let shown = caller.detail(Detail::Whole);
    let items = page.items.into_iter().map(|attempt| present::task_attempt(attempt, shown)).collect();
    Ok(Json(Page { items, next_cursor: page.next.map(|cursor| cursor.to_string()), examined: None }))
}

/// Redrive a dead task.
///
/// The task gets a new run, due at once, with new attempts and a new time budget. The log keeps the earlier attempts.
#[utoipa::path(post, operation_id = "redriveTask", path = "/v1/tasks/{taskId}/redrive", tag = "tasks",
    params(("taskId" = String, Path, description = "the task")),
    responses(
        (status = 200, description = "redriven", body = Task),
        (status = 409, description = "the task is not dead"),
    ))]
pub(super) async fn redrive(
    Writer(caller): Writer,
    State(api): State<Arc<Api>>,
    TaskId(id): TaskId,
) -> Answer<Json<Task>> {
    find(&api, &caller, id).await?;
    match api.redrive.redrive_job(id).await? {
        RedriveResult::Done => changed_task(&api, &caller, id).await,
        RedriveResult::NotDead(state) => {
            let detail = format!("the task is {}; only a dead task can be redriven", state.name());
            Err(Problem::new(Code::TaskNotDead, detail))
        }
        RedriveResult::NotFound => Err(no_task(id)),
    }
}

/// Make a task due at once.
#[utoipa::path(post, operation_id = "runTaskNow", path = "/v1/tasks/{taskId}/run-now", tag = "tasks",
    params(("taskId" = String, Path, description = "the task")),
    responses(
        (status = 200, description = "due", body = Task),
        (status = 409, description = "the task does not wait for its time"),
    ))]
pub(super) async fn run_now(
    Writer(caller): Writer,
    State(api): State<Arc<Api>>,
    TaskId(id): TaskId,
) -> Answer<Json<Task>> {
    find(&api, &caller, id).await?;
    match api.store.run_now(vec![id]).await?.pop() {
        Some(RunNowResult::Done) => changed_task(&api, &caller, id).await,
        Some(RunNowResult::NotWaiting(state)) => {
            let detail =
                format!("the task is {}; only a pending or retrying task can be made due", state.name());
            Err(Problem::new(Code::TaskNotWaiting, detail))
        }
        Some(RunNowResult::NotFound) | None => Err(no_task(id)),
    }
}

async fn changed_task(api: &Arc<Api>, caller: &Caller, id: JobId) -> Answer<Json<Task>> {
    let job = find(api, caller, id).await?;
    api.publish_change(&job);
    Ok(Json(api.task(&job).await?))
}

/// Finds a task that the caller may see.
pub(super) async fn find(api: &Api, caller: &Caller, id: JobId) -> Answer<Job> {
    let job = api.store.get(vec![id]).await?.pop().flatten();
    job.filter(|job| api.is_task(job) && caller.sees_job(job)).ok_or_else(|| no_task(id))
}

fn no_task(id: JobId) -> Problem {
    Problem::not_found("task", &id.to_string())
}

/// The idempotency key belongs to a different request.
pub(super) fn key_reused(id: JobId) -> Problem {
    let detail = format!("the key was already used for a different request (task {id}); send another key");
    Problem::invalid("idempotencyKey", detail).with_code(Code::IdempotencyKeyReused)
}
