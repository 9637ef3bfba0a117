//! Dead letters: look, drive again, remove. Many at once are an operation.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;

use super::operations::begin;
use crate::api::Api;
use crate::auth::{Admin, Reader};
use crate::error::Answer;
use crate::extract::{Json, Query};
use crate::groups::{self, Dead};
use crate::operations::NewOperation;
use crate::walk::PATIENCE;
use crate::wire::group::DeadLetterGroups;
use crate::wire::listing::DeadLetterQuery;
use crate::wire::operation::{DiscardRequest, DryRun, Operation, OperationKind, RedriveRequest};
use crate::wire::page::Page;
use crate::wire::task::Task;

/// Exhausted tasks, newest first.
///
/// Dead jobs of other kinds are in `GET /jobs?state=dead`.
#[utoipa::path(get, operation_id = "listDeadLetters", path = "/dead-letters", tag = "dead letters", params(DeadLetterQuery),
    responses((status = 200, description = "a page of exhausted tasks", body = Page<Task>)))]
pub(super) async fn list(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    Query(query): Query<DeadLetterQuery>,
) -> Answer<Json<Page<Task>>> {
    let wanted = query.filter().wanted_by(&caller);
    let wanted = wanted.map_err(|problem| problem.renamed("subject", "target"))?;
    Ok(Json(api.tasks(&caller, &wanted, query.page(&api.cursors(&caller))?).await?))
}

/// Dead letters of every kind in groups, by reason and target, with one example each.
///
/// It looks at the newest of each reason, as many as it can in a tenth of a second.
#[utoipa::path(get, operation_id = "groupDeadLetters", path = "/dead-letters/groups", tag = "dead letters",
    responses((status = 200, description = "the groups", body = DeadLetterGroups)))]
pub(super) async fn groups(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
) -> Answer<Json<DeadLetterGroups>> {
    let dead = Dead { tenant: caller.tenant, since: None, patience: PATIENCE };
    Ok(Json(groups::groups(&*api.store, &dead).await?))
}

/// Drive dead letters again: tasks, or jobs of the kind that is named.
///
/// It goes on in the background and survives a restart; `dryRun` only counts.
#[utoipa::path(post, operation_id = "redriveDeadLetters", path = "/dead-letters/redrive", tag = "dead letters", request_body = RedriveRequest,
    responses(
        (status = 202, description = "begun", body = Operation, headers(("Location" = String))),
        (status = 200, description = "counted", body = DryRun),
    ))]
pub(super) async fn redrive(
    Admin(caller): Admin,
    State(api): State<Arc<Api>>,
    Json(request): Json<RedriveRequest>,
) -> Answer<Response> {
    let new = NewOperation {
        kind: OperationKind::Redrive,
        tenant: caller.tenant,
        filter: request.filter(),
        rate_per_second: request.rate_per_second,
        canary: request.canary,
    };
    begin(&api, new, request.dry_run).await.map_err(|problem| problem.renamed("subject", "target"))
}

/// Remove dead letters for good: tasks, or jobs of the kind that is named.
///
/// It goes on in the background and survives a restart; `dryRun` only counts.
#[utoipa::path(post, operation_id = "discardDeadLetters", path = "/dead-letters/discard", tag = "dead letters", request_body = DiscardRequest,
    responses(
        (status = 202, description = "begun", body = Operation, headers(("Location" = String))),
        (status = 200, description = "counted", body = DryRun),
    ))]
pub(super) async fn discard(
    Admin(caller): Admin,
    State(api): State<Arc<Api>>,
    Json(request): Json<DiscardRequest>,
) -> Answer<Response> {
    let new = NewOperation {
        kind: OperationKind::Discard,
        tenant: caller.tenant,
        filter: request.filter(),
        rate_per_second: request.rate_per_second,
        canary: None,
    };
    begin(&api, new, request.dry_run).await.map_err(|problem| problem.renamed("subject", "target"))
}
