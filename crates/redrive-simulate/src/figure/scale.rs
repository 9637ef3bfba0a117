//! The scale of an axis: heights of values, and the labels.

/// How an axis maps values to heights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Linear.
    Linear,
    /// Logarithmic, to base ten. Values below one have no height.
    Logarithmic,
}

impl Scale {
    /// The height of `value` where `highest` is 1.
    pub(super) fn height(self, value: f64, highest: f64) -> f64 {
        let part = match self {
            Self::Linear => value / highest,
            // The axis starts below one, so that a single call is visible.
            Self::Logarithmic if value < 1.0 => 0.0,
            Self::Logarithmic => (value.log10() + LOWEST_DECADE) / (highest.log10() + LOWEST_DECADE),
        };
        if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// The lowest label of an axis.
    pub(super) fn lowest_label(self) -> f64 {
        match self {
            Self::Linear => 0.0,
            Self::Logarithmic => 1.0,
        }
    }

    /// The text that a legend adds for this scale.
    pub(super) fn legend(self) -> &'static str {
        match self {
            Self::Linear => "",
            Self::Logarithmic => " (logarithmic)",
        }
    }

    /// The end of an axis that contains `highest`, and its labels.
    pub(super) fn axis(self, highest: f64) -> (f64, Vec<f64>) {
        match self {
            Self::Linear => {
                let step = nice(highest.max(1.0) / 4.0);
                let steps = (highest.max(1.0) / step).ceil();
                (step * steps, (0..=steps as u32).map(|n| f64::from(n) * step).collect())
            }
            Self::Logarithmic => {
                let decades = highest.max(10.0).log10().ceil();
                let labels = (0..=decades as i32).map(|decade| 10f64.powi(decade)).collect();
                (10f64.powf(decades), labels)
            }
        }
    }
}

/// How far below one a logarithmic axis starts, in decades.
const LOWEST_DECADE: f64 = 0.3;

/// The smallest number of 1, 2, 5, 10, 20 … that is at least `least`.
pub(super) fn nice(least: f64) -> f64 {
    let decade = 10f64.powf(least.max(f64::MIN_POSITIVE).log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * decade);
    // The tolerance keeps 2.0000000001 from becoming 5.
    factors.into_iter().find(|nice| *nice >= least * (1.0 - 1e-9)).unwrap_or(10.0 * decade)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_contain_their_values_and_have_round_labels() {
        assert_eq!(Scale::Linear.axis(97.0), (100.0, vec![0.0, 50.0, 100.0]));
        assert_eq!(Scale::Linear.axis(0.0).0, 1.0);
        assert_eq!(Scale::Logarithmic.axis(9_999.0).0, 10_000.0);
        assert_eq!([0.3, 2.0, 3.0, 70.0].map(nice), [0.5, 2.0, 5.0, 100.0]);
    }

    #[test]
    fn heights_are_between_zero_and_one() {
        assert_eq!(Scale::Linear.height(5.0, 10.0), 0.5);
        assert_eq!(Scale::Linear.height(5.0, 0.0), 0.0);
        assert_eq!(Scale::Logarithmic.height(0.2, 100.0), 0.0);
        assert_eq!(Scale::Logarithmic.height(100.0, 100.0), 1.0);
        assert!(Scale::Logarithmic.height(1.0, 100.0) > 0.05);
    }
}
