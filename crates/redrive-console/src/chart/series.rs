//! Values over time: stacked, or side by side. Where nothing was measured, nothing is drawn.

use std::fmt::Write as _;
use std::ops::Range;

use super::scale::{Reach, Rise, instant};
use super::{Figure, Meaning, Shape, Table, Tick, Unit, place};
use crate::words;

/// Rows of a chart's table: as many as a person reads.
const TABLE_ROWS_MAX: usize = 24;

/// When values were measured.
#[derive(Debug)]
pub(crate) struct Times {
    /// The beginning of each step that has values.
    pub(crate) at: Vec<i64>,
    /// The length of a step.
    pub(crate) step_ms: i64,
    /// Where the chart begins.
    pub(crate) from: i64,
    /// Where it ends.
    pub(crate) to: i64,
}

/// One sort of value over time.
#[derive(Debug)]
pub(crate) struct Sort {
    pub(crate) label: &'static str,
    /// The colour it has, by name.
    pub(crate) class: &'static str,
    /// A value for each instant, where there is one.
    pub(crate) values: Vec<Option<f64>>,
}

/// Values on top of each other: their sum matters too.
pub(crate) fn stacked(id: &str, title: &str, times: &Times, sorts: &[Sort], unit: Unit) -> Figure {
    let sum = |step: usize| sorts.iter().filter_map(|sort| sort.values[step]).sum::<f64>();
    let rise = Rise::to((0..times.at.len()).map(sum).fold(0.0, f64::max), unit);
    let mut below = vec![0.0; times.at.len()];
    let mut shapes = Vec::new();
    for sort in sorts {
        let pairs = below.iter().zip(&sort.values);
        let above: Vec<f64> = pairs.map(|(base, value)| base + value.unwrap_or_default()).collect();
        shapes.push(Shape { class: sort.class, path: times.band(&rise, &below, &above) });
        below = above;
    }
    Figure { rows: rise.ticks(), shapes, ..times.figure(id, title, sorts, unit) }
}

/// Values side by side, as lines.
pub(crate) fn lines(id: &str, title: &str, times: &Times, sorts: &[Sort], unit: Unit) -> Figure {
    let most = sorts.iter().flat_map(|sort| &sort.values).flatten().copied().fold(0.0, f64::max);
    let rise = Rise::to(most, unit);
    let shape = |sort: &Sort| Shape { class: sort.class, path: times.line(&rise, &sort.values) };
    let shapes = sorts.iter().map(shape).collect();
    Figure { rows: rise.ticks(), shapes, ..times.figure(id, title, sorts, unit) }
}

impl Times {
    fn reach(&self) -> Reach {
        Reach::new(instant(self.from), instant(self.to))
    }

    /// The steps that follow each other without a gap, as ranges of places in the list.
    fn unbroken(&self) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for (place, at) in self.at.iter().enumerate() {
            let follows = place > 0 && at - self.at[place - 1] <= self.step_ms * 2;
            match runs.last_mut() {
                Some(run) if follows => run.end = place + 1,
                _ => runs.push(place..place + 1),
            }
        }
        runs
    }

    /// A filled shape between two heights, step by step.
    fn band(&self, rise: &Rise, below: &[f64], above: &[f64]) -> String {
        let (reach, mut path) = (self.reach(), String::new());
        for run in self.unbroken() {
            let ends = |step: usize| {
                let end = self.end_of(step, run.end);
                (reach.x(instant(self.at[step])), reach.x(instant(end)))
            };
            let over = run.clone().flat_map(|step| {
                let ((from, to), height) = (ends(step), rise.y(above[step]));
                [(from, height), (to, height)]
            });
            let under = run.clone().rev().flat_map(|step| {
                let ((from, to), height) = (ends(step), rise.y(below[step]));
                [(to, height), (from, height)]
            });
            draw(&mut path, over.chain(under));
            path.push('Z');
        }
        path
    }

    /// A line through the values that are there.
    fn line(&self, rise: &Rise, values: &[Option<f64>]) -> String {
        let (reach, mut path) = (self.reach(), String::new());
        for run in self.unbroken() {
            let points = run.clone().filter_map(|step| {
                let (height, end) = (rise.y(values[step]?), self.end_of(step, run.end));
                Some([(reach.x(instant(self.at[step])), height), (reach.x(instant(end)), height)])
            });
            draw(&mut path, points.flatten());
        }
        path
    }

    /// A step lasts until the next one, where that follows at once.
    fn end_of(&self, step: usize, end: usize) -> i64 {
        if step + 1 < end { self.at[step + 1] } else { self.at[step] + self.step_ms }
    }

    /// Everything but what is drawn.
    fn figure(&self, id: &str, title: &str, sorts: &[Sort], unit: Unit) -> Figure {
        let last = |sort: &Sort| sort.values.iter().rev().flatten().next().copied();
        let meaning = |sort: &Sort| Meaning {
            class: sort.class,
            label: sort.label.to_owned(),
            value: unit.show_or_dash(last(sort)),
        };
        let legend: Vec<Meaning> = sorts.iter().map(meaning).collect();
        let said: Vec<String> = legend.iter().map(|sort| format!("{} {}", sort.label, sort.value)).collect();
        Figure {
            id: id.to_owned(),
            title: title.to_owned(),
            summary: format!("last: {}", said.join(", ")),
            empty: self.at.is_empty(),
            rows: Vec::new(),
            columns: self.columns(),
            shapes: Vec::new(),
            legend,
            table: self.table(sorts, unit),
        }
    }

    /// Marks at whole minutes or hours.
    fn columns(&self) -> Vec<Tick> {
        const STEPS: [i64; 6] = [60_000, 300_000, 600_000, 3_600_000, 14_400_000, 86_400_000];
        let span = self.to - self.from;
        let step = STEPS.into_iter().find(|step| span / step <= 7).unwrap_or(86_400_000);
        let reach = self.reach();
        let first = (self.from / step + 1) * step;
        let marks = (0..).map(|number| first + number * step).take_while(|at| *at < self.to);
        marks.map(|at| Tick { at: place(reach.x(instant(at))), label: words::clock(at) }).collect()
    }

    fn table(&self, sorts: &[Sort], unit: Unit) -> Table {
        let names = sorts.iter().map(|sort| sort.label.to_owned());
        let every = self.at.len().div_ceil(TABLE_ROWS_MAX).max(1);
        let row = |step: usize| {
            let values = sorts.iter().map(|sort| unit.show_or_dash(sort.values[step]));
            std::iter::once(words::clock_s(self.at[step])).chain(values).collect()
        };
        let rows = (0..self.at.len()).rev().step_by(every).map(row).collect();
        Table { head: std::iter::once("time (UTC)".to_owned()).chain(names).collect(), rows }
    }
}

/// Adds a line through points to a path.
pub(super) fn draw(path: &mut String, points: impl IntoIterator<Item = (f64, f64)>) {
    for (number, (x, y)) in points.into_iter().enumerate() {
        let pen = if number == 0 { 'M' } else { 'L' };
        // Writing to a string cannot fail.
        let _ = write!(path, "{pen}{} {}", place(x), place(y));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(at: &[i64]) -> Times {
        Times { at: at.to_vec(), step_ms: 10_000, from: 0, to: 3_600_000 }
    }

    fn sort(label: &'static str, values: &[Option<f64>]) -> Sort {
        Sort { label, class: "good", values: values.to_vec() }
    }

    #[test]
    fn a_gap_is_left_open_and_the_last_value_is_said() {
        let times = times(&[0, 10_000, 100_000]);
        let figure = lines("a", "A", &times, &[sort("x", &[Some(1.0), Some(2.0), Some(3.0)])], Unit::Count);
        assert_eq!(figure.shapes[0].path.matches('M').count(), 2, "{}", figure.shapes[0].path);
        assert_eq!(figure.summary, "last: x 3");
        assert_eq!(figure.table.rows.len(), 3);
        assert_eq!(figure.table.rows[0], ["00:01:40", "3"]);
    }

    #[test]
    fn stacked_values_stand_on_each_other() {
        let times = times(&[0]);
        let sorts = [sort("x", &[Some(1.0)]), sort("y", &[Some(3.0)])];
        let figure = stacked("a", "A", &times, &sorts, Unit::Count);
        let rise = Rise::to(4.0, Unit::Count);
        let top = place(rise.y(4.0));
        assert!(figure.shapes[1].path.contains(&format!(" {top}L")), "{:?}", figure.shapes);
        assert!(figure.shapes[1].path.contains(&place(rise.y(1.0))), "{:?}", figure.shapes);
    }

    #[test]
    fn nothing_measured_is_said_and_not_drawn() {
        let figure = stacked("a", "A", &times(&[]), &[sort("x", &[])], Unit::PerSecond);
        assert!(figure.empty && figure.to_string().contains("Nothing was measured"));
    }

    #[test]
    fn what_is_named_by_others_is_escaped() {
        let figure = lines("a", "<i>", &times(&[0]), &[sort("x", &[Some(1.0)])], Unit::Count);
        assert!(!figure.to_string().contains("<i>"));
    }
}
