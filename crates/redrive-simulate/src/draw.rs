//! What an experiment showed, as a picture, as marks for a terminal, and as a table for other programs.

mod blocks;
mod csv;
mod lines;
mod scale;
mod strips;
mod svg;

pub use scale::Scale;

use crate::timeline::Timeline;
use crate::{contention, outage};

/// What is to be drawn.
#[derive(Debug, Clone, PartialEq)]
pub enum Drawing {
    /// Calls over time, one strip for each contender, all on the same axes.
    Strips(Strips),
    /// Figures by the number of clients, one line for each contender.
    Lines(Lines),
}

/// Calls over time.
#[derive(Debug, Clone, PartialEq)]
pub struct Strips {
    /// What is seen.
    pub title: String,
    /// What is counted.
    pub counted: &'static str,
    /// How counts are drawn.
    pub scale: Scale,
    /// An instant that matters to all of them.
    pub mark: Option<Mark>,
    /// From top to bottom.
    pub strips: Vec<Strip>,
}

/// An instant with its meaning.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    /// When.
    pub at_ms: u64,
    /// What happens then.
    pub meaning: &'static str,
}

/// One contender's calls.
#[derive(Debug, Clone, PartialEq)]
pub struct Strip {
    /// Who.
    pub name: String,
    /// The figures in short.
    pub note: String,
    /// The calls.
    pub calls: Timeline,
}

/// Figures by the number of clients.
#[derive(Debug, Clone, PartialEq)]
pub struct Lines {
    /// What is seen.
    pub title: String,
    /// Side by side.
    pub charts: Vec<Chart>,
}

/// One figure of every contender.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// What it is and in which unit.
    pub title: &'static str,
    /// How it is drawn.
    pub scale: Scale,
    /// One for each contender.
    pub series: Vec<Series>,
}

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Who.
    pub name: String,
    /// The figure by the number of clients.
    pub points: Vec<(f64, f64)>,
}

impl Drawing {
    /// A picture that follows light and dark of where it is shown.
    pub fn svg(&self) -> String {
        match self {
            Self::Strips(strips) => strips::svg(strips),
            Self::Lines(lines) => lines::svg(lines),
        }
    }

    /// Marks for a terminal of `columns` columns.
    pub fn blocks(&self, columns: usize) -> String {
        match self {
            Self::Strips(strips) => blocks::of_strips(strips, columns),
            Self::Lines(lines) => blocks::of_lines(lines),
        }
    }

    /// The figures behind the picture, with a line of headings.
    pub fn csv(&self) -> String {
        match self {
            Self::Strips(strips) => csv::of_strips(strips),
            Self::Lines(lines) => csv::of_lines(lines),
        }
    }
}

/// Calls over time where there is one number of clients, else the figures by their number.
pub fn of_contention(report: &contention::Report) -> Drawing {
    let first = report.rows.first().map_or(0, |row| row.clients);
    if report.rows.iter().any(|row| row.clients != first) {
        return Drawing::Lines(by_clients(report));
    }
    let strip = |row: &contention::Row| Strip {
        name: row.jitter.clone(),
        note: format!(
            "{} writes; done after {}",
            people(row.mean_write_calls),
            seconds(row.mean_completion_ms)
        ),
        calls: row.writes.clone(),
    };
    Drawing::Strips(Strips {
        title: format!("{first} clients write one row: write calls, mean of {} trials", report.trials),
        counted: "write calls",
        scale: Scale::Linear,
        mark: None,
        strips: report.rows.iter().map(strip).collect(),
    })
}

fn by_clients(report: &contention::Report) -> Lines {
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
    Lines {
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
pub fn of_outage(report: &outage::Report) -> Drawing {
    let strip = |row: &outage::Row| {
        let lost = row.lost_to_attempts + row.lost_to_budget;
        let note = format!("peak {}/s; {} lost", people(row.peak_per_second as f64), people(f64::from(lost)));
        Strip { name: row.policy.clone(), note, calls: row.calls_over_time.clone() }
    };
    Drawing::Strips(Strips {
        title: format!(
            "{} tasks through an outage of {}: calls a second",
            people(f64::from(report.tasks)),
            seconds(report.outage_ms as f64)
        ),
        counted: "calls",
        // A peak and a trickle have to be seen in one picture.
        scale: Scale::Logarithmic,
        mark: Some(Mark { at_ms: report.outage_ms, meaning: "the target is back" }),
        strips: report.rows.iter().map(strip).collect(),
    })
}

/// A number as people write it: whole, in groups of three.
pub fn people(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Milliseconds as people read them.
pub fn seconds(ms: f64) -> String {
    match ms {
        ms if ms < 1_000.0 => format!("{ms:.0} ms"),
        ms if ms < 100_000.0 && ms % 1_000.0 != 0.0 => format!("{:.1} s", ms / 1e3),
        ms => format!("{} s", people(ms / 1e3)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!([0.4, 999.0, 1_000.0, 1_234_567.4].map(people), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([12.0, 1_250.0, 30_000.0, 103_400.0].map(seconds), ["12 ms", "1.2 s", "30 s", "103 s"]);
    }
}
