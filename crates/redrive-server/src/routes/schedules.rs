//! Schedules of programs that use the library: look, let them stand still, run one out of turn.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;

use crate::api::Api;
use crate::auth::{AdminOfAll, Reader};
use crate::error::{Answer, Problem};
use crate::extract::{Json, Named};
use crate::wire::schedule::{ScheduleStatus, ScheduledRun, Schedules};

/// Every schedule, with its next five occurrences.
#[utoipa::path(get, operation_id = "listSchedules", path = "/schedules", tag = "schedules",
    responses((status = 200, description = "the schedules", body = Schedules)))]
pub(super) async fn list(Reader(caller): Reader, State(api): State<Arc<Api>>) -> Answer<Json<Schedules>> {
    let now = api.store.stats().await?.now;
    let scheduled = api.redrive.schedules().await?.into_iter();
    let theirs = scheduled.filter(|scheduled| caller.sees(&scheduled.tenant));
    Ok(Json(Schedules { items: theirs.map(|scheduled| ScheduleStatus::show(scheduled, now)).collect() }))
}

/// Let a schedule stand still.
#[utoipa::path(post, operation_id = "pauseSchedule", path = "/schedules/{name}/pause", tag = "schedules",
    params(("name" = String, Path, description = "the schedule")),
    responses((status = 204, description = "it stands still")))]
pub(super) async fn pause(
    _: AdminOfAll,
    State(api): State<Arc<Api>>,
    Named(name): Named<String>,
) -> Answer<StatusCode> {
    found(&name, api.redrive.pause_schedule(&name).await?)
}

/// Let a schedule go on; what would have been due while it stood still was not missed.
#[utoipa::path(post, operation_id = "resumeSchedule", path = "/schedules/{name}/resume", tag = "schedules",
    params(("name" = String, Path, description = "the schedule")),
    responses((status = 204, description = "it goes on")))]
pub(super) async fn resume(
    _: AdminOfAll,
    State(api): State<Arc<Api>>,
    Named(name): Named<String>,
) -> Answer<StatusCode> {
    found(&name, api.redrive.resume_schedule(&name).await?)
}

/// Run a schedule's task once more, now; its occurrences stay what they are.
#[utoipa::path(post, operation_id = "runSchedule", path = "/schedules/{name}/run-now", tag = "schedules",
    params(("name" = String, Path, description = "the schedule")),
    responses((status = 200, description = "enqueued", body = ScheduledRun)))]
pub(super) async fn run_now(
    _: AdminOfAll,
    State(api): State<Arc<Api>>,
    Named(name): Named<String>,
) -> Answer<Json<ScheduledRun>> {
    let job = api.redrive.run_schedule(&name).await?.ok_or_else(|| nothing(&name))?;
    Ok(Json(ScheduledRun { job_id: job.to_string() }))
}

fn found(name: &str, there: bool) -> Answer<StatusCode> {
    if there { Ok(StatusCode::NO_CONTENT) } else { Err(nothing(name)) }
}

fn nothing(name: &str) -> Problem {
    Problem::not_found("schedule", name)
}
