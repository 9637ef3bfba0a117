//! Whether the process lives, and whether it can work.

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

/// Readiness: the store answers reads and takes writes.
///
/// The service writes a small record to find out, at most once every few seconds however often it is asked. A 503 says what
/// does not work. A service that shuts down is not ready.
#[utoipa::path(get, operation_id = "getReadiness", path = "/readyz", tag = "service",
    responses((status = 200, description = "ready", body = String, content_type = "text/plain")))]
pub(super) async fn readyz(State(api): State<Arc<Api>>) -> Answer<&'static str> {
    api.check_readiness().await?;
    Ok("ready\n")
}
