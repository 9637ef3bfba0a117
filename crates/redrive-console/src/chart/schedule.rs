//! Charts of a policy: the wait before each retry, and the start of each attempt, with the range of the jitter.

use redrive_wire::preview::{PolicyPreview, RetryPreview};

use super::scale::{HorizontalScale, VerticalScale, as_f64};
use super::series::draw;
use super::{Figure, LegendEntry, Shape, Table, Tick, Unit, coordinate};
use crate::text;

/// The largest number of labels below a chart.
const COLUMNS_MAX: usize = 14;

/// The wait before each retry.
pub(crate) fn waits(preview: &PolicyPreview) -> Figure {
    let spread = |retry: &RetryPreview| [retry.earliest_ms, retry.mean_ms, retry.latest_ms];
    SchedulePlot { preview, spread: &spread, budget: None }.figure("waits", "Wait before each retry", "wait")
}

/// The start of each attempt if all attempts fail at once, and the end of the time budget.
pub(crate) fn starts(preview: &PolicyPreview, budget_ms: Option<u64>) -> Figure {
    let spread = |retry: &RetryPreview| [retry.total.earliest_ms, retry.total.mean_ms, retry.total.latest_ms];
    SchedulePlot { preview, spread: &spread, budget: budget_ms }.figure(
        "starts",
        "Start of each attempt",
        "start",
    )
}

struct SchedulePlot<'a> {
    preview: &'a PolicyPreview,
    /// Earliest, mean and latest.
    spread: &'a dyn Fn(&RetryPreview) -> [u64; 3],
    budget: Option<u64>,
}

impl SchedulePlot<'_> {
    fn figure(&self, id: &str, title: &str, what: &str) -> Figure {
        let retries = &self.preview.retries;
        let latest = retries.iter().map(|retry| (self.spread)(retry)[2]).max().unwrap_or_default();
        // A time budget far above the last attempt would leave no height for the other values.
        let budget = self.budget.filter(|budget| *budget <= latest.saturating_mul(3));
        let scale = VerticalScale::up_to(as_f64(latest.max(budget.unwrap_or_default())), Unit::Duration);
        let last = retries.last().map_or(2, |retry| retry.attempt_number);
        let axis = HorizontalScale::new(1.5, f64::from(last) + 0.5);
        let mut shapes = vec![
            Shape { class: "band", path: self.band(axis, &scale) },
            Shape { class: "mean", path: self.mean(axis, &scale) },
        ];
        if let Some(budget) = budget {
            let (y, mut path) = (scale.y(as_f64(budget)), String::new());
            draw(&mut path, [(axis.x(f64::MIN), y), (axis.x(f64::MAX), y)]);
            shapes.push(Shape { class: "budget", path });
        }
        Figure {
            id: id.to_owned(),
            title: title.to_owned(),
            summary: self.summary(),
            empty: retries.is_empty(),
            rows: scale.ticks(),
            columns: columns(retries, axis),
            shapes,
            legend: self.legend(budget),
            table: self.table(what),
        }
    }

    /// Each attempt is a step as wide as the distance to the next one.
    fn band(&self, axis: HorizontalScale, scale: &VerticalScale) -> String {
        let step = |retry: &RetryPreview, ms: u64| {
            let (at, y) = (f64::from(retry.attempt_number), scale.y(as_f64(ms)));
            [(axis.x(at - 0.5), y), (axis.x(at + 0.5), y)]
        };
        let retries = &self.preview.retries;
        let above = retries.iter().flat_map(|retry| step(retry, (self.spread)(retry)[2]));
        let below = retries.iter().rev().flat_map(|retry| {
            let [left, right] = step(retry, (self.spread)(retry)[0]);
            [right, left]
        });
        let mut path = String::new();
        draw(&mut path, above.chain(below));
        if !path.is_empty() {
            path.push('Z');
        }
        path
    }

    fn mean(&self, axis: HorizontalScale, scale: &VerticalScale) -> String {
        let point = |retry: &RetryPreview| {
            (axis.x(f64::from(retry.attempt_number)), scale.y(as_f64((self.spread)(retry)[1])))
        };
        let mut path = String::new();
        draw(&mut path, self.preview.retries.iter().map(point));
        path
    }

    fn summary(&self) -> String {
        let Some(last) = self.preview.retries.last() else {
            return "there are no retries".to_owned();
        };
        let [earliest, mean, latest] = (self.spread)(last).map(text::duration);
        let attempt = last.attempt_number;
        format!(
            "for attempt {attempt}: {earliest} at the earliest, {mean} on average, {latest} at the latest"
        )
    }

    /// The time budget is part of the legend even if it is not drawn.
    fn legend(&self, shown: Option<u64>) -> Vec<LegendEntry> {
        let entry = |class, label: &str, value: String| LegendEntry { class, label: label.to_owned(), value };
        let spread = entry("band", "range of the jitter", String::new());
        let mut legend = vec![spread, entry("mean", "mean", String::new())];
        let position = if shown.is_some() { "" } else { " (above the chart)" };
        legend.extend(
            self.budget.map(|ms| entry("budget", "time budget", format!("{}{position}", text::duration(ms)))),
        );
        legend
    }

    fn table(&self, what: &str) -> Table {
        let head = ["attempt".to_owned()].into_iter();
        let head = head.chain(["earliest", "mean", "latest"].map(|which| format!("{which} {what}")));
        let row = |retry: &RetryPreview| {
            let spread = (self.spread)(retry).map(text::duration);
            [retry.attempt_number.to_string()].into_iter().chain(spread).collect()
        };
        Table { head: head.collect(), rows: self.preview.retries.iter().map(row).collect() }
    }
}

fn columns(retries: &[RetryPreview], axis: HorizontalScale) -> Vec<Tick> {
    let every = retries.len().div_ceil(COLUMNS_MAX).max(1);
    let tick = |retry: &RetryPreview| Tick {
        at: coordinate(axis.x(f64::from(retry.attempt_number))),
        label: format!("#{}", retry.attempt_number),
    };
    retries.iter().step_by(every).map(tick).collect()
}

#[cfg(test)]
mod tests {
    use redrive_wire::preview::Waits;

    use super::*;

    fn preview(latest: &[u64]) -> PolicyPreview {
        let waits = |ms: u64| Waits { earliest_ms: 0, mean_ms: ms / 2, latest_ms: ms };
        let retries = latest.iter().zip(2..).map(|(ms, attempt_number)| RetryPreview {
            attempt_number,
            earliest_ms: 0,
            mean_ms: ms / 2,
            latest_ms: *ms,
            total: waits(ms * 2),
        });
        PolicyPreview { retries: retries.collect(), not_shown: 0, total: waits(0) }
    }

    #[test]
    fn the_time_budget_is_drawn_if_it_is_near() {
        let budgets = |budget| {
            let figure = starts(&preview(&[1000, 2000]), Some(budget));
            figure.shapes.iter().filter(|shape| shape.class == "budget").count()
        };
        assert_eq!((budgets(5000), budgets(3_600_000)), (1, 0));
        let figure = waits(&preview(&[1000, 2000]));
        assert_eq!(figure.summary, "for attempt 3: 0 ms at the earliest, 1 s on average, 2 s at the latest");
        assert_eq!(figure.table.rows[0], ["2", "0 ms", "500 ms", "1 s"]);
    }

    #[test]
    fn a_policy_without_retries_has_nothing_to_draw() {
        assert!(waits(&preview(&[])).empty);
    }
}
