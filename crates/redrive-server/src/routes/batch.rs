//! Many tasks in one request and one commit; what is wrong with one does not stop the others.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::Enqueued;
use redrive_core::{IdempotencyKey, Job, JobId};
use serde_json::value::RawValue;

use super::tasks::reused;
use crate::api::Api;
use crate::auth::{Caller, Writer};
use crate::creation::{Draft, Origin, ReadyTask, draft, find_repeats};
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
    let (ready, slots) = place_all(&api, drafts).await?;
    let answers = answers_of(slots, api.enqueue_all(ready).await?);
    let existing = existing(&api, &answers).await?;
    let mut items = Vec::with_capacity(count);
    for answer in answers {
        let answered = match answer {
            Ok((answer, task)) => settle(&api, &caller, task, answer, &existing).await,
            Err(problem) => Err(problem),
        };
        items.push(answered.unwrap_or_else(refused));
    }
    Ok(Json(BatchAnswer { items }))
}

async fn read(api: &Arc<Api>, caller: &Caller, item: &RawValue, origin: &Origin) -> Answer<Draft> {
    draft(api, caller, extract::parse(item.get().as_bytes())?, origin).await
}

/// Where the answer to an item comes from.
enum Slot {
    /// It is enqueued.
    Enqueued,
    /// The same request under the same key is enqueued, as the one of this number among those that are.
    SameAs(usize),
    /// The same request, or another one under the same key, was there before.
    Known(Enqueued),
    /// It was refused.
    Refused(Problem),
}

/// Stores or claims the bodies of the items that are no repeats.
async fn place_all(api: &Arc<Api>, drafts: Vec<Answer<Draft>>) -> Answer<(Vec<ReadyTask>, Vec<Slot>)> {
    let sound: Vec<&Draft> = drafts.iter().flatten().collect();
    let mut repeats = find_repeats(api, &sound).await?.into_iter();
    let (mut ready, mut slots) = (Vec::with_capacity(drafts.len()), Vec::with_capacity(drafts.len()));
    let mut seen: HashMap<IdempotencyKey, ([u8; 32], usize)> = HashMap::new();
    for draft in drafts {
        let draft = match draft {
            Ok(draft) => draft,
            Err(problem) => {
                slots.push(Slot::Refused(problem));
                continue;
            }
        };
        if let Some(known) = repeats.next().flatten() {
            slots.push(Slot::Known(known));
            continue;
        }
        let asked = draft.key_with_body().cloned();
        let same = asked
            .as_ref()
            .and_then(|asked| seen.get(&asked.key).filter(|(print, _)| *print == asked.fingerprint));
        if let Some((_, first)) = same {
            slots.push(Slot::SameAs(*first));
            continue;
        }
        match draft.place(api).await {
            Ok(task) => {
                seen.extend(asked.map(|asked| (asked.key, (asked.fingerprint, ready.len()))));
                slots.push(Slot::Enqueued);
                ready.push(task);
            }
            Err(problem) if problem.is_ours() => return Err(problem),
            Err(problem) => slots.push(Slot::Refused(problem)),
        }
    }
    Ok((ready, slots))
}

/// What came of each item, with how it is shown if it is new.
fn answers_of(slots: Vec<Slot>, enqueued: Vec<(Enqueued, Task)>) -> Vec<Answer<(Enqueued, Option<Task>)>> {
    let ids: Vec<Enqueued> = enqueued.iter().map(|(answer, _)| *answer).collect();
    let mut enqueued = enqueued.into_iter();
    let missing = || Problem::internal(&"the store gave too few answers to an enqueue");
    let mut one = |slot| match slot {
        Slot::Refused(problem) => Err(problem),
        Slot::Known(answer) => Ok((answer, None)),
        Slot::Enqueued => enqueued.next().map(|(answer, task)| (answer, Some(task))).ok_or_else(missing),
        Slot::SameAs(first) => match ids.get(first) {
            Some(Enqueued::Created(id)) => Ok((Enqueued::Existing(*id), None)),
            Some(answer) => Ok((*answer, None)),
            None => Err(missing()),
        },
    };
    slots.into_iter().map(&mut one).collect()
}

/// The tasks that were there before, in one read.
async fn existing(api: &Api, answers: &[Answer<(Enqueued, Option<Task>)>]) -> Answer<HashMap<JobId, Job>> {
    let mut ids: Vec<JobId> = Vec::new();
    for (answer, _) in answers.iter().flatten() {
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
    task: Option<Task>,
    answer: Enqueued,
    existing: &HashMap<JobId, Job>,
) -> Answer<BatchItem> {
    match answer {
        Enqueued::Created(_) => {
            if let Some(task) = &task {
                api.tell_created(caller, task);
            }
            Ok(BatchItem { status: StatusCode::CREATED.as_u16(), task, problem: None })
        }
        Enqueued::Existing(id) | Enqueued::Replaced(id) => {
            let job = existing.get(&id).ok_or_else(|| Problem::not_found("task", &id.to_string()))?;
            let task = Some(api.task(job).await?);
            Ok(BatchItem { status: StatusCode::OK.as_u16(), task, problem: None })
        }
        Enqueued::Conflict(id) => Err(reused(id)),
    }
}

fn refused(problem: Problem) -> BatchItem {
    let details = serde_json::to_value(problem.details()).ok();
    BatchItem { status: problem.code.status().as_u16(), task: None, problem: details }
}
