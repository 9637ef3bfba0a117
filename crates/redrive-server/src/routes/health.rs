//! Whether the process lives, and whether it can work.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use tokio::time::timeout;

use crate::api::Api;
use crate::error::{Answer, Code, Problem};

/// How long the store may take to answer a read of nothing.
const STORE_ANSWERS: Duration = Duration::from_secs(2);

/// Liveness: the process answers.
#[utoipa::path(get, operation_id = "getHealth", path = "/healthz", tag = "service",
    responses((status = 200, description = "alive", body = String, content_type = "text/plain")))]
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// Readiness: the store answers.
#[utoipa::path(get, operation_id = "getReadiness", path = "/readyz", tag = "service",
    responses((status = 200, description = "ready", body = String, content_type = "text/plain")))]
pub(super) async fn readyz(State(api): State<Arc<Api>>) -> Answer<&'static str> {
    match timeout(STORE_ANSWERS, api.store.read("ready", "ready")).await {
        Ok(Ok(_)) => Ok("ready\n"),
        Ok(Err(error)) => {
            tracing::warn!(%error, "not ready");
            Err(Problem::new(Code::Unavailable, "the store does not answer reads; look at the service's log"))
        }
        Err(_) => Err(Problem::new(Code::Unavailable, "the store took longer than 2 s to answer a read")),
    }
}
