//! From values to places on a drawing, with marks at round values.

use super::{BOTTOM, HEIGHT, LEFT, RIGHT, TOP, Tick, WIDTH, place};
use crate::words;

/// What a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// A number of things.
    Count,
    /// So many a second.
    PerSecond,
    /// A span in ms.
    Span,
}

/// Spans that a scale may be divided into.
const SPANS: [u64; 27] = [
    1,
    2,
    5,
    10,
    20,
    50,
    100,
    200,
    500,
    1000,
    2000,
    5000,
    10_000,
    30_000,
    60_000,
    120_000,
    300_000,
    600_000,
    1_800_000,
    3_600_000,
    7_200_000,
    21_600_000,
    43_200_000,
    86_400_000,
    172_800_000,
    604_800_000,
    2_592_000_000,
];
/// Marks on a scale, about.
const MARKS: f64 = 4.0;

impl Unit {
    /// A value in words.
    pub(crate) fn show(self, value: f64) -> String {
        match self {
            Self::Count => words::count(rounded(value)),
            Self::PerSecond => format!("{}/s", words::decimal(value)),
            Self::Span => words::span(rounded(value)),
        }
    }

    /// A value in words, or a dash where there is none.
    pub(crate) fn show_or_dash(self, value: Option<f64>) -> String {
        value.map_or_else(|| "–".to_owned(), |value| self.show(value))
    }

    /// A value beside an axis, where there is little room.
    fn mark(self, value: f64) -> String {
        match self {
            Self::Count if value >= 1_000_000.0 => format!("{} M", words::decimal(value / 1_000_000.0)),
            Self::Count if value >= 10_000.0 => format!("{} k", words::decimal(value / 1000.0)),
            Self::Count | Self::PerSecond => words::decimal(value),
            Self::Span => words::span(rounded(value)),
        }
    }

    fn step(self, most: f64) -> f64 {
        match self {
            Self::PerSecond if most <= 0.0 => 1.0,
            Self::Span => {
                let fits = |span: &&u64| most <= as_f64(**span) * MARKS;
                // Beyond that in whole months.
                let months = || (most / MARKS / 2.592e9).ceil() * 2.592e9;
                SPANS.iter().find(fits).map_or_else(months, |span| as_f64(*span))
            }
            Self::Count | Self::PerSecond => {
                let raw = (most / MARKS).max(if self == Self::Count { 1.0 } else { 0.001 });
                let base = 10_f64.powf(raw.log10().floor());
                let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| raw <= base * factor * 1.0001);
                base * factor.unwrap_or(10.0)
            }
        }
    }
}

/// From zero up.
#[derive(Debug)]
pub(crate) struct Rise {
    top: f64,
    step: f64,
    unit: Unit,
}

impl Rise {
    /// A scale that holds values up to `most`.
    pub(crate) fn to(most: f64, unit: Unit) -> Self {
        let step = unit.step(most.max(0.0));
        let top = (most / step).ceil().max(1.0) * step;
        Self { top, step, unit }
    }

    /// How high a value is.
    pub(crate) fn y(&self, value: f64) -> f64 {
        let part = (value / self.top).clamp(0.0, 1.0);
        (HEIGHT - BOTTOM) - part * (HEIGHT - BOTTOM - TOP)
    }

    /// The marks.
    pub(crate) fn ticks(&self) -> Vec<Tick> {
        let mut ticks = Vec::new();
        let mut value = 0.0;
        while value <= self.top * 1.0001 {
            ticks.push(Tick { at: place(self.y(value)), label: self.unit.mark(value) });
            value += self.step;
        }
        ticks
    }
}

/// From left to right.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reach {
    from: f64,
    to: f64,
}

impl Reach {
    pub(crate) fn new(from: f64, to: f64) -> Self {
        Self { from, to: if to > from { to } else { from + 1.0 } }
    }

    /// How far to the right a value is.
    pub(crate) fn x(&self, value: f64) -> f64 {
        let part = ((value - self.from) / (self.to - self.from)).clamp(0.0, 1.0);
        LEFT + part * (WIDTH - LEFT - RIGHT)
    }
}

fn rounded(value: f64) -> u64 {
    // Saturates, and values of charts are never negative.
    value.max(0.0).round() as u64
}

/// A number for a drawing, which is coarser than a double.
pub(crate) fn as_f64(value: u64) -> f64 {
    value as f64
}

/// An instant for a drawing.
pub(crate) fn instant(ms: i64) -> f64 {
    ms as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(most: f64, unit: Unit) -> Vec<String> {
        Rise::to(most, unit).ticks().into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn marks_are_at_round_values_that_hold_the_highest() {
        assert_eq!(labels(0.0, Unit::Count), ["0", "1"]);
        assert_eq!(labels(7.0, Unit::Count), ["0", "2", "4", "6", "8"]);
        assert_eq!(labels(1200.0, Unit::Count), ["0", "500", "1000", "1500"]);
        assert_eq!(labels(0.3, Unit::PerSecond), ["0", "0.1", "0.2", "0.3"]);
        assert_eq!(labels(2500.0, Unit::Span), ["0 ms", "1 s", "2 s", "3 s"]);
        assert_eq!(labels(3_600_000.0, Unit::Span), ["0 ms", "30 min", "1 h"]);
        let huge = Rise::to(3.0e11, Unit::Span);
        assert!(huge.ticks().len() <= 6, "{:?}", huge.ticks());
    }

    #[test]
    fn places_stay_on_the_drawing() {
        let rise = Rise::to(10.0, Unit::Count);
        assert!(rise.y(0.0) > rise.y(10.0) && rise.y(99.0) >= TOP && rise.y(-1.0) <= HEIGHT - BOTTOM);
        let reach = Reach::new(5.0, 5.0);
        assert!(reach.x(5.0) >= LEFT && reach.x(1e9) <= WIDTH - RIGHT);
    }
}
