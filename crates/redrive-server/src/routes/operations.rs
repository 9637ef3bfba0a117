//! Long operations: how far they are, and how to stop them.

use std::sync::Arc;

use axum::extract::State;

use crate::api::Api;
use crate::auth::{Admin, Caller, Reader};
use crate::error::{Answer, Problem};
use crate::extract::{Json, Named, Query};
use crate::operations::{self, Kept};
use crate::wire::operation::Operation;
use crate::wire::page::{Page, PageQuery};

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
