//! Jitter: the random part of a wait, so that jobs that failed together do not retry together.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::backoff::Backoff;
use crate::invalid::Invalid;
use crate::limits::HORIZON;
use crate::random::RandomSource;

/// How a wait is drawn around the backoff's wait `b`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "jitterType", rename_all = "UPPERCASE")]
pub enum Jitter {
    /// `b`
    None,
    /// Uniform in `[0, b]`.
    Full,
    /// `b/2 +` uniform in `[0, b/2]`.
    Equal,
    /// Uniform in `[initial, min(max_delay, 3 · previous actual wait)]`.
    Decorrelated,
    /// `b ·` uniform in `[1−f, 1+f]`.
    Proportional {
        /// The fraction `f`.
        #[serde(rename = "jitterFraction")]
        fraction: Fraction,
    },
    /// `b +` uniform in `[−j, +j]`, never below zero.
    Absolute {
        /// The half-width `j`.
        #[serde(rename = "jitterMs", with = "crate::time::millis")]
        width: Duration,
    },
}

impl Jitter {
    /// Jitter of up to `fraction` of the wait in both directions.
    pub fn proportional(fraction: f64) -> Result<Self, Invalid> {
        Ok(Self::Proportional { fraction: Fraction::new(fraction)? })
    }

    /// Jitter of up to `width` in both directions.
    pub fn absolute(width: Duration) -> Self {
        Self::Absolute { width: width.min(HORIZON) }
    }

    /// The wait after `failed` failed attempts. `previous` is the wait before the last attempt.
    pub fn spread(
        self,
        backoff: &Backoff,
        failed: u32,
        previous: Option<Duration>,
        random: &mut dyn RandomSource,
    ) -> Duration {
        let (low, high) = match self {
            Self::Decorrelated => decorrelated_range(backoff, previous.unwrap_or(backoff.initial())),
            Self::None | Self::Full | Self::Equal | Self::Proportional { .. } | Self::Absolute { .. } => {
                self.range(backoff.before_retry(failed))
            }
        };
        // Only `Absolute` can draw a negative number. It means a wait of zero.
        let drawn = low + (high - low) * random.unit().clamp(0.0, 1.0);
        from_secs(drawn.max(0.0))
    }

    /// The interval, in seconds, from which the wait around `wait` is drawn.
    pub(super) fn range(self, wait: Duration) -> (f64, f64) {
        let b = wait.as_secs_f64();
        match self {
            Self::None | Self::Decorrelated => (b, b),
            Self::Full => (0.0, b),
            Self::Equal => (b / 2.0, b),
            Self::Proportional { fraction } => (b * (1.0 - fraction.get()), b * (1.0 + fraction.get())),
            Self::Absolute { width } => (b - width.as_secs_f64(), b + width.as_secs_f64()),
        }
    }
}

/// The interval, in seconds, of decorrelated jitter after an actual wait of `previous`.
pub(super) fn decorrelated_range(backoff: &Backoff, previous: Duration) -> (f64, f64) {
    let low = backoff.initial();
    let high = previous.saturating_mul(3).min(backoff.max_delay()).max(low);
    (low.as_secs_f64(), high.as_secs_f64())
}

/// Seconds as a duration, at most the horizon.
pub(super) fn from_secs(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(HORIZON)
}

/// A number from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Fraction(f64);

impl Fraction {
    /// Accepts a number from 0 to 1.
    pub fn new(fraction: f64) -> Result<Self, Invalid> {
        if (0.0..=1.0).contains(&fraction) {
            Ok(Self(fraction))
        } else {
            Err(Invalid::new("jitterFraction", format!("must be from 0 to 1, is {fraction}")))
        }
    }

    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for Fraction {
    type Error = Invalid;
    fn try_from(fraction: f64) -> Result<Self, Invalid> {
        Self::new(fraction)
    }
}

impl From<Fraction> for f64 {
    fn from(fraction: Fraction) -> f64 {
        fraction.get()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn doubling() -> Backoff {
        Backoff::exponential(ms(1_000), 2.0, ms(10_000)).unwrap()
    }

    #[test]
    fn each_jitter_covers_its_interval_and_no_more() {
        // (jitter, failed, previous, lowest, middle, highest) in ms
        let cases = [
            (Jitter::None, 3, None, 4_000, 4_000, 4_000),
            (Jitter::Full, 3, None, 0, 2_000, 4_000),
            (Jitter::Equal, 3, None, 2_000, 3_000, 4_000),
            (Jitter::Decorrelated, 3, None, 1_000, 2_000, 3_000),
            (Jitter::Decorrelated, 9, Some(2_000), 1_000, 3_500, 6_000),
            (Jitter::Decorrelated, 9, Some(9_000), 1_000, 5_500, 10_000),
            (Jitter::proportional(0.1).unwrap(), 3, None, 3_600, 4_000, 4_400),
            (Jitter::absolute(ms(200)), 3, None, 3_800, 4_000, 4_200),
            (Jitter::absolute(ms(3_000)), 1, None, 0, 1_000, 4_000),
        ];
        for (jitter, failed, previous, low, middle, high) in cases {
            let at = |u: f64| {
                jitter.spread(&doubling(), failed, previous.map(ms), &mut move || u).as_millis() as u64
            };
            assert_eq!([at(0.0), at(0.5), at(1.0)], [low, middle, high], "{jitter:?}");
        }
    }

    #[test]
    fn a_fraction_outside_its_range_names_its_field() {
        for fraction in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert_eq!(Jitter::proportional(fraction).unwrap_err().field, "jitterFraction");
        }
    }

    proptest! {
        #[test]
        fn no_jitter_overflows_or_goes_below_zero(
            initial in 0u64..31_536_000_000, failed in any::<u32>(), previous in proptest::option::of(any::<u64>()),
            fraction in 0.0..=1.0f64, width in any::<u64>(), unit in 0.0..1.0f64,
        ) {
            let backoff = Backoff::exponential(ms(initial), 2.0, HORIZON).unwrap();
            let jitters = [
                Jitter::None, Jitter::Full, Jitter::Equal, Jitter::Decorrelated,
                Jitter::proportional(fraction).unwrap(), Jitter::absolute(ms(width)),
            ];
            for jitter in jitters {
                let wait = jitter.spread(&backoff, failed, previous.map(ms), &mut || unit);
                prop_assert!(wait <= HORIZON * 2, "{jitter:?} {wait:?}");
            }
        }
    }
}
