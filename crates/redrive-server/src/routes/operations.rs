//! Long operations: begin them, see how far they are, stop them.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::api::Api;
use crate::auth::{Admin, Caller, Reader};
use crate::error::{Answer, Problem};
use crate::extract::{Json, Named, Query};
use crate::operations::{self, Kept, NewOperation};
use crate::walk::{Counted, count};
use crate::wire::operation::{DryRun, Operation, OperationKind, OperationRequest};
use crate::wire::page::{Page, PageQuery};

/// The highest rate that may be asked for.
const RATE_MAX: f64 = 100_000.0;
/// Jobs that may go first.
const CANARY_MAX: usize = 100;
/// How long a dry run counts.
const COUNT_FOR: Duration = Duration::from_secs(1);

/// Do something to many jobs: those that match, of the states that it can be done to.
///
/// `REDRIVE` and `DISCARD` are for dead ones, `CANCEL` for those that have not ended, `RUN_NOW` for those that wait for
/// their time. It goes on in the background and survives a restart; only what was there when it began is touched, each
/// job once. `dryRun` only counts, for at most a second.
#[utoipa::path(post, operation_id = "beginOperation", path = "/operations", tag = "operations", request_body = OperationRequest,
    responses(
        (status = 202, description = "begun", body = Operation, headers(("Location" = String))),
        (status = 200, description = "counted", body = DryRun),
    ))]
pub(super) async fn create(
    Admin(caller): Admin,
    State(api): State<Arc<Api>>,
    Json(request): Json<OperationRequest>,
) -> Answer<Response> {
    let OperationRequest { kind, filter, dry_run, rate_per_second, canary } = request;
    kind.wanted(&filter, caller.tenant.as_ref()).map_err(within_filter)?;
    begin(&api, NewOperation { kind, tenant: caller.tenant, filter, rate_per_second, canary }, dry_run).await
}

/// Begins an operation, or counts what it would be about.
pub(super) async fn begin(api: &Api, new: NewOperation, dry_run: bool) -> Answer<Response> {
    if new.rate_per_second.is_some_and(|rate| !(rate > 0.0 && rate <= RATE_MAX)) {
        return Err(Problem::invalid("ratePerSecond", format!("must be above 0 and at most {RATE_MAX}")));
    }
    match new.canary {
        None => {}
        Some(_) if matches!(new.kind, OperationKind::Discard | OperationKind::Cancel) => {
            return Err(Problem::invalid(
                "canary",
                "is for REDRIVE and RUN_NOW: nothing else succeeds or fails",
            ));
        }
        Some(canary) if (1..=CANARY_MAX).contains(&canary) => {}
        Some(_) => return Err(Problem::invalid("canary", format!("must be from 1 to {CANARY_MAX}"))),
    }
    let wanted = new.kind.wanted(&new.filter, new.tenant.as_ref())?;
    if dry_run {
        let Counted { jobs: matched, at_least } = count(&*api.store, &wanted, COUNT_FOR).await?;
        return Ok(Json(DryRun { matched, at_least }).into_response());
    }
    let (id, kept) = operations::begin(&*api.store, new).await?;
    api.begun.notify_one();
    let location = [(header::LOCATION, format!("/operations/{id}"))];
    Ok((StatusCode::ACCEPTED, location, Json(kept.show(id))).into_response())
}

fn within_filter(problem: Problem) -> Problem {
    if problem.field.is_some() { problem.within("filter") } else { problem }
}

/// Every operation of the last week, oldest first.
#[utoipa::path(get, operation_id = "listOperations", path = "/operations", tag = "operations", params(PageQuery),
    responses((status = 200, description = "a page of operations", body = Page<Operation>)))]
pub(super) async fn list(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    Query(page): Query<PageQuery>,
) -> Answer<Json<Page<Operation>>> {
    let (limit, mut after) = (page.limit()?, page.after()?);
    let mut items = Vec::new();
    // Those of other tenants are passed over, so a page may take several reads.
    while items.len() <= limit {
        let read = operations::list(&*api.store, after.as_deref(), limit + 1).await?;
        let (last, full) = (read.last().map(|(id, _)| id.clone()), read.len() > limit);
        let theirs = read.into_iter().filter(|(_, kept)| is_theirs(&caller, kept));
        items.extend(theirs.map(|(id, kept)| kept.show(id)));
        if !full {
            break;
        }
        after = last;
    }
    Ok(Json(Page::cut(items, limit, |operation| &operation.operation_id)))
}

/// How far an operation is.
#[utoipa::path(get, operation_id = "getOperation", path = "/operations/{operationId}", tag = "operations",
    params(("operationId" = String, Path, description = "the operation")),
    responses((status = 200, description = "the operation", body = Operation)))]
pub(super) async fn get(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    Named(id): Named<String>,
) -> Answer<Json<Operation>> {
    let kept = find(&api, &caller, &id).await?;
    Ok(Json(kept.show(id)))
}

/// Stop an operation; what it has done stays done.
#[utoipa::path(delete, operation_id = "stopOperation", path = "/operations/{operationId}", tag = "operations",
    params(("operationId" = String, Path, description = "the operation")),
    responses(
        (status = 200, description = "stopped", body = Operation),
        (status = 409, description = "it has ended before"),
    ))]
pub(super) async fn stop(
    Admin(caller): Admin,
    State(api): State<Arc<Api>>,
    Named(id): Named<String>,
) -> Answer<Json<Operation>> {
    find(&api, &caller, &id).await?;
    let stopped = operations::stop(&*api.store, &id).await?;
    Ok(Json(stopped.show(id)))
}

async fn find(api: &Api, caller: &Caller, id: &str) -> Answer<Kept> {
    let kept = operations::find(&*api.store, id).await?.filter(|kept| is_theirs(caller, kept));
    kept.ok_or_else(|| Problem::not_found("operation", id))
}

fn is_theirs(caller: &Caller, kept: &Kept) -> bool {
    caller.tenant.is_none() || caller.tenant == kept.tenant
}
