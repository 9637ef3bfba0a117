//! Every page of the console, one file for each, and the routes to them.

mod act;
mod bulk;
mod dead;
mod design;
mod designer;
mod help;
mod job;
mod keys;
mod list;
mod nodes;
pub(crate) mod notice;
mod operations;
mod origins;
mod overview;
mod policies;
mod queues;
mod schedules;
mod sign_in;
mod tree;

use axum::Router;
use axum::response::{Redirect, Response};
use axum::routing::{any, get, post};

use crate::api::Api;
use crate::assets;
use crate::trouble::Trouble;

/// What a page answers with.
pub(crate) type Answer = Result<Response, Trouble>;

/// The routes to all pages.
pub(crate) fn routes() -> Router<Api> {
    Router::new()
        .route("/", get(overview::show))
        .route("/console", get(async || Redirect::to("/")))
        .route("/console/assets/{file}", get(assets::get))
        .route("/console/help", get(help::show))
        .route("/console/sign-in", get(sign_in::show).post(sign_in::enter))
        .route("/console/sign-out", post(sign_in::leave))
        .merge(about_jobs())
        .merge(about_the_service())
        .route("/console/{*rest}", any(async || Trouble::NoPage))
        .method_not_allowed_fallback(async || Trouble::NoPage)
}

fn about_jobs() -> Router<Api> {
    Router::new()
        .route("/console/tasks", get(list::tasks))
        .route("/console/tasks/{id}", get(job::show))
        .route("/console/jobs", get(list::jobs))
        .route("/console/jobs/{id}", get(job::show))
        .route("/console/jobs/{id}/{verb}", post(act::on_one))
        .route("/console/act", post(act::on_selected))
        .route("/console/bulk", get(bulk::ask).post(bulk::begin))
        .route("/console/dead", get(dead::show))
        .route("/console/operations", get(operations::list))
        .route("/console/operations/{id}", get(operations::show))
        .route("/console/operations/{id}/stop", post(operations::stop))
}

fn about_the_service() -> Router<Api> {
    Router::new()
        .route("/console/policies", get(policies::list))
        .route("/console/policies/remove", post(policies::remove))
        .route("/console/policies/design", get(designer::show))
        .route("/console/policies/draw", post(designer::draw))
        .route("/console/policies/save", post(designer::save))
        .route("/console/origins", get(origins::list))
        .route("/console/origins/of", get(origins::show))
        .route("/console/queues", get(queues::list))
        .route("/console/queues/quota", post(queues::limit))
        .route("/console/queues/{verb}", post(queues::act))
        .route("/console/schedules", get(schedules::list))
        .route("/console/schedules/{verb}", post(schedules::act))
        .route("/console/nodes", get(nodes::list))
        .route("/console/keys", get(keys::list).post(keys::create))
        .route("/console/keys/{id}/revoke", post(keys::revoke))
}
