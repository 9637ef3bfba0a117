//! The web console of the retry service. It uses the public API only, so it works the same with every store.

mod api;
mod assets;
mod chart;
mod context;
mod error;
mod filter;
mod form;
mod layout;
mod mask;
mod pages;
mod session;
mod text;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;

use crate::api::ApiRoutes;

/// Puts the pages of the console before the routes of the API: the overview at `/`, the other pages under `/console/`. All
/// other requests go to `api`.
pub fn router(api: Router) -> Router {
    let api_routes = api.clone().layer(from_fn(session::authorize_reads));
    let api = ApiRoutes::new(api);
    pages::routes()
        .layer(from_fn_with_state(api.clone(), error::add_layout))
        .layer(from_fn(session::ensure_seed))
        .layer(from_fn(add_security_headers))
        .with_state(api)
        .fallback_service(api_routes)
}

/// Loads nothing from other sites, runs no inline scripts, and cannot be shown in a frame.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Adds the headers that every page has.
async fn add_security_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    let fixed = [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        // The forms of this console send their origin; other sites get no referrer.
        (header::REFERRER_POLICY, "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}
