//! Scales: from values to positions in a chart, with ticks at round values.

use super::{BOTTOM, HEIGHT, LEFT, RIGHT, TOP, Tick, WIDTH, coordinate};
use crate::text;

/// The unit of the values in a chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// A number of things.
    Count,
    /// A rate per second.
    PerSecond,
    /// A duration in ms.
    Duration,
}

/// The possible distances between two ticks of durations, in ms.
const TICK_DURATIONS: [u64; 27] = [
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
/// The approximate number of ticks.
const TICKS: f64 = 4.0;

impl Unit {
    /// Formats a value.
    pub(crate) fn show(self, value: f64) -> String {
        match self {
            Self::Count => text::count(rounded(value)),
            Self::PerSecond => format!("{}/s", text::decimal(value)),
            Self::Duration => text::duration(rounded(value)),
        }
    }

    /// Formats a value. `None` becomes a dash.
    pub(crate) fn show_or_dash(self, value: Option<f64>) -> String {
        value.map_or_else(|| "–".to_owned(), |value| self.show(value))
    }

    /// Formats the label of a tick, which must be short.
    fn tick_label(self, value: f64) -> String {
        match self {
            Self::Count if value >= 1_000_000.0 => format!("{} M", text::decimal(value / 1_000_000.0)),
            Self::Count if value >= 10_000.0 => format!("{} k", text::decimal(value / 1000.0)),
            Self::Count | Self::PerSecond => text::decimal(value),
            Self::Duration => text::duration(rounded(value)),
        }
    }

    /// The distance between two ticks of a scale from 0 to `most`.
    fn step(self, most: f64) -> f64 {
        match self {
            Self::PerSecond if most <= 0.0 => 1.0,
            Self::Duration => {
                let fits = |span: &&u64| most <= as_f64(**span) * TICKS;
                // Ticks of longer durations are whole months apart.
                let months = || (most / TICKS / 2.592e9).ceil() * 2.592e9;
                TICK_DURATIONS.iter().find(fits).map_or_else(months, |span| as_f64(*span))
            }
            Self::Count | Self::PerSecond => {
                let raw = (most / TICKS).max(if self == Self::Count { 1.0 } else { 0.001 });
                let base = 10_f64.powf(raw.log10().floor());
                let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| raw <= base * factor * 1.0001);
                base * factor.unwrap_or(10.0)
            }
        }
    }
}

/// The vertical scale, from zero upwards.
#[derive(Debug)]
pub(crate) struct VerticalScale {
    top: f64,
    step: f64,
    unit: Unit,
}

impl VerticalScale {
    /// A scale that holds values up to `most`.
    pub(crate) fn up_to(most: f64, unit: Unit) -> Self {
        let step = unit.step(most.max(0.0));
        let top = (most / step).ceil().max(1.0) * step;
        Self { top, step, unit }
    }

    /// The vertical position of a value.
    pub(crate) fn y(&self, value: f64) -> f64 {
        let part = (value / self.top).clamp(0.0, 1.0);
        (HEIGHT - BOTTOM) - part * (HEIGHT - BOTTOM - TOP)
    }

    pub(crate) fn ticks(&self) -> Vec<Tick> {
        let mut ticks = Vec::new();
        let mut value = 0.0;
        while value <= self.top * 1.0001 {
            ticks.push(Tick { at: coordinate(self.y(value)), label: self.unit.tick_label(value) });
            value += self.step;
        }
        ticks
    }
}

/// The horizontal scale.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HorizontalScale {
    from: f64,
    to: f64,
}

impl HorizontalScale {
    pub(crate) fn new(from: f64, to: f64) -> Self {
        Self { from, to: if to > from { to } else { from + 1.0 } }
    }

    /// The horizontal position of a value.
    pub(crate) fn x(&self, value: f64) -> f64 {
        let part = ((value - self.from) / (self.to - self.from)).clamp(0.0, 1.0);
        LEFT + part * (WIDTH - LEFT - RIGHT)
    }
}

fn rounded(value: f64) -> u64 {
    // The cast saturates. The values of charts are never negative.
    value.max(0.0).round() as u64
}

/// Converts a number. The rounding is not visible in a chart.
pub(crate) fn as_f64(value: u64) -> f64 {
    value as f64
}

/// Converts an instant in epoch ms.
pub(crate) fn instant(ms: i64) -> f64 {
    ms as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(most: f64, unit: Unit) -> Vec<String> {
        VerticalScale::up_to(most, unit).ticks().into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn ticks_are_round_values_above_the_highest() {
        assert_eq!(labels(0.0, Unit::Count), ["0", "1"]);
        assert_eq!(labels(7.0, Unit::Count), ["0", "2", "4", "6", "8"]);
        assert_eq!(labels(1200.0, Unit::Count), ["0", "500", "1000", "1500"]);
        assert_eq!(labels(0.3, Unit::PerSecond), ["0", "0.1", "0.2", "0.3"]);
        assert_eq!(labels(2500.0, Unit::Duration), ["0 ms", "1 s", "2 s", "3 s"]);
        assert_eq!(labels(3_600_000.0, Unit::Duration), ["0 ms", "30 min", "1 h"]);
        let huge = VerticalScale::up_to(3.0e11, Unit::Duration);
        assert!(huge.ticks().len() <= 6, "{:?}", huge.ticks());
    }

    #[test]
    fn positions_stay_within_the_chart() {
        let scale = VerticalScale::up_to(10.0, Unit::Count);
        assert!(scale.y(0.0) > scale.y(10.0) && scale.y(99.0) >= TOP && scale.y(-1.0) <= HEIGHT - BOTTOM);
        let axis = HorizontalScale::new(5.0, 5.0);
        assert!(axis.x(5.0) >= LEFT && axis.x(1e9) <= WIDTH - RIGHT);
    }
}
