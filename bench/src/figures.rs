//! Figures with their spread and their bars, as a table and as JSON.

use std::fmt::Write as _;

use serde::Serialize;

/// Repeated measurements of one thing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Measures `repeats` times.
    pub fn take(repeats: usize, mut measure: impl FnMut() -> anyhow::Result<f64>) -> anyhow::Result<Self> {
        (0..repeats).map(|_| measure()).collect::<anyhow::Result<Vec<_>>>().map(Self)
    }

    /// Measurements made elsewhere.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        Self(values.into_iter().collect())
    }

    /// The measurements in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = f64> + '_ {
        self.0.iter().copied()
    }

    /// The number of measurements.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The measurement in the middle.
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The measurement at this quantile: 0 is the smallest, 1 the largest.
    pub fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1);
        sorted.get((last as f64 * share).round() as usize).copied().unwrap_or(f64::NAN)
    }

    /// Divides each measurement by the one of `other` from the same round.
    pub fn over(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(ours, theirs)| ours / theirs).collect())
    }
}

/// The bar that a figure must reach.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub enum Bar {
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
}

impl Bar {
    fn is_reached_by(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bar) => value >= bar,
            Self::AtMost(bar) => value <= bar,
        }
    }
}

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// What was measured.
    pub name: String,
    /// The unit of `ours` and `other`.
    pub unit: &'static str,
    /// The measurements of redrive.
    pub ours: Samples,
    /// The name and the measurements of what redrive is compared with, from the same run.
    pub other: Option<(String, Samples)>,
    /// The bar for the ratio of `ours` to `other`, or for `ours` alone if there is no other.
    pub bar: Option<Bar>,
}

impl Figure {
    /// The values that are compared with the bar.
    pub fn bar_values(&self) -> Samples {
        match &self.other {
            Some((_, other)) => self.ours.over(other),
            None => self.ours.clone(),
        }
    }

    /// Whether the median reaches the bar. `None` without a bar.
    pub fn reaches_bar(&self) -> Option<bool> {
        self.bar.map(|bar| bar.is_reached_by(self.bar_values().median()))
    }
}

/// The figures as a table.
pub fn table(figures: &[Figure]) -> String {
    let header = ["figure", "ours", "against", "ratio (spread)", "bar", ""].map(str::to_owned);
    let rows: Vec<[String; 6]> = std::iter::once(header).chain(figures.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 6] = std::array::from_fn(width);
    let mut table = String::new();
    for row in &rows {
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(table, "{cell:<width$}  ");
        }
        table.truncate(table.trim_end().len());
        table.push('\n');
    }
    table
}

fn row(figure: &Figure) -> [String; 6] {
    let shown = |samples: &Samples| format!("{} {}", number(samples.median()), figure.unit);
    let spread = |samples: &Samples, scale: f64, unit: &str| {
        let [low, middle, high] = [0.0, 0.5, 1.0].map(|share| number(samples.quantile(share) * scale));
        format!("{middle}{unit} ({low}–{high})")
    };
    let (against, ratio) = match &figure.other {
        Some((name, other)) => (format!("{} {name}", shown(other)), spread(&figure.bar_values(), 1.0, "×")),
        None => (String::new(), spread(&figure.ours, 1.0, "")),
    };
    let suffix = if figure.other.is_some() { "×" } else { "" };
    let bar = match figure.bar {
        Some(Bar::AtLeast(bar)) => format!("≥ {}{suffix}", number(bar)),
        Some(Bar::AtMost(bar)) => format!("≤ {}{suffix}", number(bar)),
        None => String::new(),
    };
    let verdict = match figure.reaches_bar() {
        Some(true) => "ok",
        Some(false) => "MISSED",
        None => "",
    };
    [figure.name.clone(), shown(&figure.ours), against, ratio, bar, verdict.to_owned()]
}

fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => {
            let digits = format!("{value:.0}");
            let groups: Vec<&str> =
                digits.as_bytes().rchunks(3).rev().map(|g| std::str::from_utf8(g).unwrap_or("")).collect();
            groups.join(" ")
        }
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(ours: [f64; 3], bar: Bar) -> Figure {
        let other = Some(("probe".to_owned(), Samples::of([100.0, 100.0, 100.0])));
        Figure { name: "drain".into(), unit: "/s", ours: Samples::of(ours), other, bar: Some(bar) }
    }

    #[test]
    fn a_bar_is_judged_by_the_median_ratio() {
        assert_eq!(figure([40.0, 60.0, 90.0], Bar::AtLeast(0.5)).reaches_bar(), Some(true));
        assert_eq!(figure([40.0, 45.0, 90.0], Bar::AtLeast(0.5)).reaches_bar(), Some(false));
        assert_eq!(figure([40.0, 45.0, 90.0], Bar::AtMost(0.5)).reaches_bar(), Some(true));
    }

    #[test]
    fn a_missed_bar_shows_in_the_table_with_its_spread() {
        let row = |ours| table(&[figure(ours, Bar::AtLeast(0.5))]).lines().nth(1).map(str::to_owned).unwrap();
        let missed = row([400_000.0, 40.0, 1.0]);
        assert!(missed.contains("0.40× (0.01–4 000)") && missed.ends_with("≥ 0.50×  MISSED"), "{missed}");
        assert!(row([60.0, 70.0, 80.0]).ends_with("≥ 0.50×  ok"));
    }
}
