//! Origins: how each fares, where its gate stands, and how that came.

use askama::Template;
use futures_util::future::join;
use redrive_server::wire::origin::{GateState, OriginGate, Origins};
use redrive_server::wire::series::{OriginPoint, OriginSeries};

use super::Answer;
use crate::api::query;
use crate::chart::series::{Sort, Times, lines, stacked};
use crate::chart::{Figure, Unit, as_f64};
use crate::filter::{DELIVERY, Filter};
use crate::frame::{Frame, render};
use crate::trouble::Trouble;
use crate::visitor::Visitor;
use crate::words::{self, now_ms};

#[derive(Template)]
#[template(path = "origins.html")]
struct Page {
    frame: Frame,
    rows: Vec<Row>,
}

#[derive(Template)]
#[template(path = "origin.html")]
struct One {
    frame: Frame,
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
pub(super) async fn list(visitor: Visitor) -> Answer {
    let origins: Origins = visitor.api.get("/origins").await?;
    let mut rows: Vec<Row> = origins.items.iter().map(Row::of).collect();
    // What is wrong comes first.
    rows.sort_by_key(|row| row.class == "good");
    render(&Page { frame: visitor.frame("Origins", "origins"), rows })
}

/// `GET /console/origins/of?origin=`.
pub(super) async fn show(visitor: Visitor) -> Answer {
    let origin = visitor.query.get("origin").ok_or(Trouble::NoPage)?.to_owned();
    let day = visitor.query.get("span") == Some("day");
    let span = if day { "day" } else { "hour" };
    let path = query("/origins/series", [("origin", origin.as_str()), ("span", span)]);
    let (origins, series) =
        join(visitor.api.get::<Origins>("/origins"), visitor.api.get::<OriginSeries>(&path)).await;
    let (origins, series) = (origins?, series?);
    let link = |span: &str| query("/console/origins/of", [("origin", origin.as_str()), ("span", span)]);
    let tasks = Filter { kind: DELIVERY.to_owned(), subject: origin.clone(), ..Filter::default() };
    render(&One {
        frame: visitor.frame(format!("Origin {origin}"), "origins"),
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
    let times = Times {
        at: points.iter().map(|point| point.at).collect(),
        step_ms: series.step_ms,
        from: now - span,
        to: now,
    };
    let sort = |label, class, value: fn(&OriginPoint) -> Option<f64>| Sort {
        label,
        class,
        values: points.iter().map(value).collect(),
    };
    let calls = [
        sort("limit", "line-b", |point| Some(as_f64(point.limit))),
        sort("under way", "line-a", |point| Some(as_f64(point.in_flight))),
    ];
    let latency = [sort("smoothed", "line-a", |point| point.latency_ms.map(as_f64))];
    let answers = [
        sort("answered", "good", |point| Some(as_f64(point.answered))),
        sort("failed", "bad", |point| Some(as_f64(point.failed))),
    ];
    vec![
        lines("limit", "Calls at once: the gate's limit and what is under way", &times, &calls, Unit::Count),
        lines("latency", "Latency", &times, &latency, Unit::Span),
        stacked("answers", "Answers and failures of late", &times, &answers, Unit::Count),
    ]
}

impl Row {
    fn of(gate: &OriginGate) -> Self {
        let (state, class) = match gate.state {
            GateState::Open => ("open", if gate.failed > gate.answered { "warn" } else { "good" }),
            GateState::Closed => ("closed", "bad"),
            GateState::Probing => ("probing", "warn"),
            GateState::Held => ("held", "warn"),
        };
        Self {
            link: query("/console/origins/of", [("origin", gate.origin.as_str())]),
            origin: gate.origin.clone(),
            state,
            class,
            sentence: sentence(gate),
            limit: gate.limit,
            in_flight: gate.in_flight,
            waiting: gate.waiting,
            latency: words::span_or_dash(gate.latency_ms),
            recent: format!("{} answered, {} failed", gate.answered, gate.failed),
        }
    }
}

fn sentence(gate: &OriginGate) -> String {
    let since = gate.closed_for_ms.map(|ms| format!(" for {}", words::span(ms))).unwrap_or_default();
    let until =
        gate.opens_in_ms.map(|ms| format!("; a call may go in {}", words::span(ms))).unwrap_or_default();
    match gate.state {
        GateState::Open => "calls go, up to the limit".to_owned(),
        GateState::Closed => format!("it failed too often and is left alone{since}{until}"),
        GateState::Probing => format!("one call is finding out whether it works again; closed{since}"),
        GateState::Held => format!("it asked to be left alone{until}"),
    }
}
