//! The overview: what is wrong now, in words, then the figures and how they came.

use askama::Template;
use futures_util::future::join3;
use redrive_server::wire::overview::{Overview, Severity, Trouble as Wrong};
use redrive_server::wire::series::{Series, SeriesPoint};

use super::Answer;
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
    /// None for one tenant: the numbers over time are of all together.
    charts: Vec<(&'static str, Vec<Figure>)>,
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
        charts: match visitor.me.tenant {
            Some(_) => Vec::new(),
            None => vec![
                ("Last hour", charts("hour", &hour, overview.now - 3_600_000, overview.now)),
                ("Last day", charts("day", &day, overview.now - 86_400_000, overview.now)),
            ],
        },
    })
}

fn figures(overview: &Overview) -> Vec<(&'static str, String, String)> {
    let mut figures = Vec::new();
    if let Some(rates) = &overview.attempts_per_second {
        let parts = [
            ("succeeded", rates.succeeded),
            ("retried", rates.retried),
            ("exhausted", rates.exhausted),
            ("other", rates.other),
        ];
        let all: f64 = parts.iter().map(|(_, rate)| rate).sum();
        let there = parts.iter().filter(|(_, rate)| *rate > 0.0);
        let said: Vec<String> =
            there.map(|(name, rate)| format!("{} {name}", words::decimal(*rate))).collect();
        figures.push(("Attempts", format!("{}/s", words::decimal(all)), said.join(", ")));
    }
    let success = overview.success_rate.map_or_else(|| "–".to_owned(), words::per_cent);
    figures.push(("Success rate", success, "of attempts in five minutes".to_owned()));
    let lag = &overview.start_lag;
    let late = format!("99 in 100 within {}", words::span_or_dash(lag.p99_ms));
    figures.push(("Start lag", words::span_or_dash(lag.p50_ms), late));
    let oldest = overview.oldest_due_ms.map_or_else(|| "none waits".to_owned(), words::span);
    figures.push(("Oldest due", oldest, "the job that waits for longest".to_owned()));
    figures
}

fn charts(span: &str, series: &Series, from: i64, to: i64) -> Vec<Figure> {
    let points = &series.points;
    let times =
        Times { at: points.iter().map(|point| point.at).collect(), step_ms: series.step_ms, from, to };
    let plot = Plot { points, times, span };
    vec![plot.attempts(), plot.lag(), plot.depth(), plot.oldest()]
}

/// The points of a span, and what is drawn of them.
struct Plot<'a> {
    points: &'a [SeriesPoint],
    times: Times,
    span: &'a str,
}

impl Plot<'_> {
    fn attempts(&self) -> Figure {
        let seconds = as_f64(self.times.step_ms.unsigned_abs()) / 1000.0;
        let sort = |label, class, count: fn(&SeriesPoint) -> u64| {
            self.sort(label, class, |point| Some(as_f64(count(point)) / seconds))
        };
        let sorts = [
            sort("succeeded", "good", |point| point.succeeded),
            sort("retried", "warn", |point| point.retried),
            sort("exhausted", "bad", |point| point.exhausted),
            sort("other", "calm", |point| point.other),
        ];
        stacked(&self.id("attempts"), "Attempts a second, by outcome", &self.times, &sorts, Unit::PerSecond)
    }

    fn lag(&self) -> Figure {
        let sorts = [
            self.sort("half within", "line-a", |point| point.start_lag_p50_ms.map(as_f64)),
            self.sort("99 in 100 within", "line-b", |point| point.start_lag_p99_ms.map(as_f64)),
        ];
        lines(&self.id("lag"), "Start lag", &self.times, &sorts, Unit::Span)
    }

    fn depth(&self) -> Figure {
        let depth = |label: &'static str, class| {
            self.sort(label, class, |point| Some(as_f64(point.jobs.get(label).copied().unwrap_or_default())))
        };
        let sorts = [
            depth("pending", "calm"),
            depth("retrying", "warn"),
            depth("running", "info"),
            depth("waiting", "more"),
        ];
        stacked(&self.id("depth"), "Jobs that have not ended, by state", &self.times, &sorts, Unit::Count)
    }

    fn oldest(&self) -> Figure {
        let sorts = [self.sort("oldest due", "line-a", |point| point.oldest_due_ms.map(as_f64))];
        lines(&self.id("oldest"), "Wait of the oldest due job", &self.times, &sorts, Unit::Span)
    }

    fn sort(
        &self,
        label: &'static str,
        class: &'static str,
        value: impl Fn(&SeriesPoint) -> Option<f64>,
    ) -> Sort {
        Sort { label, class, values: self.points.iter().map(value).collect() }
    }

    fn id(&self, name: &str) -> String {
        format!("{name}-{}", self.span)
    }
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
            class: match wrong.severity {
                Severity::Bad => "bad",
                Severity::Warn => "warn",
            },
            text: words::capital(&wrong.text),
            link: query(path, wrong.query.iter().map(|(name, value)| (name.as_str(), value.as_str()))),
        }
    }
}
