//! Dead letters: look, drive again, remove. Many at once are an operation.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::api::Api;
use crate::auth::{Admin, Caller, Reader};
use crate::error::{Answer, Problem};
use crate::extract::{Json, Query};
use crate::operations::{self, NewOperation};
use crate::wire::listing::DeadLetterQuery;
use crate::wire::operation::{DiscardRequest, DryRun, Operation, OperationKind, RedriveRequest};
use crate::wire::page::Page;
use crate::wire::task::Task;

/// The highest rate that may be asked for.
const RATE_MAX: f64 = 100_000.0;
/// Letters that may go first.
const CANARY_MAX: usize = 100;

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
    let filter = query.filter().filter(caller.tenant.as_ref())?;
    Ok(Json(api.tasks(api.store.list(filter, query.page()?).await?).await?))
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
    if request.canary.is_some_and(|canary| !(1..=CANARY_MAX).contains(&canary)) {
        return Err(Problem::invalid("canary", format!("must be from 1 to {CANARY_MAX}")));
    }
    let new = NewOperation {
        kind: OperationKind::Redrive,
        tenant: caller.tenant.clone(),
        filter: request.filter(),
        rate_per_second: request.rate_per_second,
        canary: request.canary,
    };
    begin(&api, &caller, new, request.dry_run).await
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
        tenant: caller.tenant.clone(),
        filter: request.filter(),
        rate_per_second: request.rate_per_second,
        canary: None,
    };
    begin(&api, &caller, new, request.dry_run).await
}

async fn begin(api: &Api, caller: &Caller, new: NewOperation, dry_run: bool) -> Answer<Response> {
    if new.rate_per_second.is_some_and(|rate| !(rate > 0.0 && rate <= RATE_MAX)) {
        return Err(Problem::invalid("ratePerSecond", format!("must be above 0 and at most {RATE_MAX}")));
    }
    let filter = new.filter.filter(caller.tenant.as_ref())?;
    if dry_run {
        let matched = operations::count(&*api.store, filter).await?;
        return Ok(Json(DryRun { matched }).into_response());
    }
    let (id, kept) = operations::begin(&*api.store, new).await?;
    api.begun.notify_one();
    let location = [(header::LOCATION, format!("/operations/{id}"))];
    Ok((StatusCode::ACCEPTED, location, Json(kept.show(id))).into_response())
}
