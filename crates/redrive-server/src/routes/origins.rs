//! The gates of this node.

use std::sync::Arc;

use axum::extract::State;
use tokio::time::Instant;

use crate::api::Api;
use crate::auth::ReaderOfAll;
use crate::error::Answer;
use crate::extract::{Json, Query};
use crate::present;
use redrive_wire::origin::OriginGate;
use redrive_wire::page::{Page, PageQuery};

/// The gate of each origin that this node has called recently, by the name of the origin.
#[utoipa::path(get, operation_id = "listOrigins", path = "/v1/origins", tag = "origins", params(PageQuery),
    responses((status = 200, description = "a page of gates", body = Page<OriginGate>)))]
pub(super) async fn list(
    _: ReaderOfAll,
    State(api): State<Arc<Api>>,
    Query(query): Query<PageQuery>,
) -> Answer<Json<Page<OriginGate>>> {
    let gates = api.parts.gates.status(Instant::now()).into_iter().map(present::origin_gate).collect();
    Ok(Json(Page::by_name(gates, &query, |gate: &OriginGate| &gate.origin)?))
}
