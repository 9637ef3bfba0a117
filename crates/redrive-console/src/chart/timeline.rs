//! The attempts of one run and the waits between them, drawn to scale.

use askama::Template;

use super::place;
use super::scale::instant;
use crate::words;

/// How wide the line is.
const WIDTH: f64 = 900.0;
/// What is left free on either side.
const MARGIN: f64 = 12.0;
/// How wide an attempt is drawn at least, to be seen at all.
const ATTEMPT_WIDTH_MIN: f64 = 4.0;
/// How much room a label needs for each of its characters.
const CHARACTER_WIDTH: f64 = 7.5;

/// An attempt to draw.
#[derive(Debug, Clone)]
pub(crate) struct Stretch {
    /// Its number.
    pub(crate) number: u32,
    /// When it was started, in epoch ms.
    pub(crate) from: i64,
    /// When it ended.
    pub(crate) to: i64,
    /// The colour of how it ended.
    pub(crate) class: &'static str,
    /// How it ended, in words.
    pub(crate) words: String,
}

/// Where a line ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// With its last attempt.
    Last,
    /// At an instant that has been.
    At(i64),
    /// With the next attempt, which is planned for then.
    Planned(i64),
}

/// The line of one run.
#[derive(Debug, Template)]
#[template(path = "timeline.html")]
pub(crate) struct Timeline {
    title: String,
    summary: String,
    begins: String,
    ends: String,
    bars: Vec<Bar>,
    gaps: Vec<Gap>,
}

impl askama::filters::HtmlSafe for Timeline {}

#[derive(Debug)]
struct Bar {
    x: String,
    width: String,
    class: &'static str,
    words: String,
    /// Its number, where that has room.
    label: String,
    label_x: String,
}

#[derive(Debug)]
struct Gap {
    from: String,
    to: String,
    middle: String,
    /// How long it is, where that has room.
    label: String,
    planned: bool,
}

/// Draws a run that began at `begin`.
pub(crate) fn draw(run: u32, begin: i64, attempts: &[Stretch], until: End) -> Timeline {
    let begin = attempts.first().map_or(begin, |first| begin.min(first.from));
    let last = attempts.iter().map(|attempt| attempt.to).max().unwrap_or(begin);
    let end = match until {
        End::Last => last,
        End::At(at) | End::Planned(at) => at.max(last),
    };
    let end = end.max(begin + 1);
    let scale = |at: i64| {
        let part = (instant(at) - instant(begin)) / (instant(end) - instant(begin));
        MARGIN + part.clamp(0.0, 1.0) * (WIDTH - 2.0 * MARGIN)
    };
    let mut line = Line { scale: &scale, bars: Vec::new(), gaps: Vec::new(), labelled_to: 0.0 };
    let mut before = begin;
    for attempt in attempts {
        line.gap(before, attempt.from, false);
        line.bar(attempt);
        before = attempt.to;
    }
    if until != End::Last {
        line.gap(before, end, matches!(until, End::Planned(_)));
    }
    Timeline {
        title: format!("Run {run}"),
        summary: summary(attempts, end.abs_diff(begin), until),
        begins: words::utc(begin),
        ends: words::utc(end),
        bars: line.bars,
        gaps: line.gaps,
    }
}

struct Line<'a> {
    scale: &'a dyn Fn(i64) -> f64,
    bars: Vec<Bar>,
    gaps: Vec<Gap>,
    /// Up to where numbers stand already.
    labelled_to: f64,
}

impl Line<'_> {
    fn bar(&mut self, attempt: &Stretch) {
        let (x, end) = ((self.scale)(attempt.from), (self.scale)(attempt.to));
        let width = (end - x).max(ATTEMPT_WIDTH_MIN);
        let (text, middle) = (attempt.number.to_string(), x + width / 2.0);
        let half = room(&text) / 2.0;
        let fits = middle - half >= self.labelled_to;
        if fits {
            self.labelled_to = middle + half + 3.0;
        }
        self.bars.push(Bar {
            x: place(x),
            width: place(width),
            class: attempt.class,
            words: attempt.words.clone(),
            label: if fits { text } else { String::new() },
            label_x: place(middle),
        });
    }

    fn gap(&mut self, from: i64, to: i64, planned: bool) {
        if to <= from {
            return;
        }
        let (x1, x2, text) = ((self.scale)(from), (self.scale)(to), words::span(to.abs_diff(from)));
        let label = if x2 - x1 > room(&text) + 8.0 { text } else { String::new() };
        let middle = place(f64::midpoint(x1, x2));
        self.gaps.push(Gap { from: place(x1), to: place(x2), middle, label, planned });
    }
}

fn room(text: &str) -> f64 {
    text.chars().map(|_| CHARACTER_WIDTH).sum()
}

fn summary(attempts: &[Stretch], all_ms: u64, until: End) -> String {
    if attempts.is_empty() {
        let all = words::span(all_ms);
        return match until {
            End::Planned(_) => format!("no attempt yet; the first is planned {all} after the beginning"),
            End::Last | End::At(_) => format!("no attempt is known, over {all}"),
        };
    }
    let said = words::counted(attempts.len() as u64, "attempt", "attempts");
    let spent: u64 = attempts.iter().map(|attempt| attempt.to.abs_diff(attempt.from)).sum();
    let rest = if matches!(until, End::Planned(_)) {
        "; the next one is planned at the end of the line"
    } else {
        ""
    };
    let (all, spent) = (words::span(all_ms), words::span(spent));
    format!("{said} over {all}: {spent} in attempts, the rest in waits{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(number: u32, from: i64, to: i64) -> Stretch {
        Stretch { number, from, to, class: "bad", words: "failed".into() }
    }

    #[test]
    fn attempts_and_waits_are_to_scale() {
        let line = draw(1, 0, &[attempt(1, 0, 1000), attempt(2, 3000, 4000)], End::Planned(8000));
        assert_eq!((line.bars.len(), line.gaps.len()), (2, 2));
        let number = |text: &String| text.parse::<f64>().unwrap();
        let long: Vec<f64> = line.gaps.iter().map(|gap| number(&gap.to) - number(&gap.from)).collect();
        assert!((long[1] / long[0] - 2.0).abs() < 0.01, "{long:?}");
        assert!(line.gaps[1].planned && !line.gaps[0].planned);
        assert!(line.summary.starts_with("2 attempts over 8 s: 2 s in attempts"), "{}", line.summary);
    }

    #[test]
    fn a_short_attempt_is_seen_and_labels_do_not_overlap() {
        let many: Vec<Stretch> =
            (0..200).zip(0..).map(|(n, at)| attempt(n, at * 1000, at * 1000 + 1)).collect();
        let line = draw(1, 0, &many, End::Last);
        assert!(line.bars.iter().all(|bar| bar.width.parse::<f64>().unwrap() >= ATTEMPT_WIDTH_MIN));
        assert!(line.bars.iter().filter(|bar| !bar.label.is_empty()).count() < 100);
        let html = draw(1, 5, &[], End::At(9)).to_string();
        assert!(html.contains("no attempt is known"), "{html}");
    }
}
