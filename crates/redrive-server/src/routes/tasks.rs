//! Tasks: create, look up, cancel, drive again.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use redrive_core::store::{Cancelled, Enqueued, Redriven, RunNow};
use redrive_core::{Job, JobId};

use crate::api::Api;
use crate::auth::{Caller, Reader, Writer};
use crate::creation::{Origin, draft, find_repeats};
use crate::error::{Answer, Code, Problem};
use crate::extract::{Json, Query, TaskId};
use crate::wire::content::Detail;
use crate::wire::listing::TaskQuery;
use crate::wire::page::{Page, PageQuery};
use crate::wire::status::Status;
use crate::wire::task::{Task, TaskAttempt, TaskRequest};

/// Says that the task is the one that the same request created before.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// Create a task.
///
/// The task is durable when the answer comes. The same request under the same key finds the first task again.
#[utoipa::path(post, operation_id = "createTask", path = "/retry-tasks", tag = "tasks", request_body = TaskRequest,
    params(
        ("Idempotency-Key" = Option<String>, Header, description = "the key, when the body has none"),
        ("Redrive-Tenant" = Option<String>, Header, description = "the tenant, for a key that is bound to none"),
    ),
    responses(
        (status = 201, description = "created", body = Task, headers(("Location" = String))),
        (status = 200, description = "the same request created it before", body = Task,
            headers(("Idempotency-Replayed" = String))),
    ))]
pub(super) async fn create(
    Writer(caller): Writer,
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    Json(request): Json<TaskRequest>,
) -> Answer<Response> {
    let draft = draft(&api, &caller, request, &Origin::of_one(&headers)?).await?;
    if let Some(known) = find_repeats(&api, &[&draft]).await?.pop().flatten() {
        return repeated(&api, &caller, known).await;
    }
    match api.enqueue_all(vec![draft.place(&api).await?]).await?.pop() {
        Some((Enqueued::Created(_), task)) => {
            api.tell_created(&caller, &task);
            let location = format!("/retry-tasks/{}", task.task_id);
            Ok((StatusCode::CREATED, [(header::LOCATION, location)], Json(task)).into_response())
        }
        Some((answer, _)) => repeated(&api, &caller, answer).await,
        None => Err(Problem::internal(&"the store gave no answer to an enqueue")),
    }
}

/// The task that an earlier request under the same key created, unless that request was another one.
async fn repeated(api: &Arc<Api>, caller: &Caller, answer: Enqueued) -> Answer<Response> {
    match answer {
        Enqueued::Created(id) | Enqueued::Existing(id) | Enqueued::Replaced(id) => {
            let task = api.task(&find(api, caller, id).await?).await?;
            Ok(([(REPLAYED, "true")], Json(task)).into_response())
        }
        Enqueued::Conflict(id) => Err(reused(id)),
    }
}

/// A task.
#[utoipa::path(get, operation_id = "getTask", path = "/retry-tasks/{taskId}", tag = "tasks",
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
/// An answer looks at so many tasks as it can in a tenth of a second: where few match, a page may be short while
/// `nextCursor` is there.
#[utoipa::path(get, operation_id = "listTasks", path = "/retry-tasks", tag = "tasks", params(TaskQuery),
    responses((status = 200, description = "a page of tasks", body = Page<Task>)))]
pub(super) async fn list(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    Query(query): Query<TaskQuery>,
) -> Answer<Json<Page<Task>>> {
    let (filter, states) = query.filter();
    let mut wanted = filter.wanted_by(&caller).map_err(|problem| problem.renamed("subject", "target"))?;
    if !states.is_empty() {
        wanted.filter.states = states.to_vec();
    }
    Ok(Json(api.tasks(&caller, &wanted, query.page(&api.cursors(&caller))?).await?))
}

/// Cancel a task.
///
/// One that waits has ended at once. One that is in flight is asked to end: an attempt that succeeds meanwhile counts.
#[utoipa::path(delete, operation_id = "cancelTask", path = "/retry-tasks/{taskId}", tag = "tasks",
    params(("taskId" = String, Path, description = "the task")),
    responses(
        (status = 200, description = "cancelled", body = Task),
        (status = 202, description = "in flight: asked to end", body = Task),
        (status = 409, description = "it has ended before"),
    ))]
pub(super) async fn cancel(
    Writer(caller): Writer,
    State(api): State<Arc<Api>>,
    TaskId(id): TaskId,
) -> Answer<Response> {
    find(&api, &caller, id).await?;
    let status = match api.redrive.cancel(id).await? {
        Cancelled::Done => StatusCode::OK,
        Cancelled::Requested => StatusCode::ACCEPTED,
        Cancelled::Ended(state) => {
            let detail = format!("the task is {} already", Status::from(state).name());
            return Err(Problem::new(Code::TaskEnded, detail));
        }
        Cancelled::NotFound => return Err(nothing(id)),
    };
    let job = find(&api, &caller, id).await?;
    api.tell(&job);
    Ok((status, Json(api.task(&job).await?)).into_response())
}

/// The attempts of a task, oldest first.
#[utoipa::path(get, operation_id = "listAttempts", path = "/retry-tasks/{taskId}/attempts", tag = "tasks",
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
    let items = page.items.into_iter().map(|attempt| TaskAttempt::show(attempt, shown)).collect();
    Ok(Json(Page { items, next_cursor: page.next.map(|cursor| cursor.to_string()), looked_at: None }))
}

/// Drive an exhausted task again.
///
/// Attempts and budget start anew, due at once; the log keeps the earlier attempts.
#[utoipa::path(post, operation_id = "redriveTask", path = "/retry-tasks/{taskId}/redrive", tag = "tasks",
    params(("taskId" = String, Path, description = "the task")),
    responses(
        (status = 200, description = "driven again", body = Task),
        (status = 409, description = "it is not exhausted"),
    ))]
pub(super) async fn redrive(
    Writer(caller): Writer,
    State(api): State<Arc<Api>>,
    TaskId(id): TaskId,
) -> Answer<Json<Task>> {
    find(&api, &caller, id).await?;
    match api.redrive.retry_dead(id).await? {
        Redriven::Done => changed(&api, &caller, id).await,
        Redriven::NotDead(state) => {
            let detail = format!("the task is {}", Status::from(state).name());
            Err(Problem::new(Code::TaskNotExhausted, detail))
        }
        Redriven::NotFound => Err(nothing(id)),
    }
}

/// Skip the wait of a task: it is due at once.
#[utoipa::path(post, operation_id = "runTaskNow", path = "/retry-tasks/{taskId}/run-now", tag = "tasks",
    params(("taskId" = String, Path, description = "the task")),
    responses(
        (status = 200, description = "due", body = Task),
        (status = 409, description = "it does not wait"),
    ))]
pub(super) async fn run_now(
    Writer(caller): Writer,
    State(api): State<Arc<Api>>,
    TaskId(id): TaskId,
) -> Answer<Json<Task>> {
    find(&api, &caller, id).await?;
    match api.store.run_now(vec![id]).await?.pop() {
        Some(RunNow::Done) => changed(&api, &caller, id).await,
        Some(RunNow::NotWaiting(state)) => {
            let detail = format!("the task is {}", Status::from(state).name());
            Err(Problem::new(Code::TaskNotWaiting, detail))
        }
        Some(RunNow::NotFound) | None => Err(nothing(id)),
    }
}

async fn changed(api: &Arc<Api>, caller: &Caller, id: JobId) -> Answer<Json<Task>> {
    let job = find(api, caller, id).await?;
    api.tell(&job);
    Ok(Json(api.task(&job).await?))
}

/// A task that the caller may know of.
pub(super) async fn find(api: &Api, caller: &Caller, id: JobId) -> Answer<Job> {
    let job = api.store.get(vec![id]).await?.pop().flatten();
    job.filter(|job| api.is_task(job) && caller.sees_job(job)).ok_or_else(|| nothing(id))
}

fn nothing(id: JobId) -> Problem {
    Problem::not_found("task", &id.to_string())
}

/// The key belongs to another request.
pub(super) fn reused(id: JobId) -> Problem {
    let detail = format!("the key was used for a different request, task {id}; send another key");
    Problem::invalid("idempotencyKey", detail).with_code(Code::IdempotencyKeyReused)
}
