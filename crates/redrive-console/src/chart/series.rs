//! Charts of values over time, stacked or as lines. A gap in the measurements stays a gap in the chart.

use std::fmt::Write as _;
use std::ops::Range;

use super::scale::{HorizontalScale, VerticalScale, instant};
use super::{Figure, LegendEntry, Shape, Table, Tick, Unit, coordinate};
use crate::text;

/// The largest number of rows in the table of a chart.
const TABLE_ROWS_MAX: usize = 24;

/// The times of the measurements, and the range of the chart.
#[derive(Debug)]
pub(crate) struct TimeAxis {
    /// The start of each interval with values, in epoch ms.
    pub(crate) at: Vec<i64>,
    /// The length of an interval in ms.
    pub(crate) step_ms: i64,
    /// The start of the chart, in epoch ms.
    pub(crate) from: i64,
    /// The end of the chart, in epoch ms.
    pub(crate) to: i64,
}

/// One series of values.
#[derive(Debug)]
pub(crate) struct DataSeries {
    pub(crate) label: &'static str,
    /// The CSS class, which sets the colour.
    pub(crate) class: &'static str,
    /// The value of each interval, if there is one.
    pub(crate) values: Vec<Option<f64>>,
}

/// Draws series on top of each other.
pub(crate) fn stacked(id: &str, title: &str, times: &TimeAxis, series: &[DataSeries], unit: Unit) -> Figure {
    let sum = |step: usize| series.iter().filter_map(|one| one.values[step]).sum::<f64>();
    let scale = VerticalScale::up_to((0..times.at.len()).map(sum).fold(0.0, f64::max), unit);
    let mut below = vec![0.0; times.at.len()];
    let mut shapes = Vec::new();
    for one in series {
        let pairs = below.iter().zip(&one.values);
        let above: Vec<f64> = pairs.map(|(base, value)| base + value.unwrap_or_default()).collect();
        shapes.push(Shape { class: one.class, path: times.band(&scale, &below, &above) });
        below = above;
    }
    Figure { rows: scale.ticks(), shapes, ..times.figure(id, title, series, unit) }
}

/// Draws series as lines.
pub(crate) fn lines(id: &str, title: &str, times: &TimeAxis, series: &[DataSeries], unit: Unit) -> Figure {
    let most = series.iter().flat_map(|one| &one.values).flatten().copied().fold(0.0, f64::max);
    let scale = VerticalScale::up_to(most, unit);
    let shape = |one: &DataSeries| Shape { class: one.class, path: times.line(&scale, &one.values) };
    let shapes = series.iter().map(shape).collect();
    Figure { rows: scale.ticks(), shapes, ..times.figure(id, title, series, unit) }
}

impl TimeAxis {
    fn axis(&self) -> HorizontalScale {
        HorizontalScale::new(instant(self.from), instant(self.to))
    }

    /// The ranges of intervals without a gap between them.
    fn segments_without_gap(&self) -> Vec<Range<usize>> {
        let mut segments: Vec<Range<usize>> = Vec::new();
        for (index, at) in self.at.iter().enumerate() {
            let follows = index > 0 && at - self.at[index - 1] <= self.step_ms * 2;
            match segments.last_mut() {
                Some(segment) if follows => segment.end = index + 1,
                _ => segments.push(index..index + 1),
            }
        }
        segments
    }

    /// A filled area between two heights.
    fn band(&self, scale: &VerticalScale, below: &[f64], above: &[f64]) -> String {
        let (axis, mut path) = (self.axis(), String::new());
        for segment in self.segments_without_gap() {
            let ends = |step: usize| {
                let end = self.end_of(step, segment.end);
                (axis.x(instant(self.at[step])), axis.x(instant(end)))
            };
            let over = segment.clone().flat_map(|step| {
                let ((from, to), height) = (ends(step), scale.y(above[step]));
                [(from, height), (to, height)]
            });
            let under = segment.clone().rev().flat_map(|step| {
                let ((from, to), height) = (ends(step), scale.y(below[step]));
                [(to, height), (from, height)]
            });
            draw(&mut path, over.chain(under));
            path.push('Z');
        }
        path
    }

    /// A line through the values.
    fn line(&self, scale: &VerticalScale, values: &[Option<f64>]) -> String {
        let (axis, mut path) = (self.axis(), String::new());
        for segment in self.segments_without_gap() {
            let points = segment.clone().filter_map(|step| {
                let (height, end) = (scale.y(values[step]?), self.end_of(step, segment.end));
                Some([(axis.x(instant(self.at[step])), height), (axis.x(instant(end)), height)])
            });
            draw(&mut path, points.flatten());
        }
        path
    }

    /// An interval lasts until the next one if there is no gap between them.
    fn end_of(&self, step: usize, end: usize) -> i64 {
        if step + 1 < end { self.at[step + 1] } else { self.at[step] + self.step_ms }
    }

    /// The figure without its shapes.
    fn figure(&self, id: &str, title: &str, series: &[DataSeries], unit: Unit) -> Figure {
        let last = |one: &DataSeries| one.values.iter().rev().flatten().next().copied();
        let entry = |one: &DataSeries| LegendEntry {
            class: one.class,
            label: one.label.to_owned(),
            value: unit.show_or_dash(last(one)),
        };
        let legend: Vec<LegendEntry> = series.iter().map(entry).collect();
        let values: Vec<String> = legend.iter().map(|one| format!("{} {}", one.label, one.value)).collect();
        Figure {
            id: id.to_owned(),
            title: title.to_owned(),
            summary: format!("last: {}", values.join(", ")),
            empty: self.at.is_empty(),
            rows: Vec::new(),
            columns: self.columns(),
            shapes: Vec::new(),
            legend,
            table: self.table(series, unit),
        }
    }

    /// Ticks at whole minutes or hours.
    fn columns(&self) -> Vec<Tick> {
        const STEPS: [i64; 6] = [60_000, 300_000, 600_000, 3_600_000, 14_400_000, 86_400_000];
        let span = self.to - self.from;
        let step = STEPS.into_iter().find(|step| span / step <= 7).unwrap_or(86_400_000);
        let axis = self.axis();
        let first = (self.from / step + 1) * step;
        let marks = (0..).map(|number| first + number * step).take_while(|at| *at < self.to);
        marks.map(|at| Tick { at: coordinate(axis.x(instant(at))), label: text::time_of_day(at) }).collect()
    }

    fn table(&self, series: &[DataSeries], unit: Unit) -> Table {
        let names = series.iter().map(|one| one.label.to_owned());
        let every = self.at.len().div_ceil(TABLE_ROWS_MAX).max(1);
        let row = |step: usize| {
            let values = series.iter().map(|one| unit.show_or_dash(one.values[step]));
            std::iter::once(text::time_with_seconds(self.at[step])).chain(values).collect()
        };
        let rows = (0..self.at.len()).rev().step_by(every).map(row).collect();
        Table { head: std::iter::once("time (UTC)".to_owned()).chain(names).collect(), rows }
    }
}

/// Adds a line through points to a path.
pub(super) fn draw(path: &mut String, points: impl IntoIterator<Item = (f64, f64)>) {
    for (number, (x, y)) in points.into_iter().enumerate() {
        let command = if number == 0 { 'M' } else { 'L' };
        // Writing to a string cannot fail.
        let _ = write!(path, "{command}{} {}", coordinate(x), coordinate(y));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(at: &[i64]) -> TimeAxis {
        TimeAxis { at: at.to_vec(), step_ms: 10_000, from: 0, to: 3_600_000 }
    }

    fn one_series(label: &'static str, values: &[Option<f64>]) -> DataSeries {
        DataSeries { label, class: "good", values: values.to_vec() }
    }

    #[test]
    fn a_gap_stays_open_and_the_summary_has_the_last_value() {
        let times = times(&[0, 10_000, 100_000]);
        let figure =
            lines("a", "A", &times, &[one_series("x", &[Some(1.0), Some(2.0), Some(3.0)])], Unit::Count);
        assert_eq!(figure.shapes[0].path.matches('M').count(), 2, "{}", figure.shapes[0].path);
        assert_eq!(figure.summary, "last: x 3");
        assert_eq!(figure.table.rows.len(), 3);
        assert_eq!(figure.table.rows[0], ["00:01:40", "3"]);
    }

    #[test]
    fn stacked_values_are_added() {
        let times = times(&[0]);
        let series = [one_series("x", &[Some(1.0)]), one_series("y", &[Some(3.0)])];
        let figure = stacked("a", "A", &times, &series, Unit::Count);
        let scale = VerticalScale::up_to(4.0, Unit::Count);
        let top = coordinate(scale.y(4.0));
        assert!(figure.shapes[1].path.contains(&format!(" {top}L")), "{:?}", figure.shapes);
        assert!(figure.shapes[1].path.contains(&coordinate(scale.y(1.0))), "{:?}", figure.shapes);
    }

    #[test]
    fn a_chart_without_measurements_says_so() {
        let figure = stacked("a", "A", &times(&[]), &[one_series("x", &[])], Unit::PerSecond);
        assert!(figure.empty && figure.to_string().contains("There are no measurements"));
    }

    #[test]
    fn titles_are_escaped() {
        let figure = lines("a", "<i>", &times(&[0]), &[one_series("x", &[Some(1.0)])], Unit::Count);
        assert!(!figure.to_string().contains("<i>"));
    }
}
