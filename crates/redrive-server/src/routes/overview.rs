//! The service at a glance.

use std::sync::Arc;

use axum::extract::State;

use crate::api::Api;
use crate::auth::Reader;
use crate::error::Answer;
use crate::extract::Json;
use crate::wire::overview::Overview;

/// The service at a glance, and what is wrong now, in words.
#[utoipa::path(get, operation_id = "getOverview", path = "/overview", tag = "service",
    responses((status = 200, description = "at a glance", body = Overview)))]
pub(super) async fn overview(Reader(caller): Reader, State(api): State<Arc<Api>>) -> Answer<Json<Overview>> {
    Ok(Json(api.overview(&caller).await?))
}
