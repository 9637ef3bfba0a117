//! The gates of this node.

use std::sync::Arc;

use axum::extract::State;
use tokio::time::Instant;

use crate::api::Api;
use crate::auth::ReaderOfAll;
use crate::error::Answer;
use crate::extract::Json;
use crate::wire::origin::{OriginGate, Origins};

/// The gate of each origin, on this node.
#[utoipa::path(get, operation_id = "listOrigins", path = "/origins", tag = "origins",
    responses((status = 200, description = "the origins", body = Origins)))]
pub(super) async fn list(_: ReaderOfAll, State(api): State<Arc<Api>>) -> Answer<Json<Origins>> {
    let items = api.parts.gates.status(Instant::now()).into_iter().map(OriginGate::from).collect();
    Ok(Json(Origins { items }))
}
