//! The description of the API, for programs and for people.

use axum::Extension;
use axum::http::header;
use axum::response::{Html, IntoResponse};
use bytes::Bytes;
use utoipa::openapi::OpenApi;

/// The page that renders `/openapi.json`; it needs nothing from elsewhere.
const PAGE: &str = include_str!("docs.html");
/// The page may run itself and ask this service, nothing else.
const PAGE_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'";

/// The description, written once.
#[derive(Clone)]
pub(super) struct Document(Bytes);

impl Document {
    pub(super) fn new(document: &OpenApi) -> Self {
        Self(serde_json::to_vec(document).unwrap_or_default().into())
    }
}

/// The description of this API in OpenAPI 3.1.
#[utoipa::path(get, operation_id = "getOpenApi", path = "/openapi.json", tag = "service",
    responses((status = 200, description = "this document", body = serde_json::Value)))]
pub(super) async fn openapi(Extension(Document(json)): Extension<Document>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], json)
}

/// A page to browse the description.
#[utoipa::path(get, operation_id = "getDocs", path = "/docs", tag = "service",
    responses((status = 200, description = "a page", body = String, content_type = "text/html")))]
pub(super) async fn docs() -> impl IntoResponse {
    ([(header::CONTENT_SECURITY_POLICY, PAGE_POLICY)], Html(PAGE))
}
