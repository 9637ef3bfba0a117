//! Calls over time as a picture: strips under each other, on one time axis.

use std::fmt::Write as _;

use super::scale::nice;
use super::svg::{COLOURS, Picture, Side};
use super::{Strip, Strips, people, seconds};
use crate::timeline::Timeline;

const WIDTH: f64 = 860.0;
const LEFT: f64 = 190.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 64.0;
const STRIP: f64 = 62.0;
const GAP: f64 = 16.0;
const BOTTOM: f64 = 46.0;
/// Steps that a picture shows at most, so that each is to be seen.
const STEPS_MAX: usize = 220;

/// Strips brought to common steps and cut to a common length.
pub(super) struct Aligned {
    pub(super) step_ms: f64,
    pub(super) steps: usize,
    pub(super) highest: f64,
    pub(super) rows: Vec<Row>,
}

pub(super) struct Row {
    pub(super) calls: Vec<f64>,
    /// When its last call came, where that is beyond what is shown.
    pub(super) goes_on_until_ms: Option<f64>,
}

/// Brings strips to at most `steps_max` common steps.
pub(super) fn align(strips: &Strips, steps_max: usize) -> Aligned {
    let ends: Vec<f64> = strips.strips.iter().map(|strip| end_ms(&strip.calls)).collect();
    let shown_ms = shown(&ends).max(strips.mark.as_ref().map_or(0.0, |mark| mark.at_ms as f64));
    let native = strips.strips.first().map_or(1, |strip| strip.calls.step_ms());
    let least = shown_ms / steps_max.max(1) as f64 / f64::from(native);
    let factor = if least <= 1.0 { 1 } else { nice(least) as u32 };
    let step_ms = f64::from(native * factor);
    let steps = (shown_ms / step_ms).ceil().max(1.0) as usize;
    let row = |strip: &Strip| {
        let calls = strip.calls.coarser(factor);
        let goes_on_until_ms = (calls.calls().len() > steps).then(|| end_ms(&strip.calls));
        Row { calls: calls.calls().iter().take(steps).copied().collect(), goes_on_until_ms }
    };
    let rows: Vec<Row> = strips.strips.iter().map(row).collect();
    let highest = rows.iter().flat_map(|row| &row.calls).copied().fold(0.0, f64::max);
    Aligned { step_ms, steps, highest, rows }
}

fn end_ms(calls: &Timeline) -> f64 {
    calls.calls().len() as f64 * f64::from(calls.step_ms())
}

/// All of them, unless one lasts so much longer that the others would be a smear.
fn shown(ends: &[f64]) -> f64 {
    let mut sorted = ends.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.as_slice() {
        [.., second, longest] if *longest > 3.0 * second && *second > 0.0 => 1.5 * second,
        [.., longest] => *longest,
        [] => 0.0,
    }
}

pub(super) fn svg(strips: &Strips) -> String {
    let aligned = align(strips, STEPS_MAX);
    let height = TOP + strips.strips.len() as f64 * (STRIP + GAP) + BOTTOM;
    let (top, _) = strips.scale.axis(aligned.highest);
    let mut frame =
        Frame { picture: Picture::new(WIDTH, height, &strips.title), strips, aligned, top, height };
    frame.draw_head();
    for (place, strip) in strips.strips.iter().enumerate() {
        frame.draw_strip(place, strip);
    }
    frame.draw_time();
    frame.picture.finish()
}

/// What the strips stand in.
struct Frame<'a> {
    picture: Picture,
    strips: &'a Strips,
    aligned: Aligned,
    top: f64,
    height: f64,
}

impl Frame<'_> {
    fn draw_head(&mut self) {
        self.picture.text(16.0, 26.0, Side::Start, "title", &self.strips.title);
        let legend = format!(
            "each step {}; {} in a step from bottom to top{}",
            seconds(self.aligned.step_ms),
            self.strips.counted,
            self.strips.scale.said()
        );
        self.picture.text(16.0, 46.0, Side::Start, "small", &legend);
    }

    fn draw_strip(&mut self, place: usize, strip: &Strip) {
        let base = TOP + place as f64 * (STRIP + GAP) + STRIP;
        let height = |figure: f64| base - STRIP * self.strips.scale.height(figure, self.top);
        let picture = &mut self.picture;
        picture.text(16.0, base - STRIP + 14.0, Side::Start, "name", &strip.name);
        for (line, part) in strip.note.split("; ").enumerate() {
            picture.text(16.0, base - STRIP + 30.0 + 14.0 * line as f64, Side::Start, "small", part);
        }
        for end in [self.strips.scale.foot(), self.top] {
            picture.line((LEFT, height(end)), (WIDTH - RIGHT, height(end)), "grid");
            picture.text(LEFT - 6.0, height(end) + 4.0, Side::End, "small", &people(end));
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
        if let Some(until) = row.goes_on_until_ms {
            let note = format!("goes on until {} →", seconds(until));
            picture.text(WIDTH - RIGHT, base - STRIP + 14.0, Side::End, "small", &note);
        }
    }

    fn draw_time(&mut self) {
        let base = self.height - BOTTOM - GAP;
        let all_ms = self.aligned.step_ms * self.aligned.steps as f64;
        let x = |ms: f64| LEFT + (WIDTH - RIGHT - LEFT) * ms / all_ms;
        let step = nice(all_ms / 8.0);
        for tick in 0..=(all_ms / step) as u32 {
            let at = f64::from(tick) * step;
            self.picture.line((x(at), base), (x(at), base + 5.0), "axis");
            let digits = usize::from(step < 1_000.0);
            let name = format!("{:.digits$} s", at / 1e3);
            self.picture.text(x(at), base + 18.0, Side::Middle, "small", &name);
        }
        if let Some(mark) = &self.strips.mark {
            let (at, foot) = (x(mark.at_ms as f64), self.height - 14.0);
            self.picture.line((at, TOP - 8.0), (at, base), "mark");
            self.picture.line((LEFT, foot), (LEFT + 30.0, foot), "mark");
            self.picture.text(LEFT + 38.0, foot + 4.0, Side::Start, "small", mark.meaning);
        }
    }
}
