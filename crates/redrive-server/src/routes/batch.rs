//! Many tasks in one request and one commit; what is wrong with one does not stop the others.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::Enqueued;
use redrive_core::{Job, JobId, NewJob};
use serde_json::value::RawValue;

use super::tasks::reused;
use crate::api::Api;
use crate::auth::{Caller, Writer};
use crate::creation::{Draft, Origin, draft};
use crate::error::{Answer, Problem};
use crate::extract::{self, Json};
use crate::wire::task::{BatchAnswer, BatchItem, BatchRequest, Task};

/// Create many tasks.
///
/// They are durable together when the answer comes, which holds the task or the problem of each, in order. A failure of
/// the service itself, such as a store that is away, is the answer to all of them: none was created.
#[utoipa::path(post, operation_id = "createTasks", path = "/retry-tasks/batch", tag = "tasks", request_body = BatchRequest,
    params(("Redrive-Tenant" = Option<String>, Header, description = "the tenant, for a key that is bound to none")),
    responses((status = 200, description = "what came of each", body = BatchAnswer)))]
pub(super) async fn create(
    Writer(caller): Writer,
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    Json(request): Json<BatchRequest>,
) -> Answer<Json<BatchAnswer>> {
    let count = request.items.len();
    if !(1..=BATCH_ITEMS_MAX).contains(&count) {
        let detail = format!("must hold from 1 to {BATCH_ITEMS_MAX} calls, holds {count}");
        return Err(Problem::invalid("items", detail));
    }
    let origin = Origin::of_many(&headers);
    let mut drafts = Vec::with_capacity(count);
    for item in request.items {
        match read(&api, &caller, &item, &origin).await {
            Err(problem) if problem.is_ours() => return Err(problem),
            draft => drafts.push(draft),
        }
    }
    let (jobs, drafts) = split(drafts);
    let answers = api.enqueue(jobs).await?;
    let existing = existing(&api, &answers).await?;
    let mut answers = answers.into_iter();
    let mut items = Vec::with_capacity(count);
    for draft in drafts {
        let answered = match draft {
            Ok(task) => settle(&api, &caller, task, answers.next(), &existing).await,
            Err(problem) => Err(problem),
        };
        items.push(answered.unwrap_or_else(refused));
    }
    Ok(Json(BatchAnswer { items }))
}

async fn read(api: &Arc<Api>, caller: &Caller, item: &RawValue, origin: &Origin) -> Answer<Draft> {
    draft(api, caller, extract::parse(item.get().as_bytes())?, origin).await
}

fn split(drafts: Vec<Answer<Draft>>) -> (Vec<NewJob>, Vec<Answer<Task>>) {
    let mut jobs = Vec::with_capacity(drafts.len());
    let tasks = drafts.into_iter().map(|draft| {
        draft.map(|draft| {
            jobs.push(draft.job);
            draft.task
        })
    });
    let tasks = tasks.collect();
    (jobs, tasks)
}

/// The tasks that were there before, in one read.
async fn existing(api: &Api, answers: &[Enqueued]) -> Answer<HashMap<JobId, Job>> {
    let mut ids: Vec<JobId> = Vec::new();
    for answer in answers {
        match answer {
            Enqueued::Existing(id) | Enqueued::Replaced(id) => ids.push(*id),
            Enqueued::Created(_) | Enqueued::Conflict(_) => {}
        }
    }
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let jobs = api.store.get(ids).await?;
    Ok(jobs.into_iter().flatten().map(|job| (job.id, job)).collect())
}

async fn settle(
    api: &Arc<Api>,
    caller: &Caller,
    task: Task,
    answer: Option<Enqueued>,
    existing: &HashMap<JobId, Job>,
) -> Answer<BatchItem> {
    match answer {
        Some(Enqueued::Created(_)) => {
            api.tell_created(caller, &task);
            Ok(BatchItem { status: StatusCode::CREATED.as_u16(), task: Some(task), problem: None })
        }
        Some(Enqueued::Existing(id) | Enqueued::Replaced(id)) => {
            let job = existing.get(&id).ok_or_else(|| Problem::not_found("task", &id.to_string()))?;
            let task = Some(api.task(job).await?);
            Ok(BatchItem { status: StatusCode::OK.as_u16(), task, problem: None })
        }
        Some(Enqueued::Conflict(id)) => Err(reused(id)),
        None => Err(Problem::internal(&"the store gave too few answers to an enqueue")),
    }
}

fn refused(problem: Problem) -> BatchItem {
    let details = serde_json::to_value(problem.details()).ok();
    BatchItem { status: problem.code.status().as_u16(), task: None, problem: details }
}
