//! Calls over time as SVG: the timelines are below each other, on one time axis.

use std::fmt::Write as _;

use super::scale::nice;
use super::svg::{COLOURS, Picture, Side};
use super::{CallsOverTime, PolicyCalls, format_count, format_ms};
use crate::timeline::Timeline;

const WIDTH: f64 = 860.0;
const LEFT: f64 = 190.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 64.0;
const ROW_HEIGHT: f64 = 62.0;
const GAP: f64 = 16.0;
const BOTTOM: f64 = 46.0;
/// The most steps in an image, so that each is visible.
const STEPS_MAX: usize = 220;

/// Timelines with common steps and a common length.
pub(super) struct AlignedTimelines {
    pub(super) step_ms: f64,
    pub(super) steps: usize,
    pub(super) highest: f64,
    pub(super) rows: Vec<Row>,
}

pub(super) struct Row {
    pub(super) calls: Vec<f64>,
    /// The time of the last call if it is not shown.
    pub(super) continues_until_ms: Option<f64>,
}

/// Divides all timelines of a figure into the same steps, at most `steps_max`.
pub(super) fn align(figure: &CallsOverTime, steps_max: usize) -> AlignedTimelines {
    let ends: Vec<f64> = figure.timelines.iter().map(|timeline| end_ms(&timeline.calls)).collect();
    let shown_ms = shown_duration_ms(&ends).max(figure.mark.as_ref().map_or(0.0, |mark| mark.at_ms as f64));
    let native = figure.timelines.first().map_or(1, |timeline| timeline.calls.step_ms());
    let least = shown_ms / steps_max.max(1) as f64 / f64::from(native);
    let factor = if least <= 1.0 { 1 } else { nice(least) as u32 };
    let step_ms = f64::from(native * factor);
    let steps = (shown_ms / step_ms).ceil().max(1.0) as usize;
    let row = |timeline: &PolicyCalls| {
        let calls = timeline.calls.coarser(factor);
        let continues_until_ms = (calls.calls().len() > steps).then(|| end_ms(&timeline.calls));
        Row { calls: calls.calls().iter().take(steps).copied().collect(), continues_until_ms }
    };
    let rows: Vec<Row> = figure.timelines.iter().map(row).collect();
    let highest = rows.iter().flat_map(|row| &row.calls).copied().fold(0.0, f64::max);
    AlignedTimelines { step_ms, steps, highest, rows }
}

fn end_ms(calls: &Timeline) -> f64 {
    calls.calls().len() as f64 * f64::from(calls.step_ms())
}

/// The time to show: all of it, unless one timeline is so much longer than the others that they would be too small to read.
fn shown_duration_ms(ends: &[f64]) -> f64 {
    let mut sorted = ends.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.as_slice() {
        [.., second, longest] if *longest > 3.0 * second && *second > 0.0 => 1.5 * second,
        [.., longest] => *longest,
        [] => 0.0,
    }
}

pub(super) fn svg(figure: &CallsOverTime) -> String {
    let aligned = align(figure, STEPS_MAX);
    let height = TOP + figure.timelines.len() as f64 * (ROW_HEIGHT + GAP) + BOTTOM;
    let (top, _) = figure.scale.axis(aligned.highest);
    let mut frame =
        Frame { picture: Picture::new(WIDTH, height, &figure.title), figure, aligned, top, height };
    frame.draw_head();
    for (place, timeline) in figure.timelines.iter().enumerate() {
        frame.draw_timeline(place, timeline);
    }
    frame.draw_time_axis();
    frame.picture.finish()
}

/// The image, with the timelines and their common scales.
struct Frame<'a> {
    picture: Picture,
    figure: &'a CallsOverTime,
    aligned: AlignedTimelines,
    top: f64,
    height: f64,
}

impl Frame<'_> {
    fn draw_head(&mut self) {
        self.picture.text(16.0, 26.0, Side::Start, "title", &self.figure.title);
        let legend = format!(
            "each step is {}; height is {} per step{}",
            format_ms(self.aligned.step_ms),
            self.figure.counted,
            self.figure.scale.legend()
        );
        self.picture.text(16.0, 46.0, Side::Start, "small", &legend);
    }

    fn draw_timeline(&mut self, place: usize, timeline: &PolicyCalls) {
        let base = TOP + place as f64 * (ROW_HEIGHT + GAP) + ROW_HEIGHT;
        let height = |calls: f64| base - ROW_HEIGHT * self.figure.scale.height(calls, self.top);
        let picture = &mut self.picture;
        picture.text(16.0, base - ROW_HEIGHT + 14.0, Side::Start, "name", &timeline.name);
        for (line, part) in timeline.note.split("; ").enumerate() {
            picture.text(16.0, base - ROW_HEIGHT + 30.0 + 14.0 * line as f64, Side::Start, "small", part);
        }
        for label in [self.figure.scale.lowest_label(), self.top] {
            picture.line((LEFT, height(label)), (WIDTH - RIGHT, height(label)), "grid");
            picture.text(LEFT - 6.0, height(label) + 4.0, Side::End, "small", &format_count(label));
        }
        let row = &self.aligned.rows[place];
        let step = (WIDTH - RIGHT - LEFT) / self.aligned.steps as f64;
        let mut path = format!("M{LEFT:.1} {base:.1}");
        for calls in &row.calls {
            let _ = write!(path, "V{:.1}h{step:.3}", height(*calls));
        }
        let _ = write!(path, "V{base:.1}Z");
        picture.path(&path, &format!("area c{}", place % COLOURS));
        picture.line((LEFT, base), (WIDTH - RIGHT, base), "axis");
        if let Some(until) = row.continues_until_ms {
            let note = format!("continues until {} →", format_ms(until));
            picture.text(WIDTH - RIGHT, base - ROW_HEIGHT + 14.0, Side::End, "small", &note);
        }
    }

    fn draw_time_axis(&mut self) {
        let base = self.height - BOTTOM - GAP;
        let all_ms = self.aligned.step_ms * self.aligned.steps as f64;
        let x = |ms: f64| LEFT + (WIDTH - RIGHT - LEFT) * ms / all_ms;
        let step = nice(all_ms / 8.0);
        for tick in 0..=(all_ms / step) as u32 {
            let at = f64::from(tick) * step;
            self.picture.line((x(at), base), (x(at), base + 5.0), "axis");
            let digits = usize::from(step < 1_000.0);
            let label = format!("{:.digits$} s", at / 1e3);
            self.picture.text(x(at), base + 18.0, Side::Middle, "small", &label);
        }
        if let Some(mark) = &self.figure.mark {
            let (at, foot) = (x(mark.at_ms as f64), self.height - 14.0);
            self.picture.line((at, TOP - 8.0), (at, base), "mark");
            self.picture.line((LEFT, foot), (LEFT + 30.0, foot), "mark");
            self.picture.text(LEFT + 38.0, foot + 4.0, Side::Start, "small", mark.meaning);
        }
    }
}
