//! The overview of the service.

use std::sync::Arc;

use axum::extract::State;

use crate::api::Api;
use crate::auth::Reader;
use crate::error::Answer;
use crate::extract::Json;
use redrive_wire::overview::Overview;

/// The current state of the service, and its problems.
#[utoipa::path(get, operation_id = "getOverview", path = "/v1/overview", tag = "service",
    responses((status = 200, description = "the overview", body = Overview)))]
pub(super) async fn overview(Reader(caller): Reader, State(api): State<Arc<Api>>) -> Answer<Json<Overview>> {
    Ok(Json(api.overview(&caller).await?))
}
