//! The pages of the console, and their routes.

mod bulk_action;
mod dead;
mod job;
mod job_action;
mod keys;
mod list;
mod nodes;
pub(crate) mod notice;
mod operations;
mod origins;
mod overview;
mod policies;
mod policy_designer;
mod policy_form;
mod queues;
mod schedules;
mod sign_in;
mod step_tree;

use askama::Template;
use axum::Router;
use axum::response::{Redirect, Response};
use axum::routing::{any, get, post};

use crate::api::ApiRoutes;
use crate::assets;
use crate::context::PageContext;
use crate::error::PageError;
use crate::layout::{Layout, render};

/// The result of a page.
pub(crate) type Answer = Result<Response, PageError>;

/// The routes of all pages.
pub(crate) fn routes() -> Router<ApiRoutes> {
    Router::new()
        .route("/", get(overview::show))
        .route("/console", get(async || Redirect::to("/")))
        .route("/console/assets/{file}", get(assets::get))
        .route("/console/help", get(show_help))
        .route("/console/sign-in", get(sign_in::show).post(sign_in::sign_in))
        .route("/console/sign-out", post(sign_in::sign_out))
        .merge(job_routes())
        .merge(service_routes())
        .route("/console/{*rest}", any(async || PageError::NotFound))
        .method_not_allowed_fallback(async || PageError::NotFound)
}

fn job_routes() -> Router<ApiRoutes> {
    Router::new()
        .route("/console/tasks", get(list::tasks))
        .route("/console/tasks/{id}", get(job::show))
        .route("/console/jobs", get(list::jobs))
        .route("/console/jobs/{id}", get(job::show))
        .route("/console/jobs/{id}/{action}", post(job_action::on_one))
        .route("/console/act", post(job_action::on_selected))
        .route("/console/bulk", get(bulk_action::confirm).post(bulk_action::start))
        .route("/console/dead", get(dead::show))
        .route("/console/operations", get(operations::list))
        .route("/console/operations/{id}", get(operations::show))
        .route("/console/operations/{id}/cancel", post(operations::cancel))
}

fn service_routes() -> Router<ApiRoutes> {
    Router::new()
        .route("/console/policies", get(policies::list))
        .route("/console/policies/remove", post(policies::remove))
        .route("/console/policies/design", get(policy_designer::show))
        .route("/console/policies/draw", post(policy_designer::draw))
        .route("/console/policies/save", post(policy_designer::save))
        .route("/console/origins", get(origins::list))
        .route("/console/origins/show", get(origins::show))
        .route("/console/queues", get(queues::list))
        .route("/console/queues/limits", post(queues::set_limits))
        .route("/console/queues/{action}", post(queues::act))
        .route("/console/schedules", get(schedules::list))
        .route("/console/schedules/{action}", post(schedules::act))
        .route("/console/nodes", get(nodes::list))
        .route("/console/keys", get(keys::list).post(keys::create))
        .route("/console/keys/{id}/revoke", post(keys::revoke))
}

#[derive(Template)]
#[template(path = "help.html")]
struct HelpPage {
    layout: Layout,
}

/// `GET /console/help`.
async fn show_help(context: PageContext) -> Answer {
    render(&HelpPage { layout: context.layout("Keyboard and help", "help") })
}
