//! Queues: counts, pauses and limits. All tenants share them.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use redrive_core::records::{EVERY_QUEUE, QueuePause};
use redrive_core::{Queue, Records, queue_limits};

use crate::api::Api;
use crate::auth::{AdminOfAll, ReaderOfAll};
use crate::error::{Answer, Problem};
use crate::extract::{Json, PathParam, Query};
use redrive_wire::page::{Page, PageQuery};
use redrive_wire::queue::{QueueLimits, QueueStatus, Queues};

/// Queues that have jobs, are paused or have limits, by name.
#[utoipa::path(get, operation_id = "listQueues", path = "/v1/queues", tag = "queues", params(PageQuery),
    responses((status = 200, description = "a page of queues", body = Queues)))]
pub(super) async fn list(
    _: ReaderOfAll,
    State(api): State<Arc<Api>>,
    Query(query): Query<PageQuery>,
) -> Answer<Json<Queues>> {
    let stats = api.store.stats().await?;
    let paused = pauses(&api).all("").await?;
    let limited = queue_limits(&api).all("").await?;
    let all_paused = paused.iter().any(|record| record.id == EVERY_QUEUE);
    let mut queues: BTreeMap<String, QueueStatus> = BTreeMap::new();
    let entry = |name: &str| QueueStatus::empty(name, all_paused);
    for ((queue, state), count) in &stats.counts {
        let status = queues.entry(queue.to_string()).or_insert_with(|| entry(queue.as_str()));
        status.jobs.insert(state.name().to_owned(), *count);
    }
    for record in paused.iter().filter(|record| record.id != EVERY_QUEUE) {
        queues.entry(record.id.clone()).or_insert_with(|| entry(&record.id)).paused = true;
    }
    for record in limited {
        let status = queues.entry(record.id.clone()).or_insert_with(|| entry(&record.id));
        status.limits = Some(record.value.into());
    }
    let Page { items, next_cursor, .. } =
        Page::by_name(queues.into_values().collect(), &query, |queue| &queue.name)?;
    Ok(Json(Queues { items, next_cursor, all_paused }))
}

/// Pause a queue, or every queue with `*`.
///
/// No worker claims jobs from it until it is resumed. Running attempts continue. A queue without jobs can be paused too.
#[utoipa::path(post, operation_id = "pauseQueue", path = "/v1/queues/{name}/pause", tag = "queues",
    params(("name" = String, Path, description = "the queue, or * for all")),
    responses((status = 204, description = "paused")))]
pub(super) async fn pause(
    _: AdminOfAll,
    State(api): State<Arc<Api>>,
    PathParam(name): PathParam<String>,
) -> Answer<StatusCode> {
    queue(&name)?;
    pauses(&api).put(&name, &QueuePause).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Resume a queue, or every queue with `*`.
#[utoipa::path(post, operation_id = "resumeQueue", path = "/v1/queues/{name}/resume", tag = "queues",
    params(("name" = String, Path, description = "the queue, or * for all")),
    responses((status = 204, description = "resumed")))]
pub(super) async fn resume(
    _: AdminOfAll,
    State(api): State<Arc<Api>>,
    PathParam(name): PathParam<String>,
) -> Answer<StatusCode> {
    queue(&name)?;
    pauses(&api).remove(&name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Show the limits of a queue.
#[utoipa::path(get, operation_id = "getQueueLimits", path = "/v1/queues/{name}/limits", tag = "queues",
    params(("name" = String, Path, description = "the queue")),
    responses((status = 200, description = "its limits; without limits, an object without fields", body = QueueLimits)))]
pub(super) async fn limits(
    _: ReaderOfAll,
    State(api): State<Arc<Api>>,
    PathParam(name): PathParam<String>,
) -> Answer<Json<QueueLimits>> {
    let record = queue_limits(&api).get(single_queue(&name)?.as_str()).await?;
    let limits = record.map(|record| record.value).unwrap_or_default();
    Ok(Json(limits.into()))
}

/// Replace the limits of a queue.
///
/// Every node applies them from its next claim on. A job that waits for a slot is not charged an attempt.
#[utoipa::path(put, operation_id = "putQueueLimits", path = "/v1/queues/{name}/limits", tag = "queues", request_body = QueueLimits,
    params(("name" = String, Path, description = "the queue")),
    responses((status = 200, description = "the new limits", body = QueueLimits)))]
pub(super) async fn set_limits(
    _: AdminOfAll,
    State(api): State<Arc<Api>>,
    PathParam(name): PathParam<String>,
    Json(limits): Json<QueueLimits>,
) -> Answer<Json<QueueLimits>> {
    api.redrive.set_limits(&single_queue(&name)?, limits.into()).await?;
    Ok(Json(limits))
}

/// Remove the limits of a queue.
#[utoipa::path(delete, operation_id = "deleteQueueLimits", path = "/v1/queues/{name}/limits", tag = "queues",
    params(("name" = String, Path, description = "the queue")),
    responses((status = 204, description = "the queue has no limits")))]
pub(super) async fn remove_limits(
    _: AdminOfAll,
    State(api): State<Arc<Api>>,
    PathParam(name): PathParam<String>,
) -> Answer<StatusCode> {
    api.redrive.remove_limits(&single_queue(&name)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn pauses(api: &Api) -> Records<'_, QueuePause> {
    Records::new(&*api.store)
}

fn queue_limits(api: &Api) -> Records<'_, queue_limits::QueueLimits> {
    Records::new(&*api.store)
}

fn queue(name: &str) -> Answer<Queue> {
    Queue::new(name).map_err(|_| Problem::not_found("queue", name))
}

/// The name of one queue. `*` cannot have limits.
fn single_queue(name: &str) -> Answer<Queue> {
    match name {
        EVERY_QUEUE => Err(Problem::invalid(
            "name",
            "must be the name of one queue: there are no limits for all queues together",
        )),
        name => queue(name),
    }
}
