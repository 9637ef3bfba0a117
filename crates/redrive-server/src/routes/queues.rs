//! Queues: how full they are, whether they are paused, and what bounds them. All tenants share them.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use redrive_core::Queue;
use redrive_core::quota::{QUOTA, Quota};
use redrive_core::records::{Change, EVERY_QUEUE, Expect, PAUSED};

use crate::api::Api;
use crate::auth::{AdminOfAll, ReaderOfAll};
use crate::error::{Answer, Problem};
use crate::extract::{Json, Named};
use crate::wire::queue::{QueueQuota, QueueStatus, Queues};

/// Paused or bounded queues read at most; a store with more has another problem.
const SETTINGS_READ_MAX: usize = 1000;

/// Every queue that has jobs, is paused or has a quota.
#[utoipa::path(get, operation_id = "listQueues", path = "/queues", tag = "queues",
    responses((status = 200, description = "the queues", body = Queues)))]
pub(super) async fn list(_: ReaderOfAll, State(api): State<Arc<Api>>) -> Answer<Json<Queues>> {
    let stats = api.store.stats().await?;
    let paused = api.store.scan(PAUSED, None, SETTINGS_READ_MAX).await?;
    let quotas = api.store.scan(QUOTA, None, SETTINGS_READ_MAX).await?;
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
    for record in &quotas {
        let status = queues.entry(record.id.clone()).or_insert_with(|| entry(&record.id));
        status.quota = Some(Quota::read(&record.value).into());
    }
    Ok(Json(Queues { items: queues.into_values().collect(), all_paused }))
}

/// Pause a queue, or every queue with `*`.
///
/// Nothing is claimed from it until it is resumed; what is in flight goes on. The queue may be without jobs: those that come
/// later wait.
#[utoipa::path(post, operation_id = "pauseQueue", path = "/queues/{name}/pause", tag = "queues",
    params(("name" = String, Path, description = "the queue, or * for all")),
    responses((status = 204, description = "paused")))]
pub(super) async fn pause(
    _: AdminOfAll,
    State(api): State<Arc<Api>>,
    Named(name): Named<String>,
) -> Answer<StatusCode> {
    set(&api, &name, Some(Vec::new())).await
}

/// Resume a queue, or what `*` has paused.
#[utoipa::path(post, operation_id = "resumeQueue", path = "/queues/{name}/resume", tag = "queues",
    params(("name" = String, Path, description = "the queue, or * for all")),
    responses((status = 204, description = "resumed")))]
pub(super) async fn resume(
    _: AdminOfAll,
    State(api): State<Arc<Api>>,
    Named(name): Named<String>,
) -> Answer<StatusCode> {
    set(&api, &name, None).await
}

/// Bound a queue, instead of what bounded it before.
///
/// It holds on every node from its next claim on. What has no room waits, and that costs no attempt.
#[utoipa::path(put, operation_id = "putQueueQuota", path = "/queues/{name}/quota", tag = "queues", request_body = QueueQuota,
    params(("name" = String, Path, description = "the queue")),
    responses((status = 200, description = "what bounds it now", body = QueueQuota)))]
pub(super) async fn limit(
    _: AdminOfAll,
    State(api): State<Arc<Api>>,
    Named(name): Named<String>,
    Json(quota): Json<QueueQuota>,
) -> Answer<Json<QueueQuota>> {
    api.redrive.limit(&one(&name)?, quota.into()).await?;
    Ok(Json(quota))
}

/// Let as much of a queue run as workers can.
#[utoipa::path(delete, operation_id = "deleteQueueQuota", path = "/queues/{name}/quota", tag = "queues",
    params(("name" = String, Path, description = "the queue")),
    responses((status = 204, description = "nothing bounds it")))]
pub(super) async fn unlimit(
    _: AdminOfAll,
    State(api): State<Arc<Api>>,
    Named(name): Named<String>,
) -> Answer<StatusCode> {
    api.redrive.unlimit(&one(&name)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn set(api: &Api, name: &str, value: Option<Vec<u8>>) -> Answer<StatusCode> {
    queue(name)?;
    let change = Change { kind: PAUSED.to_owned(), id: name.to_owned(), expect: Expect::Any, value };
    api.store.write(change).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn queue(name: &str) -> Answer<Queue> {
    Queue::new(name).map_err(|_| Problem::not_found("queue", name))
}

/// A queue by its own name: each has a quota of its own, and there is none of all together.
fn one(name: &str) -> Answer<Queue> {
    match name {
        EVERY_QUEUE => {
            Err(Problem::invalid("name", "must be the name of one queue: all have no common quota"))
        }
        name => queue(name),
    }
}
