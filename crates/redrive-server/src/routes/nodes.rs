//! Who works on the store.

use std::sync::Arc;

use axum::extract::State;

use crate::api::Api;
use crate::auth::ReaderOfAll;
use crate::error::Answer;
use crate::extract::Json;
use crate::walk::PATIENCE;
use crate::wire::node::Nodes;

/// The nodes of the service, and the workers of programs that use the library, with the leases they hold.
#[utoipa::path(get, operation_id = "listNodes", path = "/nodes", tag = "service",
    responses((status = 200, description = "the nodes", body = Nodes)))]
pub(super) async fn list(_: ReaderOfAll, State(api): State<Arc<Api>>) -> Answer<Json<Nodes>> {
    Ok(Json(api.nodes(PATIENCE).await?))
}
