//! Creates many tasks with one request and one commit. An invalid task does not stop the others.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::EnqueueResult;
use redrive_core::{IdempotencyKey, Job, JobId};
use serde_json::value::RawValue;

use super::tasks::key_reused;
use crate::api::Api;
use crate::auth::{Caller, Writer};
use crate::creation::{CreationHeaders, Draft, ReadyTask, draft, find_repeats};
use crate::error::{Answer, Problem};
use crate::extract::{self, Json};
use redrive_wire::task::{BatchAnswer, BatchItem, BatchRequest, Task};

/// Create many tasks.
///
/// The answer has one item for each task, in order: the created task, or the problem of this task. All created tasks are stored when
/// the answer arrives. If the service itself fails, for example because the store is unavailable, no task is created.
#[utoipa::path(post, operation_id = "createTasks", path = "/v1/tasks/batch", tag = "tasks", request_body = BatchRequest,
    params(("Redrive-Tenant" = Option<String>, Header, description = "the tenant, for an API key that is not bound to one")),
    responses((status = 200, description = "the result of each task", body = BatchAnswer)))]
pub(super) async fn create(
    Writer(caller): Writer,
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    Json(request): Json<BatchRequest>,
) -> Answer<Json<BatchAnswer>> {
    let count = request.items.len();
    if !(1..=BATCH_ITEMS_MAX).contains(&count) {
        let detail = format!("must contain from 1 to {BATCH_ITEMS_MAX} tasks, contains {count}");
        return Err(Problem::invalid("items", detail));
    }
    let headers = CreationHeaders::for_many_tasks(&headers);
    let mut drafts = Vec::with_capacity(count);
    for item in request.items {
        match read_draft(&api, &caller, &item, &headers).await {
            Err(problem) if problem.is_server_error() => return Err(problem),
            draft => drafts.push(draft),
        }
    }
    let (ready, plans) = prepare_all(&api, drafts).await?;
    let results = results_of(plans, api.enqueue_all(&caller, ready).await?);
    let existing = existing(&api, &results).await?;
    let mut items = Vec::with_capacity(count);
    for result in results {
        let item = match result {
            Ok((result, task)) => task_item(&api, task, result, &existing).await,
            Err(problem) => Err(problem),
        };
        items.push(item.unwrap_or_else(problem_item));
    }
    Ok(Json(BatchAnswer { items }))
}

async fn read_draft(
    api: &Arc<Api>,
    caller: &Caller,
    item: &RawValue,
    headers: &CreationHeaders,
) -> Answer<Draft> {
    draft(api, caller, extract::parse(item.get().as_bytes())?, headers).await
}

/// What happens to one item of the batch.
enum ItemPlan {
    /// It is new and will be enqueued.
    Enqueue,
    /// It repeats an earlier item of this batch: the new task with this index.
    SameAs(usize),
    /// A task with its idempotency key exists already, from the same or a different request.
    Existing(EnqueueResult),
    /// It is invalid.
    Invalid(Problem),
}

/// Stores or attaches the bodies of the new items.
async fn prepare_all(api: &Arc<Api>, drafts: Vec<Answer<Draft>>) -> Answer<(Vec<ReadyTask>, Vec<ItemPlan>)> {
    let valid: Vec<&Draft> = drafts.iter().flatten().collect();
    let mut repeats = find_repeats(api, &valid).await?.into_iter();
    let (mut ready, mut plans) = (Vec::with_capacity(drafts.len()), Vec::with_capacity(drafts.len()));
    let mut seen: HashMap<IdempotencyKey, ([u8; 32], usize)> = HashMap::new();
    for draft in drafts {
        let draft = match draft {
            Ok(draft) => draft,
            Err(problem) => {
                plans.push(ItemPlan::Invalid(problem));
                continue;
            }
        };
        if let Some(existing) = repeats.next().flatten() {
            plans.push(ItemPlan::Existing(existing));
            continue;
        }
        let idempotency = draft.key_with_body().cloned();
        let same = idempotency
            .as_ref()
            .and_then(|own| seen.get(&own.key).filter(|(fingerprint, _)| *fingerprint == own.fingerprint));
        if let Some((_, first)) = same {
            plans.push(ItemPlan::SameAs(*first));
            continue;
        }
        match draft.prepare(api).await {
            Ok(task) => {
                seen.extend(idempotency.map(|own| (own.key, (own.fingerprint, ready.len()))));
                plans.push(ItemPlan::Enqueue);
                ready.push(task);
            }
            Err(problem) if problem.is_server_error() => return Err(problem),
            Err(problem) => plans.push(ItemPlan::Invalid(problem)),
        }
    }
    Ok((ready, plans))
}

/// The result of each item. A new task is included as the API shows it.
fn results_of(
    plans: Vec<ItemPlan>,
    enqueued: Vec<(EnqueueResult, Task)>,
) -> Vec<Answer<(EnqueueResult, Option<Task>)>> {
    let results: Vec<EnqueueResult> = enqueued.iter().map(|(result, _)| *result).collect();
    let mut enqueued = enqueued.into_iter();
    let missing = || Problem::internal(&"the store returned too few results for an enqueue");
    let mut result_of = |plan| match plan {
        ItemPlan::Invalid(problem) => Err(problem),
        ItemPlan::Existing(result) => Ok((result, None)),
        ItemPlan::Enqueue => enqueued.next().map(|(result, task)| (result, Some(task))).ok_or_else(missing),
        ItemPlan::SameAs(first) => match results.get(first) {
            Some(EnqueueResult::Created(id)) => Ok((EnqueueResult::Existing(*id), None)),
            Some(result) => Ok((*result, None)),
            None => Err(missing()),
        },
    };
    plans.into_iter().map(&mut result_of).collect()
}

/// Reads the tasks that existed before, with one call.
async fn existing(
    api: &Api,
    results: &[Answer<(EnqueueResult, Option<Task>)>],
) -> Answer<HashMap<JobId, Job>> {
    let mut ids: Vec<JobId> = Vec::new();
    for (result, _) in results.iter().flatten() {
        match result {
            EnqueueResult::Existing(id) | EnqueueResult::Replaced(id) => ids.push(*id),
            EnqueueResult::Created(_) | EnqueueResult::Conflict(_) => {}
        }
    }
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let jobs = api.store.get(ids).await?;
    Ok(jobs.into_iter().flatten().map(|job| (job.id, job)).collect())
}

async fn task_item(
    api: &Arc<Api>,
    task: Option<Task>,
    result: EnqueueResult,
    existing: &HashMap<JobId, Job>,
) -> Answer<BatchItem> {
    match result {
        EnqueueResult::Created(_) => {
            Ok(BatchItem { status: StatusCode::CREATED.as_u16(), task, problem: None })
        }
        EnqueueResult::Existing(id) | EnqueueResult::Replaced(id) => {
            let job = existing.get(&id).ok_or_else(|| Problem::not_found("task", &id.to_string()))?;
            let task = Some(api.task(job).await?);
            Ok(BatchItem { status: StatusCode::OK.as_u16(), task, problem: None })
        }
        EnqueueResult::Conflict(id) => Err(key_reused(id)),
    }
}

fn problem_item(problem: Problem) -> BatchItem {
    let details = serde_json::to_value(problem.details()).ok();
    BatchItem { status: problem.code.status(), task: None, problem: details }
}
