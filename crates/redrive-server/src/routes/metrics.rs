//! Metrics for Prometheus.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;

use crate::api::Api;
use crate::auth::ReaderOfAll;
use crate::error::Answer;
use crate::metrics::OPENMETRICS;

/// Metrics in the OpenMetrics text format.
#[utoipa::path(get, operation_id = "getMetrics", path = "/metrics", tag = "service",
    responses((status = 200, description = "metrics", body = String, content_type = "application/openmetrics-text")))]
pub(super) async fn metrics(_: ReaderOfAll, State(api): State<Arc<Api>>) -> Answer<impl IntoResponse> {
    let stats = api.store.stats().await?;
    Ok(([(header::CONTENT_TYPE, OPENMETRICS)], api.metrics.render(&stats, &api.gate_numbers())))
}
