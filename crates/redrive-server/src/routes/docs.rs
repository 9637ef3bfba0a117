//! The OpenAPI document, and a page that shows it.

use axum::Extension;
use axum::http::header;
use axum::response::{Html, IntoResponse};
use bytes::Bytes;
use utoipa::openapi::OpenApi;

use crate::schema_rules;

/// The page that renders `/openapi.json`. It loads nothing from other sites.
const PAGE: &str = include_str!("docs.html");
/// The content security policy of the page: its own script, and requests to this service only.
const PAGE_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'";

/// The document, serialised once.
#[derive(Clone)]
pub(super) struct Document(Bytes);

impl Document {
    pub(super) fn new(document: &OpenApi) -> Self {
        let mut document = serde_json::to_value(document).unwrap_or_default();
        schema_rules::add(&mut document);
        Self(document.to_string().into())
    }
}

/// This API as an OpenAPI 3.1 document.
#[utoipa::path(get, operation_id = "getOpenApi", path = "/openapi.json", tag = "service",
    responses((status = 200, description = "this document", body = serde_json::Value)))]
pub(super) async fn openapi(Extension(Document(json)): Extension<Document>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], json)
}

/// A page that shows this API.
#[utoipa::path(get, operation_id = "getDocs", path = "/docs", tag = "service",
    responses((status = 200, description = "a page", body = String, content_type = "text/html")))]
pub(super) async fn docs() -> impl IntoResponse {
    ([(header::CONTENT_SECURITY_POLICY, PAGE_POLICY)], Html(PAGE))
}
