//! The results of an experiment as SVG, as text for a terminal, and as CSV.

mod csv;
mod lines;
mod scale;
mod svg;
mod terminal;
mod timelines;

use std::time::Duration;

use redrive_core::text;

pub use scale::Scale;

use crate::timeline::Timeline;
use crate::{contention, outage};

/// A figure of results.
#[derive(Debug, Clone, PartialEq)]
pub enum Figure {
    /// Calls over time, one timeline for each policy, all on the same axes.
    CallsOverTime(CallsOverTime),
    /// Results by the number of clients, one line for each policy.
    ByClients(ByClients),
}

/// Calls over time.
#[derive(Debug, Clone, PartialEq)]
pub struct CallsOverTime {
    /// The title.
    pub title: String,
    /// The noun for the counts, for example `calls`.
    pub counted: &'static str,
    /// The scale of the counts.
    pub scale: Scale,
    /// A time that is marked on all timelines.
    pub mark: Option<Mark>,
    /// The timelines, from top to bottom.
    pub timelines: Vec<PolicyCalls>,
}

/// A marked time.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    /// The time since the start of the simulation.
    pub at_ms: u64,
    /// What happens at that time.
    pub meaning: &'static str,
}

/// The calls of one policy.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyCalls {
    /// The name of the policy.
    pub name: String,
    /// A summary of the results.
    pub note: String,
    /// The number of calls over time.
    pub calls: Timeline,
}

/// Results by the number of clients.
#[derive(Debug, Clone, PartialEq)]
pub struct ByClients {
    /// The title.
    pub title: String,
    /// The charts, from left to right.
    pub charts: Vec<Chart>,
}

/// One result of every policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// The result and its unit.
    pub title: &'static str,
    /// The scale of the result.
    pub scale: Scale,
    /// One line for each policy.
    pub series: Vec<Series>,
}

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// The name of the policy.
    pub name: String,
    /// Pairs of the number of clients and the result.
    pub points: Vec<(f64, f64)>,
}

impl Figure {
    /// An SVG image that follows the light or dark theme of its viewer.
    pub fn svg(&self) -> String {
        match self {
            Self::CallsOverTime(calls) => timelines::svg(calls),
            Self::ByClients(lines) => lines::svg(lines),
        }
    }

    /// Text for a terminal with this number of columns.
    pub fn text(&self, columns: usize) -> String {
        match self {
            Self::CallsOverTime(calls) => terminal::timelines(calls, columns),
            Self::ByClients(lines) => terminal::tables(lines),
        }
    }

    /// The numbers of the figure, with a header line.
    pub fn csv(&self) -> String {
        match self {
            Self::CallsOverTime(calls) => csv::timelines(calls),
            Self::ByClients(lines) => csv::lines(lines),
        }
    }
}

/// Calls over time if all rows have the same number of clients, else the results by the number of clients.
pub fn contention_figure(report: &contention::Report) -> Figure {
    let first = report.rows.first().map_or(0, |row| row.clients);
    if report.rows.iter().any(|row| row.clients != first) {
        return Figure::ByClients(by_clients(report));
    }
    let timeline = |row: &contention::Row| PolicyCalls {
        name: row.jitter.clone(),
        note: format!(
            "{} writes; done after {}",
            format_count(row.mean_write_calls),
            format_ms(row.mean_completion_ms)
        ),
        calls: row.writes.clone(),
    };
    Figure::CallsOverTime(CallsOverTime {
        title: format!("{first} clients write one row: write calls, mean of {} trials", report.trials),
        counted: "write calls",
        scale: Scale::Linear,
        mark: None,
        timelines: report.rows.iter().map(timeline).collect(),
    })
}

fn by_clients(report: &contention::Report) -> ByClients {
    let mut names: Vec<&str> = Vec::new();
    for row in &report.rows {
        if !names.contains(&row.jitter.as_str()) {
            names.push(&row.jitter);
        }
    }
    let series = |figure: fn(&contention::Row) -> f64| {
        let one = |name: &&str| {
            let rows = report.rows.iter().filter(|row| row.jitter == *name);
            let points = rows.map(|row| (f64::from(row.clients), figure(row))).collect();
            Series { name: (*name).to_owned(), points }
        };
        names.iter().map(one).collect()
    };
    ByClients {
        title: format!("Clients that write one row, mean of {} trials", report.trials),
        charts: vec![
            Chart { title: "write calls", scale: Scale::Linear, series: series(|row| row.mean_write_calls) },
            Chart {
                title: "completion, ms",
                scale: Scale::Logarithmic,
                series: series(|row| row.mean_completion_ms),
            },
        ],
    }
}

/// Calls over time under each policy.
pub fn outage_figure(report: &outage::Report) -> Figure {
    let timeline = |row: &outage::Row| {
        let lost = row.lost_to_attempts + row.lost_to_budget;
        let note = format!(
            "peak {}/s; {} lost",
            format_count(row.peak_per_second as f64),
            format_count(f64::from(lost))
        );
        PolicyCalls { name: row.policy.clone(), note, calls: row.calls_over_time.clone() }
    };
    Figure::CallsOverTime(CallsOverTime {
        title: format!(
            "{} tasks during an outage of {}: calls per second",
            format_count(f64::from(report.tasks)),
            format_ms(report.outage_ms as f64)
        ),
        counted: "calls",
        // A logarithmic scale shows the peak and single calls in one figure.
        scale: Scale::Logarithmic,
        mark: Some(Mark { at_ms: report.outage_ms, meaning: "the target is back" }),
        timelines: report.rows.iter().map(timeline).collect(),
    })
}

/// Rounds a number and formats it with commas between thousands.
pub fn format_count(number: f64) -> String {
    text::count(number.round() as u64)
}

/// Formats a duration that is given in milliseconds.
pub fn format_ms(ms: f64) -> String {
    text::duration(Duration::from_secs_f64(ms / 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_durations_are_formatted() {
        assert_eq!([0.4, 999.0, 1_000.0, 1_234_567.4].map(format_count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [12.0, 1_250.0, 30_000.0, 103_400.0].map(format_ms),
            ["12 ms", "1.2 s", "30 s", "1 min 43 s"]
        );
    }
}
