//! Origins: the state of each gate, its calls and its latency.

use askama::Template;
use futures_util::future::join;
use redrive_wire::origin::{GateState, OriginGate};
use redrive_wire::page::Page as Listed;
use redrive_wire::series::{OriginPoint, OriginSeries};

use super::Answer;
use crate::api::query;
use crate::chart::series::{DataSeries, TimeAxis, lines, stacked};
use crate::chart::{Figure, Unit, as_f64};
use crate::context::PageContext;
use crate::error::PageError;
use crate::filter::{DELIVERY, Filter};
use crate::layout::{Layout, render};
use crate::text::{self, now_ms};

#[derive(Template)]
#[template(path = "origins.html")]
struct Page {
    layout: Layout,
    rows: Vec<Row>,
}

#[derive(Template)]
#[template(path = "origin.html")]
struct OriginPage {
    layout: Layout,
    origin: String,
    row: Option<Row>,
    day: bool,
    charts: Vec<Figure>,
    hour_link: String,
    day_link: String,
    tasks: String,
}

struct Row {
    origin: String,
    link: String,
    state: &'static str,
    class: &'static str,
    sentence: String,
    limit: u32,
    in_flight: u32,
    waiting: u64,
    latency: String,
    recent: String,
}

/// `GET /console/origins`.
pub(super) async fn list(context: PageContext) -> Answer {
    let origins: Listed<OriginGate> = context.api.get_all("/origins").await?;
    let mut rows: Vec<Row> = origins.items.iter().map(Row::of).collect();
    // Problems come first.
    rows.sort_by_key(|row| row.class == "good");
    render(&Page { layout: context.layout("Origins", "origins"), rows })
}

/// `GET /console/origins/show?origin=`.
pub(super) async fn show(context: PageContext) -> Answer {
    let origin = context.query.get("origin").ok_or(PageError::NotFound)?.to_owned();
    let day = context.query.get("span") == Some("day");
    let span = if day { "day" } else { "hour" };
    let path = query("/origins/series", [("origin", origin.as_str()), ("span", span)]);
    let origins = context.api.get_all::<Listed<OriginGate>>("/origins");
    let (origins, series) = join(origins, context.api.get::<OriginSeries>(&path)).await;
    let (origins, series) = (origins?, series?);
    let link = |span: &str| query("/console/origins/show", [("origin", origin.as_str()), ("span", span)]);
    let tasks = Filter { kind: DELIVERY.to_owned(), target: origin.clone(), ..Filter::default() };
    render(&OriginPage {
        layout: context.layout(format!("Origin {origin}"), "origins"),
        row: origins.items.iter().find(|gate| gate.origin == origin).map(Row::of),
        charts: charts(&series, now_ms(), day),
        day,
        hour_link: link("hour"),
        day_link: link("day"),
        tasks: tasks.link("/console/tasks", &[]),
        origin,
    })
}

fn charts(series: &OriginSeries, now: i64, day: bool) -> Vec<Figure> {
    let points = &series.points;
    let span = if day { 86_400_000 } else { 3_600_000 };
    let times = TimeAxis {
        at: points.iter().map(|point| point.at).collect(),
        step_ms: series.step_ms,
        from: now - span,
        to: now,
    };
    let series_of = |label, class, value: fn(&OriginPoint) -> Option<f64>| DataSeries {
        label,
        class,
        values: points.iter().map(value).collect(),
    };
    let calls = [
        series_of("limit", "line-b", |point| Some(as_f64(point.limit))),
        series_of("calls", "line-a", |point| Some(as_f64(point.in_flight))),
    ];
    let latency = [series_of("smoothed", "line-a", |point| point.latency_ms.map(as_f64))];
    let answers = [
        series_of("answered", "good", |point| Some(as_f64(point.answered))),
        series_of("failed", "bad", |point| Some(as_f64(point.failed))),
    ];
    vec![
        lines("limit", "Concurrent calls, and the limit of the gate", &times, &calls, Unit::Count),
        lines("latency", "Latency", &times, &latency, Unit::Duration),
        stacked("answers", "Answers and failures", &times, &answers, Unit::Count),
    ]
}

impl Row {
    fn of(gate: &OriginGate) -> Self {
        let (state, class) = match gate.state {
            GateState::Passing => ("passing", if gate.failed > gate.answered { "warn" } else { "good" }),
            GateState::Blocked => ("blocked", "bad"),
            GateState::Probing => ("probing", "warn"),
            GateState::Held => ("held", "warn"),
        };
        Self {
            link: query("/console/origins/show", [("origin", gate.origin.as_str())]),
            origin: gate.origin.clone(),
            state,
            class,
            sentence: sentence(gate),
            limit: gate.limit,
            in_flight: gate.in_flight,
            waiting: gate.waiting,
            latency: text::duration_or_dash(gate.latency_ms),
            recent: format!("{} answered, {} failed", gate.answered, gate.failed),
        }
    }
}

fn sentence(gate: &OriginGate) -> String {
    let since = gate.blocked_for_ms.map(|ms| format!(" for {}", text::duration(ms))).unwrap_or_default();
    let until =
        gate.next_call_in_ms.map(|ms| format!("; next call in {}", text::duration(ms))).unwrap_or_default();
    match gate.state {
        GateState::Passing => "calls go through, up to the limit".to_owned(),
        GateState::Blocked => format!("the origin failed too often: calls are blocked{since}{until}"),
        GateState::Probing => format!("one call tests whether the origin works again; blocked{since}"),
        GateState::Held => format!("the origin asked for a pause{until}"),
    }
}
