//! The paths of the site.

mod create;
mod delete;
mod page;
mod show;

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};

use crate::code::Code;
use crate::database::{Paste, Status};
use crate::site::Site;
use crate::wire::ErrorResponse;

/// The content security policy: pages load nothing from other sites, and no content of a paste is ever executed.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The router of the site.
pub fn router(site: Arc<Site>) -> Router {
    Router::new()
        .route("/", get(page::write))
        .route("/assets/site.css", get(page::style))
        .route("/assets/site.js", get(page::script))
        .route("/health", get(|| async { "ok\n" }))
        .route("/api/v1/pastes", post(create::create))
        .route("/api/v1/pastes/{code}", get(show::json).delete(delete::delete))
        .route("/raw/{code}", get(show::raw).head(show::status))
        .route("/{code}", get(show::page))
        .fallback(|| async { ErrorResponse::not_found() })
        .layer(middleware::from_fn(add_security_headers))
        .with_state(Arc::new(create::AppState::new(site)))
}

async fn add_security_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_SECURITY_POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

impl Site {
    /// Finds the paste with a code. Fails if it is not ready.
    async fn find_ready(&self, code: &str) -> Result<(Code, Paste), ErrorResponse> {
        let code = Code::parse(code).ok_or_else(ErrorResponse::not_found)?;
        let paste = self.database.find(&code).await?.ok_or_else(ErrorResponse::not_found)?;
        match paste.status {
            Status::InProgress => Err(ErrorResponse::in_progress()),
            Status::Processed => Ok((code, paste)),
        }
    }
}
