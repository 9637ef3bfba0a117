//! What a policy would do: the wait before each retry and when each attempt starts, with the spread of its jitter.

use redrive_server::wire::preview::{PolicyPreview, RetryPreview};

use super::scale::{Reach, Rise, as_f64};
use super::series::draw;
use super::{Figure, Meaning, Shape, Table, Tick, Unit, place};
use crate::words;

/// Numbers of attempts below a chart, as many as have room.
const COLUMNS_MAX: usize = 14;

/// The wait before each retry.
pub(crate) fn waits(preview: &PolicyPreview) -> Figure {
    let spread = |retry: &RetryPreview| [retry.earliest_ms, retry.mean_ms, retry.latest_ms];
    Plan { preview, spread: &spread, budget: None }.figure("waits", "Wait before each retry", "wait")
}

/// When each attempt starts if all of them fail at once, and where the budget ends.
pub(crate) fn starts(preview: &PolicyPreview, budget_ms: Option<u64>) -> Figure {
    let spread = |retry: &RetryPreview| [retry.total.earliest_ms, retry.total.mean_ms, retry.total.latest_ms];
    Plan { preview, spread: &spread, budget: budget_ms }.figure("starts", "When each attempt starts", "start")
}

struct Plan<'a> {
    preview: &'a PolicyPreview,
    /// The earliest, the mean and the latest.
    spread: &'a dyn Fn(&RetryPreview) -> [u64; 3],
    budget: Option<u64>,
}

impl Plan<'_> {
    fn figure(&self, id: &str, title: &str, what: &str) -> Figure {
        let retries = &self.preview.retries;
        let latest = retries.iter().map(|retry| (self.spread)(retry)[2]).max().unwrap_or_default();
        // A budget far above the last attempt would press everything else to the floor.
        let budget = self.budget.filter(|budget| *budget <= latest.saturating_mul(3));
        let rise = Rise::to(as_f64(latest.max(budget.unwrap_or_default())), Unit::Span);
        let last = retries.last().map_or(2, |retry| retry.attempt_number);
        let reach = Reach::new(1.5, f64::from(last) + 0.5);
        let mut shapes = vec![
            Shape { class: "band", path: self.band(reach, &rise) },
            Shape { class: "mean", path: self.mean(reach, &rise) },
        ];
        if let Some(budget) = budget {
            let (y, mut path) = (rise.y(as_f64(budget)), String::new());
            draw(&mut path, [(reach.x(f64::MIN), y), (reach.x(f64::MAX), y)]);
            shapes.push(Shape { class: "budget", path });
        }
        Figure {
            id: id.to_owned(),
            title: title.to_owned(),
            summary: self.summary(),
            empty: retries.is_empty(),
            rows: rise.ticks(),
            columns: columns(retries, reach),
            shapes,
            legend: self.legend(budget),
            table: self.table(what),
        }
    }

    /// Each attempt is a step as wide as the distance to the next.
    fn band(&self, reach: Reach, rise: &Rise) -> String {
        let step = |retry: &RetryPreview, ms: u64| {
            let (at, y) = (f64::from(retry.attempt_number), rise.y(as_f64(ms)));
            [(reach.x(at - 0.5), y), (reach.x(at + 0.5), y)]
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

    fn mean(&self, reach: Reach, rise: &Rise) -> String {
        let point = |retry: &RetryPreview| {
            (reach.x(f64::from(retry.attempt_number)), rise.y(as_f64((self.spread)(retry)[1])))
        };
        let mut path = String::new();
        draw(&mut path, self.preview.retries.iter().map(point));
        path
    }

    fn summary(&self) -> String {
        let Some(last) = self.preview.retries.last() else {
            return "there is no retry: the first failure is the end".to_owned();
        };
        let [earliest, mean, latest] = (self.spread)(last).map(words::span);
        let attempt = last.attempt_number;
        format!(
            "for attempt {attempt}: {earliest} at the earliest, {mean} on average, {latest} at the latest"
        )
    }

    /// The budget is in it even where it is not drawn.
    fn legend(&self, shown: Option<u64>) -> Vec<Meaning> {
        let meaning = |class, label: &str, value: String| Meaning { class, label: label.to_owned(), value };
        let spread = meaning("band", "spread of the jitter", String::new());
        let mut legend = vec![spread, meaning("mean", "mean", String::new())];
        let place = if shown.is_some() { "" } else { ", above what is drawn" };
        legend
            .extend(self.budget.map(|ms| meaning("budget", "budget", format!("{}{place}", words::span(ms)))));
        legend
    }

    fn table(&self, what: &str) -> Table {
        let head = ["attempt".to_owned()].into_iter();
        let head = head.chain(["earliest", "mean", "latest"].map(|which| format!("{which} {what}")));
        let row = |retry: &RetryPreview| {
            let spread = (self.spread)(retry).map(words::span);
            [retry.attempt_number.to_string()].into_iter().chain(spread).collect()
        };
        Table { head: head.collect(), rows: self.preview.retries.iter().map(row).collect() }
    }
}

fn columns(retries: &[RetryPreview], reach: Reach) -> Vec<Tick> {
    let every = retries.len().div_ceil(COLUMNS_MAX).max(1);
    let tick = |retry: &RetryPreview| Tick {
        at: place(reach.x(f64::from(retry.attempt_number))),
        label: format!("#{}", retry.attempt_number),
    };
    retries.iter().step_by(every).map(tick).collect()
}

#[cfg(test)]
mod tests {
    use redrive_server::wire::preview::Waits;

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
    fn the_budget_is_drawn_where_it_matters() {
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
