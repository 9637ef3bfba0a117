//! Operations: start, list, show, cancel.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::api::Api;
use crate::auth::{Admin, Caller, Reader};
use crate::error::{Answer, Problem};
use crate::extract::{Json, PathParam, Query};
use crate::job_search::{CountResult, count};
use crate::operations::{self, NewOperation, StoredOperation};
use redrive_wire::operation::{DryRun, Operation, OperationKind, OperationRequest};
use redrive_wire::page::{Page, PageQuery};

/// The highest rate of an operation.
const RATE_MAX: f64 = 100_000.0;
/// The largest number of canaries.
const CANARY_MAX: usize = 100;
/// How long a dry run counts.
const COUNT_FOR: Duration = Duration::from_secs(1);

/// Start an operation on every job that matches a filter.
///
/// `redrive` and `discard` apply to dead jobs, `cancel` to jobs that have not ended, `run_now` to jobs that wait for their time.
/// The operation runs in the background and survives a restart. It changes only jobs that existed when it started, each once.
/// `dryRun` only counts the jobs, for at most a second.
#[utoipa::path(post, operation_id = "beginOperation", path = "/v1/operations", tag = "operations", request_body = OperationRequest,
    responses(
        (status = 202, description = "started", body = Operation, headers(("Location" = String))),
        (status = 200, description = "counted", body = DryRun),
    ))]
pub(super) async fn create(
    Admin(caller): Admin,
    State(api): State<Arc<Api>>,
    Json(request): Json<OperationRequest>,
) -> Answer<Response> {
    let OperationRequest { kind, filter, dry_run, rate_per_second, canary } = request;
    operations::selection(kind, &filter, caller.tenant.as_ref()).map_err(within_filter)?;
    begin(&api, NewOperation { kind, tenant: caller.tenant, filter, rate_per_second, canary }, dry_run).await
}

/// Starts an operation, or counts the jobs that it would change.
pub(super) async fn begin(api: &Api, new: NewOperation, dry_run: bool) -> Answer<Response> {
    if new.rate_per_second.is_some_and(|rate| !(rate > 0.0 && rate <= RATE_MAX)) {
        return Err(Problem::invalid("ratePerSecond", format!("must be above 0 and at most {RATE_MAX}")));
    }
    match new.canary {
        None => {}
        Some(_) if matches!(new.kind, OperationKind::Discard | OperationKind::Cancel) => {
            return Err(Problem::invalid(
                "canary",
                "is allowed only for redrive and run_now, because only their jobs run afterwards",
            ));
        }
        Some(canary) if (1..=CANARY_MAX).contains(&canary) => {}
        Some(_) => return Err(Problem::invalid("canary", format!("must be from 1 to {CANARY_MAX}"))),
    }
    let selection = operations::selection(new.kind, &new.filter, new.tenant.as_ref())?;
    if dry_run {
        let CountResult { jobs: matched, at_least } = count(&*api.store, &selection, COUNT_FOR).await?;
        return Ok(Json(DryRun { matched, at_least }).into_response());
    }
    let (id, operation) = operations::begin(&*api.store, new).await?;
    api.operation_begun.notify_one();
    let location = [(header::LOCATION, format!("/v1/operations/{id}"))];
    Ok((StatusCode::ACCEPTED, location, Json(operation.show(id))).into_response())
}

fn within_filter(problem: Problem) -> Problem {
    if problem.field.is_some() { problem.within("filter") } else { problem }
}

/// The operations of the last week, newest first.
#[utoipa::path(get, operation_id = "listOperations", path = "/v1/operations", tag = "operations", params(PageQuery),
    responses((status = 200, description = "a page of operations", body = Page<Operation>)))]
pub(super) async fn list(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    Query(page): Query<PageQuery>,
) -> Answer<Json<Page<Operation>>> {
    let stored = operations::all(&*api.store).await?;
    let visible = stored.into_iter().filter(|(_, operation)| is_visible(&caller, operation));
    let operations = visible.map(|(id, operation)| operation.show(id)).collect();
    let position = |operation: &Operation| (operation.created_at, operation.operation_id.clone());
    Ok(Json(Page::newest_first(operations, &page, position)?))
}

/// The progress of an operation.
#[utoipa::path(get, operation_id = "getOperation", path = "/v1/operations/{operationId}", tag = "operations",
    params(("operationId" = String, Path, description = "the operation")),
    responses((status = 200, description = "the operation", body = Operation)))]
pub(super) async fn get(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    PathParam(id): PathParam<String>,
) -> Answer<Json<Operation>> {
    let operation = find(&api, &caller, &id).await?;
    Ok(Json(operation.show(id)))
}

/// Cancel an operation. The jobs that it has changed stay changed.
#[utoipa::path(post, operation_id = "cancelOperation", path = "/v1/operations/{operationId}/cancel", tag = "operations",
    params(("operationId" = String, Path, description = "the operation")),
    responses(
        (status = 200, description = "cancelled", body = Operation),
        (status = 409, description = "the operation has already ended"),
    ))]
pub(super) async fn cancel(
    Admin(caller): Admin,
    State(api): State<Arc<Api>>,
    PathParam(id): PathParam<String>,
) -> Answer<Json<Operation>> {
    find(&api, &caller, &id).await?;
    let cancelled = operations::cancel(&*api.store, &id).await?;
    Ok(Json(cancelled.show(id)))
}

async fn find(api: &Api, caller: &Caller, id: &str) -> Answer<StoredOperation> {
    let operation = operations::find(&*api.store, id).await?;
    let visible = operation.filter(|operation| is_visible(caller, operation));
    visible.ok_or_else(|| Problem::not_found("operation", id))
}

fn is_visible(caller: &Caller, operation: &StoredOperation) -> bool {
    caller.tenant.is_none() || caller.tenant == operation.tenant
}
