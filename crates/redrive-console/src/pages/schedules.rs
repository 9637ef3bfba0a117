//! Schedules: their next runs, and pause, resume and run now.

use askama::Template;
use axum::extract::Path;
use axum::http::Method;
use axum::response::{IntoResponse, Redirect};
use redrive_wire::page::Page as Listed;
use redrive_wire::schedule::{MissedRuns, ScheduleStatus, ScheduledRun};
use serde_json::json;

use super::Answer;
use crate::api::segment;
use crate::context::PageContext;
use crate::error::PageError;
use crate::form::VerifiedForm;
use crate::layout::{Layout, render};
use crate::text::{self, RelativeTime, now_ms};

#[derive(Template)]
#[template(path = "schedules.html")]
struct Page {
    layout: Layout,
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
    next: Option<RelativeTime>,
    later: String,
}

/// `GET /console/schedules`.
pub(super) async fn list(context: PageContext) -> Answer {
    let schedules: Listed<ScheduleStatus> = context.api.get_all("/schedules").await?;
    let now = now_ms();
    render(&Page {
        layout: context.layout("Schedules", "schedules"),
        rows: schedules.items.iter().map(|schedule| Row::of(schedule, now)).collect(),
        may_change: context.is_global_admin(),
    })
}

/// `POST /console/schedules/{action}`.
pub(super) async fn act(
    context: PageContext,
    Path(action): Path<String>,
    VerifiedForm(fields): VerifiedForm,
) -> Answer {
    let path = format!("/schedules/{}/{action}", segment(&fields.text("schedule")));
    let page = match action.as_str() {
        "run-now" => {
            let run: ScheduledRun = context.api.post(&path, &json!({})).await?;
            format!("/console/jobs/{}?done=schedule-run", segment(&run.job_id))
        }
        "pause" | "resume" => {
            context.api.send_json(Method::POST, &path, &json!({})).await?;
            format!("/console/schedules?done=schedule-{action}d")
        }
        _ => return Err(PageError::NotFound),
    };
    Ok(Redirect::to(&page).into_response())
}

impl Row {
    fn of(schedule: &ScheduleStatus, now: i64) -> Self {
        let later: Vec<String> = schedule.upcoming.iter().skip(1).map(|at| text::utc(*at)).collect();
        Self {
            name: schedule.name.clone(),
            kind: schedule.kind.clone(),
            queue: schedule.queue.clone(),
            tenant: schedule.tenant.clone(),
            timing: schedule.timing.clone(),
            missed: match schedule.missed {
                MissedRuns::Skip => "skip missed runs",
                MissedRuns::Once => "one run for all missed",
                MissedRuns::All => "every missed run",
            },
            paused: schedule.paused,
            next: schedule.upcoming.first().map(|at| RelativeTime::new(*at, now)),
            later: later.join(", "),
        }
    }
}
