//! Every route, one file for each noun.

mod batch;
mod bodies;
mod dead_letters;
mod docs;
mod events;
mod health;
mod jobs;
mod keys;
mod me;
mod metrics;
mod names;
mod nodes;
mod operations;
mod origins;
mod overview;
mod policies;
mod queues;
mod schedules;
mod series;
mod sessions;
mod signals;
mod signing_secrets;
mod tasks;
mod why;

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::{Extension, Router};
use tokio::time::Instant;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::Api;
use crate::error::{Code, Problem};
use crate::openapi;
use crate::origin_check::refuse_foreign;

/// Bytes of a request's JSON; a larger body is uploaded first.
pub(crate) const REQUEST_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Bytes of the JSON of a batch.
pub(crate) const BATCH_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The router of all routes, and the document that describes them.
pub(crate) fn router(api: Arc<Api>) -> Router {
    let (router, document) = described().split_for_parts();
    let document = openapi::finish(document);
    names::serve_words_as_names(router, &document, &api)
        .fallback(async || Problem::new(Code::NotFound, "there is no such path; GET /docs lists them"))
        .method_not_allowed_fallback(async || {
            Problem::new(Code::MethodNotAllowed, "the path does not have this method; see the header Allow")
        })
        .layer(Extension(docs::Document::new(&document)))
        .layer(from_fn_with_state(api.clone(), refuse_foreign))
        .layer(from_fn_with_state(api.clone(), measure))
        .with_state(api)
}

/// The routes with what the code says about them.
pub(crate) fn described() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::with_openapi(openapi::outline())
        .merge(about_tasks())
        .merge(about_jobs())
        .merge(about_dead_letters())
        .merge(about_policies())
        .merge(about_the_service())
}

fn about_tasks() -> OpenApiRouter<Arc<Api>> {
    let batch = OpenApiRouter::new().routes(routes!(batch::create));
    OpenApiRouter::new()
        .routes(routes!(tasks::create, tasks::list))
        .merge(batch.layer(DefaultBodyLimit::max(BATCH_BYTES_MAX)))
        .routes(routes!(tasks::get, tasks::cancel))
        .routes(routes!(tasks::attempts))
        .routes(routes!(tasks::redrive))
        .routes(routes!(tasks::run_now))
        .routes(routes!(why::of_task))
        .routes(routes!(bodies::put))
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
}

fn about_jobs() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(jobs::list))
        .routes(routes!(jobs::count))
        .routes(routes!(jobs::get))
        .routes(routes!(jobs::attempts))
        .routes(routes!(jobs::steps))
        .routes(routes!(why::of_job))
        .routes(routes!(jobs::cancel))
        .routes(routes!(jobs::redrive))
        .routes(routes!(jobs::run_now))
        .routes(routes!(jobs::pause))
        .routes(routes!(jobs::resume))
        .routes(routes!(jobs::discard))
        .routes(routes!(signals::send))
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
}

fn about_dead_letters() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(dead_letters::list))
        .routes(routes!(dead_letters::groups))
        .routes(routes!(dead_letters::redrive))
        .routes(routes!(dead_letters::discard))
        .routes(routes!(operations::create, operations::list))
        .routes(routes!(operations::get, operations::stop))
}

fn about_policies() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(policies::register, policies::list))
        .routes(routes!(policies::preview))
        .routes(routes!(policies::replay))
        .routes(routes!(policies::get, policies::put, policies::delete))
}

fn about_the_service() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(me::me))
        .routes(routes!(overview::overview))
        .routes(routes!(keys::create, keys::list))
        .routes(routes!(keys::revoke))
        .routes(routes!(sessions::open))
        .routes(routes!(sessions::end))
        .routes(routes!(signing_secrets::list))
        .routes(routes!(signing_secrets::put, signing_secrets::remove))
        .routes(routes!(signing_secrets::retire))
        .routes(routes!(origins::list))
        .routes(routes!(series::of_origin))
        .routes(routes!(series::of_service))
        .routes(routes!(nodes::list))
        .routes(routes!(queues::list))
        .routes(routes!(queues::pause))
        .routes(routes!(queues::resume))
        .routes(routes!(queues::limit, queues::unlimit))
        .routes(routes!(schedules::list))
        .routes(routes!(schedules::pause))
        .routes(routes!(schedules::resume))
        .routes(routes!(schedules::run_now))
        .routes(routes!(events::listen))
        .routes(routes!(metrics::metrics))
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(docs::openapi))
        .routes(routes!(docs::docs))
}

/// Counts each request by its route, not by its path: paths are as many as tasks.
async fn measure(
    State(api): State<Arc<Api>>,
    route: Option<MatchedPath>,
    request: Request,
    next: Next,
) -> Response {
    let (began, method) = (Instant::now(), method_label(request.method()));
    let response = next.run(request).await;
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    api.metrics.request(method, route, response.status().as_u16(), began.elapsed());
    response
}

/// Callers invent methods; labels must not grow with them.
fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}
