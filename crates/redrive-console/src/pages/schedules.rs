//! Schedules: what comes when, and how to hold or hasten it.

use askama::Template;
use axum::extract::Path;
use axum::http::Method;
use axum::response::{IntoResponse, Redirect};
use redrive_server::wire::schedule::{MissedRuns, ScheduleStatus, ScheduledRun, Schedules};
use serde_json::json;

use super::Answer;
use crate::api::segment;
use crate::form::Posted;
use crate::frame::{Frame, render};
use crate::trouble::Trouble;
use crate::visitor::Visitor;
use crate::words::{self, Moment, now_ms};

#[derive(Template)]
#[template(path = "schedules.html")]
struct Page {
    frame: Frame,
    rows: Vec<Row>,
    may_change: bool,
}

struct Row {
    name: String,
    kind: String,
    queue: String,
    tenant: Option<String>,
    timing: String,
    missed: &'static str,
    paused: bool,
    next: Option<Moment>,
    later: String,
}

/// `GET /console/schedules`.
pub(super) async fn list(visitor: Visitor) -> Answer {
    let schedules: Schedules = visitor.api.get("/schedules").await?;
    let now = now_ms();
    render(&Page {
        frame: visitor.frame("Schedules", "schedules"),
        rows: schedules.items.iter().map(|schedule| Row::of(schedule, now)).collect(),
        may_change: visitor.administers_all(),
    })
}

/// `POST /console/schedules/{verb}`.
pub(super) async fn act(visitor: Visitor, Path(verb): Path<String>, Posted(fields): Posted) -> Answer {
    let path = format!("/schedules/{}/{verb}", segment(&fields.text("schedule")));
    let page = match verb.as_str() {
        "run-now" => {
            let begun: ScheduledRun = visitor.api.post(&path, &json!({})).await?;
            format!("/console/jobs/{}?done=schedule-run", segment(&begun.job_id))
        }
        "pause" | "resume" => {
            visitor.api.send_json(Method::POST, &path, &json!({})).await?;
            format!("/console/schedules?done=schedule-{verb}d")
        }
        _ => return Err(Trouble::NoPage),
    };
    Ok(Redirect::to(&page).into_response())
}

impl Row {
    fn of(schedule: &ScheduleStatus, now: i64) -> Self {
        let later: Vec<String> = schedule.upcoming.iter().skip(1).map(|at| words::utc(*at)).collect();
        Self {
            name: schedule.name.clone(),
            kind: schedule.kind.clone(),
            queue: schedule.queue.clone(),
            tenant: schedule.tenant.clone(),
            timing: schedule.timing.clone(),
            missed: match schedule.missed {
                MissedRuns::Skip => "are left out",
                MissedRuns::Once => "run once for all",
                MissedRuns::All => "run one by one",
            },
            paused: schedule.paused,
            next: schedule.upcoming.first().map(|at| Moment::seen(*at, now)),
            later: later.join(", "),
        }
    }
}
