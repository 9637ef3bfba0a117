//! The timeline of one run: its attempts and the waits between them, to scale.

use askama::Template;

use super::coordinate;
use super::scale::instant;
use crate::text;

/// The width of the timeline.
const WIDTH: f64 = 900.0;
/// The margin on either side.
const MARGIN: f64 = 12.0;
/// The smallest width of an attempt, so that it is visible.
const ATTEMPT_WIDTH_MIN: f64 = 4.0;
/// The width of one character of a label.
const CHARACTER_WIDTH: f64 = 7.5;

/// One attempt.
#[derive(Debug, Clone)]
pub(crate) struct AttemptBar {
    pub(crate) number: u32,
    /// The start in epoch ms.
    pub(crate) from: i64,
    /// The end in epoch ms.
    pub(crate) to: i64,
    /// The CSS class of its outcome.
    pub(crate) class: &'static str,
    /// The tooltip.
    pub(crate) description: String,
}

/// Where a timeline ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimelineEnd {
    /// With the last attempt.
    Last,
    /// At a time in the past.
    At(i64),
    /// At the planned start of the next attempt.
    Planned(i64),
}

/// The timeline of one run.
#[derive(Debug, Template)]
#[template(path = "timeline.html")]
pub(crate) struct Timeline {
    title: String,
    summary: String,
    starts: String,
    ends: String,
    bars: Vec<Bar>,
    waits: Vec<Wait>,
}

impl askama::filters::HtmlSafe for Timeline {}

#[derive(Debug)]
struct Bar {
    x: String,
    width: String,
    class: &'static str,
    description: String,
    /// The number of the attempt, if there is room.
    label: String,
    label_x: String,
}

#[derive(Debug)]
struct Wait {
    from: String,
    to: String,
    middle: String,
    /// The duration, if there is room.
    label: String,
    planned: bool,
}

/// Draws a run that started at `start`.
pub(crate) fn draw(run: u32, start: i64, attempts: &[AttemptBar], until: TimelineEnd) -> Timeline {
    let start = attempts.first().map_or(start, |first| start.min(first.from));
    let last = attempts.iter().map(|attempt| attempt.to).max().unwrap_or(start);
    let end = match until {
        TimelineEnd::Last => last,
        TimelineEnd::At(at) | TimelineEnd::Planned(at) => at.max(last),
    };
    let end = end.max(start + 1);
    let scale = |at: i64| {
        let part = (instant(at) - instant(start)) / (instant(end) - instant(start));
        MARGIN + part.clamp(0.0, 1.0) * (WIDTH - 2.0 * MARGIN)
    };
    let mut line = TimelineBuilder { scale: &scale, bars: Vec::new(), waits: Vec::new(), labelled_to: 0.0 };
    let mut before = start;
    for attempt in attempts {
        line.add_wait(before, attempt.from, false);
        line.add_bar(attempt);
        before = attempt.to;
    }
    if until != TimelineEnd::Last {
        line.add_wait(before, end, matches!(until, TimelineEnd::Planned(_)));
    }
    Timeline {
        title: format!("Run {run}"),
        summary: summary(attempts, end.abs_diff(start), until),
        starts: text::utc(start),
        ends: text::utc(end),
        bars: line.bars,
        waits: line.waits,
    }
}

struct TimelineBuilder<'a> {
    scale: &'a dyn Fn(i64) -> f64,
    bars: Vec<Bar>,
    waits: Vec<Wait>,
    /// The end of the last label.
    labelled_to: f64,
}

impl TimelineBuilder<'_> {
    fn add_bar(&mut self, attempt: &AttemptBar) {
        let (x, end) = ((self.scale)(attempt.from), (self.scale)(attempt.to));
        let width = (end - x).max(ATTEMPT_WIDTH_MIN);
        let (text, middle) = (attempt.number.to_string(), x + width / 2.0);
        let half = label_width(&text) / 2.0;
        let fits = middle - half >= self.labelled_to;
        if fits {
            self.labelled_to = middle + half + 3.0;
        }
        self.bars.push(Bar {
            x: coordinate(x),
            width: coordinate(width),
            class: attempt.class,
            description: attempt.description.clone(),
            label: if fits { text } else { String::new() },
            label_x: coordinate(middle),
        });
    }

    fn add_wait(&mut self, from: i64, to: i64, planned: bool) {
        if to <= from {
            return;
        }
        let (x1, x2, text) = ((self.scale)(from), (self.scale)(to), text::duration(to.abs_diff(from)));
        let label = if x2 - x1 > label_width(&text) + 8.0 { text } else { String::new() };
        let middle = coordinate(f64::midpoint(x1, x2));
        self.waits.push(Wait { from: coordinate(x1), to: coordinate(x2), middle, label, planned });
    }
}

fn label_width(text: &str) -> f64 {
    text.chars().map(|_| CHARACTER_WIDTH).sum()
}

fn summary(attempts: &[AttemptBar], all_ms: u64, until: TimelineEnd) -> String {
    if attempts.is_empty() {
        let all = text::duration(all_ms);
        return match until {
            TimelineEnd::Planned(_) => {
                format!("no attempt yet; the first one is planned {all} after the start")
            }
            TimelineEnd::Last | TimelineEnd::At(_) => format!("no attempt in the log, over {all}"),
        };
    }
    let count = text::count_of(attempts.len() as u64, "attempt", "attempts");
    let spent: u64 = attempts.iter().map(|attempt| attempt.to.abs_diff(attempt.from)).sum();
    let rest = if matches!(until, TimelineEnd::Planned(_)) {
        "; the next attempt is planned at the end"
    } else {
        ""
    };
    let (all, spent) = (text::duration(all_ms), text::duration(spent));
    format!("{count} over {all}: {spent} in attempts, the rest in waits{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(number: u32, from: i64, to: i64) -> AttemptBar {
        AttemptBar { number, from, to, class: "bad", description: "failed".into() }
    }

    #[test]
    fn attempts_and_waits_are_to_scale() {
        let line = draw(1, 0, &[attempt(1, 0, 1000), attempt(2, 3000, 4000)], TimelineEnd::Planned(8000));
        assert_eq!((line.bars.len(), line.waits.len()), (2, 2));
        let number = |text: &String| text.parse::<f64>().unwrap();
        let long: Vec<f64> = line.waits.iter().map(|gap| number(&gap.to) - number(&gap.from)).collect();
        assert!((long[1] / long[0] - 2.0).abs() < 0.01, "{long:?}");
        assert!(line.waits[1].planned && !line.waits[0].planned);
        assert!(line.summary.starts_with("2 attempts over 8 s: 2 s in attempts"), "{}", line.summary);
    }

    #[test]
    fn a_short_attempt_is_visible_and_labels_do_not_overlap() {
        let many: Vec<AttemptBar> =
            (0..200).zip(0..).map(|(n, at)| attempt(n, at * 1000, at * 1000 + 1)).collect();
        let line = draw(1, 0, &many, TimelineEnd::Last);
        assert!(line.bars.iter().all(|bar| bar.width.parse::<f64>().unwrap() >= ATTEMPT_WIDTH_MIN));
        assert!(line.bars.iter().filter(|bar| !bar.label.is_empty()).count() < 100);
        let html = draw(1, 5, &[], TimelineEnd::At(9)).to_string();
        assert!(html.contains("no attempt in the log"), "{html}");
    }
}
