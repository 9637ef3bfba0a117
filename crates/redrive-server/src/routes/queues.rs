//! Queues: how full they are, and whether they are paused. All tenants share them.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use redrive_core::Queue;
use redrive_core::records::{Change, EVERY_QUEUE, Expect, PAUSED};

use crate::api::Api;
use crate::auth::{AdminOfAll, ReaderOfAll};
use crate::error::{Answer, Problem};
use crate::extract::{Json, Named};
use crate::wire::queue::{QueueStatus, Queues};

/// Paused queues read at most; a store with more has another problem.
const PAUSED_READ_MAX: usize = 1000;

/// Every queue that has jobs or is paused.
#[utoipa::path(get, operation_id = "listQueues", path = "/queues", tag = "queues",
    responses((status = 200, description = "the queues", body = Queues)))]
pub(super) async fn list(_: ReaderOfAll, State(api): State<Arc<Api>>) -> Answer<Json<Queues>> {
    let stats = api.store.stats().await?;
    let paused = api.store.scan(PAUSED, None, PAUSED_READ_MAX).await?;
    let all_paused = paused.iter().any(|record| record.id == EVERY_QUEUE);
    let mut queues: BTreeMap<String, QueueStatus> = BTreeMap::new();
    let entry = |name: &str| QueueStatus { name: name.to_owned(), paused: all_paused, jobs: BTreeMap::new() };
    for ((queue, state), count) in &stats.counts {
        let status = queues.entry(queue.to_string()).or_insert_with(|| entry(queue.as_str()));
        status.jobs.insert(state.name(), *count);
    }
    for record in paused.iter().filter(|record| record.id != EVERY_QUEUE) {
        queues.entry(record.id.clone()).or_insert_with(|| entry(&record.id)).paused = true;
    }
    Ok(Json(Queues { items: queues.into_values().collect(), all_paused }))
}

/// Pause a queue, or every queue with `*`.
///
/// Nothing is claimed from it until it is resumed; what is in flight goes on.
#[utoipa::path(post, operation_id = "pauseQueue", path = "/queues/{name}/pause", tag = "queues",
    params(("name" = String, Path, description = "the queue, or * for all")),
    responses((status = 204, description = "paused")))]
pub(super) async fn pause(
    _: AdminOfAll,
    State(api): State<Arc<Api>>,
    Named(name): Named<String>,
) -> Answer<axum::http::StatusCode> {
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
) -> Answer<axum::http::StatusCode> {
    set(&api, &name, None).await
}

async fn set(api: &Api, name: &str, value: Option<Vec<u8>>) -> Answer<axum::http::StatusCode> {
    Queue::new(name).map_err(|_| Problem::not_found("queue", name))?;
    let change = Change { kind: PAUSED.to_owned(), id: name.to_owned(), expect: Expect::Any, value };
    api.store.write(change).await?;
    Ok(axum::http::StatusCode::NO_CONTENT)
}
