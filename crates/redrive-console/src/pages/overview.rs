//! The overview: current problems, figures and charts.

use askama::Template;
use futures_util::future::join3;
use redrive_wire::overview::{CurrentProblem, Overview, ProblemSeverity};
use redrive_wire::series::{Series, SeriesPoint};

use super::Answer;
use crate::api::query;
use crate::chart::series::{DataSeries, TimeAxis, lines, stacked};
use crate::chart::{Figure, Unit, as_f64};
use crate::context::PageContext;
use crate::filter::STATES;
use crate::layout::{Layout, render};
use crate::text;

#[derive(Template)]
#[template(path = "overview.html")]
struct Page {
    layout: Layout,
    problems: Vec<Problem>,
    figures: Vec<(&'static str, String, String)>,
    states: Vec<(&'static str, String)>,
    /// Empty for a key of one tenant, because the series cover all tenants.
    charts: Vec<(&'static str, Vec<Figure>)>,
}

/// A current problem, with a link to its page.
struct Problem {
    class: &'static str,
    text: String,
    link: String,
}

/// `GET /`.
pub(super) async fn show(context: PageContext) -> Answer {
    let api = &context.api;
    let (overview, hour, day) = join3(
        api.get::<Overview>("/overview"),
        api.get::<Series>("/series?span=hour"),
        api.get::<Series>("/series?span=day"),
    )
    .await;
    let (overview, hour, day) = (overview?, hour?, day?);
    let count =
        |state: &&'static str| (*state, text::count(overview.jobs.get(*state).copied().unwrap_or_default()));
    render(&Page {
        layout: context.layout("Overview", "overview"),
        problems: overview.problems.iter().map(Problem::of).collect(),
        figures: figures(&overview),
        states: STATES.iter().map(count).collect(),
        charts: match context.me.tenant {
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
            ("dead", rates.dead),
            ("other", rates.other),
        ];
        let all: f64 = parts.iter().map(|(_, rate)| rate).sum();
        let nonzero = parts.iter().filter(|(_, rate)| *rate > 0.0);
        let rates: Vec<String> =
            nonzero.map(|(name, rate)| format!("{} {name}", text::decimal(*rate))).collect();
        figures.push(("Attempts", format!("{}/s", text::decimal(all)), rates.join(", ")));
    }
    let success = overview.success_rate.map_or_else(|| "–".to_owned(), text::percent);
    figures.push(("Success rate", success, "of the attempts of the last 5 minutes".to_owned()));
    let lag = &overview.start_lag;
    let p99 = format!("p99 {}", text::duration_or_dash(lag.p99_ms));
    figures.push(("Start lag", format!("p50 {}", text::duration_or_dash(lag.p50_ms)), p99));
    let oldest = overview.oldest_due_ms.map_or_else(|| "–".to_owned(), text::duration);
    figures.push(("Oldest due", oldest, "how long the oldest due job has been due".to_owned()));
    figures
}

fn charts(span: &str, series: &Series, from: i64, to: i64) -> Vec<Figure> {
    let points = &series.points;
    let times =
        TimeAxis { at: points.iter().map(|point| point.at).collect(), step_ms: series.step_ms, from, to };
    let plot = Plot { points, times, span };
    vec![plot.attempts(), plot.lag(), plot.depth(), plot.oldest()]
}

/// The charts of one time span.
struct Plot<'a> {
    points: &'a [SeriesPoint],
    times: TimeAxis,
    span: &'a str,
}

impl Plot<'_> {
    fn attempts(&self) -> Figure {
        let seconds = as_f64(self.times.step_ms.unsigned_abs()) / 1000.0;
        let series = |label, class, count: fn(&SeriesPoint) -> u64| {
            self.series(label, class, |point| Some(as_f64(count(point)) / seconds))
        };
        let series = [
            series("succeeded", "good", |point| point.succeeded),
            series("retried", "warn", |point| point.retried),
            series("dead", "bad", |point| point.dead),
            series("other", "calm", |point| point.other),
        ];
        stacked(
            &self.id("attempts"),
            "Attempts per second, by outcome",
            &self.times,
            &series,
            Unit::PerSecond,
        )
    }

    fn lag(&self) -> Figure {
        let series = [
            self.series("p50", "line-a", |point| point.start_lag_p50_ms.map(as_f64)),
            self.series("p99", "line-b", |point| point.start_lag_p99_ms.map(as_f64)),
        ];
        lines(&self.id("lag"), "Start lag", &self.times, &series, Unit::Duration)
    }

    fn depth(&self) -> Figure {
        let depth = |label: &'static str, class| {
            self.series(label, class, |point| {
                Some(as_f64(point.jobs.get(label).copied().unwrap_or_default()))
            })
        };
        let series = [
            depth("pending", "calm"),
            depth("retrying", "warn"),
            depth("running", "info"),
            depth("waiting", "more"),
        ];
        stacked(&self.id("depth"), "Jobs that have not ended, by state", &self.times, &series, Unit::Count)
    }

    fn oldest(&self) -> Figure {
        let series = [self.series("oldest due", "line-a", |point| point.oldest_due_ms.map(as_f64))];
        lines(&self.id("oldest"), "Age of the oldest due job", &self.times, &series, Unit::Duration)
    }

    fn series(
        &self,
        label: &'static str,
        class: &'static str,
        value: impl Fn(&SeriesPoint) -> Option<f64>,
    ) -> DataSeries {
        DataSeries { label, class, values: self.points.iter().map(value).collect() }
    }

    fn id(&self, name: &str) -> String {
        format!("{name}-{}", self.span)
    }
}

impl Problem {
    fn of(problem: &CurrentProblem) -> Self {
        let path = match problem.page.as_str() {
            "tasks" => "/console/tasks",
            "jobs" => "/console/jobs",
            "dead" => "/console/dead",
            "origins" if problem.query.contains_key("origin") => "/console/origins/show",
            "origins" => "/console/origins",
            "queues" => "/console/queues",
            "nodes" => "/console/nodes",
            "schedules" => "/console/schedules",
            "operations" => "/console/operations",
            "policies" => "/console/policies",
            _ => "/",
        };
        Self {
            class: match problem.severity {
                ProblemSeverity::Bad => "bad",
                ProblemSeverity::Warn => "warn",
            },
            text: text::capitalized(&problem.text),
            link: query(path, problem.query.iter().map(|(name, value)| (name.as_str(), value.as_str()))),
        }
    }
}
