//! The overview: what is wrong now, in words, then the figures and how they came.

use askama::Template;
use futures_util::future::join3;

use super::Answer;
use crate::ahead::{Overview, Point, Series, Wrong};
use crate::api::query;
use crate::chart::series::{Sort, Times, lines, stacked};
use crate::chart::{Figure, Unit, as_f64};
use crate::filter::STATES;
use crate::frame::{Frame, render};
use crate::visitor::Visitor;
use crate::words;

#[derive(Template)]
#[template(path = "overview.html")]
struct Page {
    frame: Frame,
    problems: Vec<Problem>,
    figures: Vec<(&'static str, String, String)>,
    states: Vec<(&'static str, String)>,
    hour: Vec<Figure>,
    day: Vec<Figure>,
}

/// Something that is wrong now.
struct Problem {
    class: &'static str,
    text: String,
    link: String,
}

/// `GET /`.
pub(super) async fn show(visitor: Visitor) -> Answer {
    let api = &visitor.api;
    let (overview, hour, day) = join3(
        api.get::<Overview>("/overview"),
        api.get::<Series>("/series?span=hour"),
        api.get::<Series>("/series?span=day"),
    )
    .await;
    let (overview, hour, day) = (overview?, hour?, day?);
    let count =
        |state: &&'static str| (*state, words::count(overview.jobs.get(*state).copied().unwrap_or_default()));
    render(&Page {
        frame: visitor.frame("Overview", "overview"),
        problems: overview.problems.iter().map(Problem::of).collect(),
        figures: figures(&overview),
        states: STATES.iter().map(count).collect(),
        hour: charts("hour", &hour, overview.now - 3_600_000, overview.now),
        day: charts("day", &day, overview.now - 86_400_000, overview.now),
    })
}

fn figures(overview: &Overview) -> Vec<(&'static str, String, String)> {
    let rates = &overview.attempts_per_second;
    let all = rates.succeeded + rates.retried + rates.exhausted + rates.other;
    let parts = [
        ("succeeded", rates.succeeded),
        ("retried", rates.retried),
        ("exhausted", rates.exhausted),
        ("other", rates.other),
    ];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(_, rate)| *rate > 0.0)
        .map(|(name, rate)| format!("{} {name}", words::decimal(*rate)))
        .collect();
    let lag = &overview.start_lag;
    vec![
        ("Attempts", format!("{}/s", words::decimal(all)), parts.join(", ")),
        (
            "Success rate",
            overview.success_rate.map_or_else(|| "–".to_owned(), words::per_cent),
            "of what ended".to_owned(),
        ),
        (
            "Start lag",
            words::span_or_dash(lag.p50_ms),
            format!("99 in 100 within {}", words::span_or_dash(lag.p99_ms)),
        ),
        (
            "Oldest due",
            overview.oldest_due_ms.map_or_else(|| "none waits".to_owned(), words::span),
            "how long the oldest due job waits".to_owned(),
        ),
    ]
}

fn charts(span: &str, series: &Series, from: i64, to: i64) -> Vec<Figure> {
    let points = &series.points;
    let times =
        Times { at: points.iter().map(|point| point.at).collect(), step_ms: series.step_ms, from, to };
    let sort = |label, class, value: fn(&Point) -> Option<f64>| Sort {
        label,
        class,
        values: points.iter().map(value).collect(),
    };
    let depth = |label: &'static str, class| Sort {
        label,
        class,
        values: points.iter().map(|point| point.jobs.get(label).map(|count| as_f64(*count))).collect(),
    };
    let id = |name: &str| format!("{name}-{span}");
    vec![
        stacked(
            &id("attempts"),
            "Attempts a second, by outcome",
            &times,
            &[
                sort("succeeded", "good", |point| Some(point.succeeded)),
                sort("retried", "warn", |point| Some(point.retried)),
                sort("exhausted", "bad", |point| Some(point.exhausted)),
                sort("other", "calm", |point| Some(point.other)),
            ],
            Unit::PerSecond,
        ),
        lines(
            &id("lag"),
            "Start lag",
            &times,
            &[
                sort("half within", "line-a", |point| point.start_lag_p50_ms.map(as_f64)),
                sort("99 in 100 within", "line-b", |point| point.start_lag_p99_ms.map(as_f64)),
            ],
            Unit::Span,
        ),
        stacked(
            &id("depth"),
            "Jobs that have not ended, by state",
            &times,
            &[
                depth("pending", "calm"),
                depth("retrying", "warn"),
                depth("running", "info"),
                depth("waiting", "more"),
            ],
            Unit::Count,
        ),
        lines(
            &id("oldest"),
            "Wait of the oldest due job",
            &times,
            &[sort("oldest due", "line-a", |point| point.oldest_due_ms.map(as_f64))],
            Unit::Span,
        ),
    ]
}

impl Problem {
    fn of(wrong: &Wrong) -> Self {
        let path = match wrong.page.as_str() {
            "tasks" => "/console/tasks",
            "jobs" => "/console/jobs",
            "dead" => "/console/dead",
            "origins" if wrong.query.contains_key("origin") => "/console/origins/of",
            "origins" => "/console/origins",
            "queues" => "/console/queues",
            "nodes" => "/console/nodes",
            "schedules" => "/console/schedules",
            "operations" => "/console/operations",
            "policies" => "/console/policies",
            _ => "/",
        };
        Self {
            class: if wrong.severity == "bad" { "bad" } else { "warn" },
            text: wrong.text.clone(),
            link: query(path, wrong.query.iter().map(|(name, value)| (name.as_str(), value.as_str()))),
        }
    }
}
