//! The nodes and workers of the store.

use std::sync::Arc;

use axum::extract::State;

use crate::api::Api;
use crate::auth::ReaderOfAll;
use crate::error::Answer;
use crate::extract::{Json, Query};
use crate::job_search::LIST_SEARCH_TIME;
use redrive_wire::node::Nodes;
use redrive_wire::page::{Page, PageQuery};

/// The nodes of the service, and the workers of programs that use the library, by name, with the leases they hold.
#[utoipa::path(get, operation_id = "listNodes", path = "/v1/nodes", tag = "service", params(PageQuery),
    responses((status = 200, description = "a page of nodes", body = Nodes)))]
pub(super) async fn list(
    _: ReaderOfAll,
    State(api): State<Arc<Api>>,
    Query(query): Query<PageQuery>,
) -> Answer<Json<Nodes>> {
    let nodes = api.nodes(LIST_SEARCH_TIME).await?;
    let Page { items, next_cursor, .. } = Page::by_name(nodes.items, &query, |node| &node.name)?;
    Ok(Json(Nodes { items, next_cursor, ..nodes }))
}
