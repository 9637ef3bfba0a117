//! Schedules of programs that use the library: list, show, pause, resume, run now.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use redrive::{ScheduleChange, ScheduleInfo};

use crate::api::Api;
use crate::auth::{AdminOfAll, Reader};
use crate::error::{Answer, Problem};
use crate::extract::{IfMatch, Json, PathParam, Query};
use crate::present;
use redrive_wire::page::{Page, PageQuery};
use redrive_wire::schedule::{ScheduleStatus, ScheduledRun};

/// Schedules, by name, each with its next five occurrences.
#[utoipa::path(get, operation_id = "listSchedules", path = "/v1/schedules", tag = "schedules", params(PageQuery),
    responses((status = 200, description = "a page of schedules", body = Page<ScheduleStatus>)))]
pub(super) async fn list(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    Query(query): Query<PageQuery>,
) -> Answer<Json<Page<ScheduleStatus>>> {
    let now = api.store.stats().await?.now;
    let visible = api.redrive.schedules().await?.into_iter().filter(|schedule| caller.sees(&schedule.tenant));
    let Page { items, next_cursor, examined } =
        Page::by_name(visible.collect(), &query, |schedule| &schedule.name)?;
    let items = items.into_iter().map(|schedule| present::schedule(schedule, now)).collect();
    Ok(Json(Page { items, next_cursor, examined }))
}

/// A schedule, with its next five occurrences.
///
/// The ETag changes when someone changes, pauses or resumes the schedule. Occurrences do not change it.
#[utoipa::path(get, operation_id = "getSchedule", path = "/v1/schedules/{name}", tag = "schedules",
    params(("name" = String, Path, description = "the schedule")),
    responses((status = 200, description = "the schedule", body = ScheduleStatus, headers(("ETag" = String)))))]
pub(super) async fn get(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    PathParam(name): PathParam<String>,
) -> Answer<Response> {
    let schedule = api.redrive.find_schedule(&name).await?.filter(|schedule| caller.sees(&schedule.tenant));
    let schedule = schedule.ok_or_else(|| no_schedule(&name))?;
    let now = api.store.stats().await?.now;
    Ok(([(header::ETAG, etag(&schedule))], Json(present::schedule(schedule, now))).into_response())
}

/// Pause a schedule: it enqueues nothing until it is resumed.
#[utoipa::path(post, operation_id = "pauseSchedule", path = "/v1/schedules/{name}/pause", tag = "schedules",
    params(
        ("name" = String, Path, description = "the schedule"),
        ("If-Match" = Option<String>, Header, description = "the ETag of the schedule to change, or *"),
    ),
    responses(
        (status = 204, description = "paused", headers(("ETag" = String))),
        (status = 412, description = "If-Match does not name the current version"),
    ))]
pub(super) async fn pause(
    _: AdminOfAll,
    State(api): State<Arc<Api>>,
    PathParam(name): PathParam<String>,
    if_match: IfMatch,
) -> Answer<Response> {
    set_paused(&api, &name, true, &if_match).await
}

/// Resume a schedule. Occurrences during the pause do not count as missed.
#[utoipa::path(post, operation_id = "resumeSchedule", path = "/v1/schedules/{name}/resume", tag = "schedules",
    params(
        ("name" = String, Path, description = "the schedule"),
        ("If-Match" = Option<String>, Header, description = "the ETag of the schedule to change, or *"),
    ),
    responses(
        (status = 204, description = "resumed", headers(("ETag" = String))),
        (status = 412, description = "If-Match does not name the current version"),
    ))]
pub(super) async fn resume(
    _: AdminOfAll,
    State(api): State<Arc<Api>>,
    PathParam(name): PathParam<String>,
    if_match: IfMatch,
) -> Answer<Response> {
    set_paused(&api, &name, false, &if_match).await
}

/// Enqueue the job of a schedule once, now, in addition to its occurrences.
#[utoipa::path(post, operation_id = "runSchedule", path = "/v1/schedules/{name}/run-now", tag = "schedules",
    params(("name" = String, Path, description = "the schedule")),
    responses((status = 200, description = "enqueued", body = ScheduledRun)))]
pub(super) async fn run_now(
    _: AdminOfAll,
    State(api): State<Arc<Api>>,
    PathParam(name): PathParam<String>,
) -> Answer<Json<ScheduledRun>> {
    let job = api.redrive.run_schedule_now(&name).await?.ok_or_else(|| no_schedule(&name))?;
    Ok(Json(ScheduledRun { job_id: job.to_string() }))
}

async fn set_paused(api: &Api, name: &str, paused: bool, if_match: &IfMatch) -> Answer<Response> {
    let may_change = |schedule: &ScheduleInfo| if_match.allows(Some(&etag(schedule)));
    match api.redrive.set_schedule_paused_if(name, paused, may_change).await? {
        ScheduleChange::Done(schedule) => {
            Ok((StatusCode::NO_CONTENT, [(header::ETAG, etag(&schedule))]).into_response())
        }
        ScheduleChange::Refused => Err(IfMatch::failed()),
        ScheduleChange::NotFound => Err(no_schedule(name)),
    }
}

fn etag(schedule: &ScheduleInfo) -> String {
    format!("\"{}\"", schedule.version)
}

fn no_schedule(name: &str) -> Problem {
    Problem::not_found("schedule", name)
}
