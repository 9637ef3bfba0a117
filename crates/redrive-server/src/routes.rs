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
mod reference;
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
use crate::error::Problem;
use crate::openapi;
use crate::origin_check::reject_foreign;
use redrive_wire::Code;

/// The maximum size of a JSON request. A larger body is uploaded first, with `PUT /v1/bodies`.
pub(crate) const REQUEST_BYTES_MAX: usize = 2 * 1024 * 1024;
/// The maximum size of the JSON request of a batch.
pub(crate) const BATCH_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The router of all routes, and the document that describes them.
pub(crate) fn router(api: Arc<Api>) -> Router {
    let (router, document) = documented_routes().split_for_parts();
    let document = openapi::finish(document);
    let router =
        names::serve_words_as_names(router, &document, &api).method_not_allowed_fallback(async || {
            let detail = "this path does not support the method; see the header Allow";
            Problem::new(Code::MethodNotAllowed, detail)
        });
    let v1: Router = router.clone().with_state(api.clone());
    router
        .fallback(move |request: Request| reference::serve(v1.clone(), request))
        .layer(Extension(docs::Document::new(&document)))
        .layer(from_fn_with_state(api.clone(), reject_foreign))
        .layer(from_fn_with_state(api.clone(), measure))
        .with_state(api)
}

/// The routes with their OpenAPI descriptions.
fn documented_routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::with_openapi(openapi::outline())
        .merge(task_routes())
        .merge(job_routes())
        .merge(dead_letter_routes())
        .merge(policy_routes())
        .merge(service_routes())
}

fn task_routes() -> OpenApiRouter<Arc<Api>> {
    let batch = OpenApiRouter::new().routes(routes!(batch::create));
    OpenApiRouter::new()
        .routes(routes!(tasks::create, tasks::list))
        .merge(batch.layer(DefaultBodyLimit::max(BATCH_BYTES_MAX)))
        .routes(routes!(tasks::get))
        .routes(routes!(tasks::cancel))
        .routes(routes!(tasks::attempts))
        .routes(routes!(tasks::redrive))
        .routes(routes!(tasks::run_now))
        .routes(routes!(why::of_task))
        .routes(routes!(bodies::put))
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
}

fn job_routes() -> OpenApiRouter<Arc<Api>> {
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

fn dead_letter_routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(dead_letters::list))
        .routes(routes!(dead_letters::groups))
        .routes(routes!(operations::create, operations::list))
        .routes(routes!(operations::get))
        .routes(routes!(operations::cancel))
}

fn policy_routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(policies::register, policies::list))
        .routes(routes!(policies::preview))
        .routes(routes!(policies::replay))
        .routes(routes!(policies::get, policies::put, policies::delete))
}

fn service_routes() -> OpenApiRouter<Arc<Api>> {
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
        .routes(routes!(queues::limits, queues::set_limits, queues::remove_limits))
        .routes(routes!(schedules::list))
        .routes(routes!(schedules::get))
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

/// Counts each request by its route, not by its path: with a label for each path, every task would add a series.
async fn measure(
    State(api): State<Arc<Api>>,
    route: Option<MatchedPath>,
    request: Request,
    next: Next,
) -> Response {
    let (began, method) = (Instant::now(), method_label(request.method()));
    let alias = reference::label(request.uri().path());
    let response = next.run(request).await;
    let route = route.as_ref().map_or(alias, MatchedPath::as_str);
    api.metrics.request(method, route, response.status().as_u16(), began.elapsed());
    response
}

/// The label of a method. Callers can send any method, so all unknown ones share one label.
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
