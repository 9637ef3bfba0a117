//! Liveness and readiness.

use std::sync::Arc;

use axum::extract::State;

use crate::api::Api;
use crate::error::Answer;

/// Liveness: the process answers.
#[utoipa::path(get, operation_id = "getHealth", path = "/healthz", tag = "service",
    responses((status = 200, description = "alive", body = String, content_type = "text/plain")))]
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// Readiness: the store accepts reads and writes.
///
/// The service tests this with a small record, at most once every few seconds. A 503 says what does not work. A service that is shutting
/// down is not ready.
#[utoipa::path(get, operation_id = "getReadiness", path = "/readyz", tag = "service",
    responses((status = 200, description = "ready", body = String, content_type = "text/plain")))]
pub(super) async fn readyz(State(api): State<Arc<Api>>) -> Answer<&'static str> {
    api.check_readiness().await?;
    Ok("ready\n")
}
