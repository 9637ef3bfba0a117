//! Where on an axis a figure stands, and which figures an axis names.

/// How figures become heights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Twice the figure is twice the height.
    Linear,
    /// Ten times the figure is one step more; what is below one is nothing.
    Logarithmic,
}

impl Scale {
    /// The height of `value` where `highest` is 1.
    pub(super) fn height(self, value: f64, highest: f64) -> f64 {
        let part = match self {
            Self::Linear => value / highest,
            // One call is to be seen, so the axis begins below it.
            Self::Logarithmic if value < 1.0 => 0.0,
            Self::Logarithmic => (value.log10() + LOWEST_DECADE) / (highest.log10() + LOWEST_DECADE),
        };
        if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// The least figure that an axis names.
    pub(super) fn foot(self) -> f64 {
        match self {
            Self::Linear => 0.0,
            Self::Logarithmic => 1.0,
        }
    }

    /// What a legend says of it.
    pub(super) fn said(self) -> &'static str {
        match self {
            Self::Linear => "",
            Self::Logarithmic => ", by powers of ten",
        }
    }

    /// The end of an axis that holds `highest`, and the figures that it names.
    pub(super) fn axis(self, highest: f64) -> (f64, Vec<f64>) {
        match self {
            Self::Linear => {
                let step = nice(highest.max(1.0) / 4.0);
                let steps = (highest.max(1.0) / step).ceil();
                (step * steps, (0..=steps as u32).map(|n| f64::from(n) * step).collect())
            }
            Self::Logarithmic => {
                let decades = highest.max(10.0).log10().ceil();
                let names = (0..=decades as i32).map(|decade| 10f64.powi(decade)).collect();
                (10f64.powf(decades), names)
            }
        }
    }
}

/// How far below one a logarithmic axis begins, in decades.
const LOWEST_DECADE: f64 = 0.3;

/// The smallest of 1, 2, 5, 10, 20 … that is not below `least`.
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
    fn axes_hold_their_figures_and_name_round_ones() {
        assert_eq!(Scale::Linear.axis(97.0), (100.0, vec![0.0, 50.0, 100.0]));
        assert_eq!(Scale::Linear.axis(0.0).0, 1.0);
        assert_eq!(Scale::Logarithmic.axis(9_999.0).0, 10_000.0);
        assert_eq!([0.3, 2.0, 3.0, 70.0].map(nice), [0.5, 2.0, 5.0, 100.0]);
    }

    #[test]
    fn heights_are_between_nothing_and_all() {
        assert_eq!(Scale::Linear.height(5.0, 10.0), 0.5);
        assert_eq!(Scale::Linear.height(5.0, 0.0), 0.0);
        assert_eq!(Scale::Logarithmic.height(0.2, 100.0), 0.0);
        assert_eq!(Scale::Logarithmic.height(100.0, 100.0), 1.0);
        assert!(Scale::Logarithmic.height(1.0, 100.0) > 0.05);
    }
}
