//! The console of the retry service: pages for people. It knows what the public API says and nothing else, so that it
//! works the same on every store.

mod api;
mod assets;
mod chart;
mod filter;
mod form;
mod frame;
mod mask;
mod pages;
mod protect;
mod session;
mod trouble;
mod visitor;
mod words;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};

use crate::api::Api;

/// The console's pages in front of the API's own routes: the overview at `/`, the rest under `/console/`. Everything else
/// goes through to `api`.
pub fn router(api: Router) -> Router {
    let passed = api.clone().layer(from_fn(session::lend));
    let api = Api::new(api);
    pages::routes()
        .layer(from_fn_with_state(api.clone(), trouble::frame))
        .layer(from_fn(session::seed))
        .layer(from_fn(protect::headers))
        .with_state(api)
        .fallback_service(passed)
}
