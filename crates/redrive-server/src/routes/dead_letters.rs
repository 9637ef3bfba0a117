//! Dead letters: list them and group them. Operations redrive and discard many at once.

use std::sync::Arc;

use axum::extract::State;

use crate::api::Api;
use crate::auth::Reader;
use crate::dead_letter_groups::group_dead_letters;
use crate::error::Answer;
use crate::extract::{FilterQuery, Json};
use crate::job_search::LIST_SEARCH_TIME;
use crate::selection::JobSelection;
use redrive_wire::filter::JobFilter;
use redrive_wire::group::{DeadLetterGroup, DeadLetterGroups};
use redrive_wire::page::{Page, PageQuery};
use redrive_wire::task::Task;

/// List dead tasks, newest first.
///
/// Dead jobs of other kinds are in `GET /v1/jobs?state=dead`.
#[utoipa::path(get, operation_id = "listDeadLetters", path = "/v1/dead-letters", tag = "dead letters", params(JobFilter, PageQuery),
    responses((status = 200, description = "a page of dead tasks", body = Page<Task>)))]
pub(super) async fn list(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    FilterQuery(filter, page): FilterQuery,
) -> Answer<Json<Page<Task>>> {
    // Reports invalid values even if no task can match.
    JobSelection::for_caller(&filter, &caller)?;
    let Some(filter) = filter.for_tasks().and_then(JobFilter::for_dead_letters) else {
        return Ok(Json(Page::empty()));
    };
    let selection = JobSelection::for_caller(&filter, &caller)?;
    Ok(Json(api.tasks(&caller, &selection, api.cursors(&caller).page(&page)?).await?))
}

/// Dead letters of every kind that match a filter, in groups by reason, kind and target, with one example each.
///
/// It examines the newest dead letters of each reason, for at most 100 ms. The group with the newest dead letter comes first.
#[utoipa::path(get, operation_id = "groupDeadLetters", path = "/v1/dead-letters/groups", tag = "dead letters", params(JobFilter, PageQuery),
    responses((status = 200, description = "a page of groups", body = DeadLetterGroups)))]
pub(super) async fn groups(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    FilterQuery(filter, query): FilterQuery,
) -> Answer<Json<DeadLetterGroups>> {
    let Some(filter) = filter.for_dead_letters() else { return Ok(Json(DeadLetterGroups::none())) };
    let selection = JobSelection::for_caller(&filter, &caller)?;
    let groups = group_dead_letters(&*api.store, &selection, LIST_SEARCH_TIME).await?;
    let Page { items, next_cursor, .. } = Page::newest_first(groups.items, &query, position)?;
    Ok(Json(DeadLetterGroups { items, next_cursor, ..groups }))
}

/// Reason, kind and target identify a group.
fn position(group: &DeadLetterGroup) -> (i64, String) {
    (group.newest_at, format!("{} {} {}", group.reason, group.kind, group.target))
}
