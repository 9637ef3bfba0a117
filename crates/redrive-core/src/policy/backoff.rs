//! How the wait grows from one retry to the next, before jitter.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;
use crate::limits::{DELAYS_ITEMS_MAX, HORIZON};

/// A curve of waits with a cap. The wait before retry `k` is `min(max_delay, curve(k))` for every `k`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Spec", into = "Spec")]
pub struct Backoff {
    curve: Curve,
    max_delay: Duration,
}

/// The shape of the curve. `k` is the number of failed attempts so far.
#[derive(Debug, Clone, PartialEq)]
pub enum Curve {
    /// `initial`
    Fixed(Duration),
    /// `initial · k`
    Linear(Duration),
    /// `initial · multiplier^(k−1)`
    Exponential(Duration, f64),
    /// `initial · k^exponent`
    Polynomial(Duration, f64),
    /// The `k`-th entry. The last entry repeats.
    Schedule(Vec<Duration>),
}

impl Backoff {
    /// The same wait each time.
    pub fn fixed(initial: Duration) -> Result<Self, Invalid> {
        Self::new(Curve::Fixed(initial), initial)
    }

    /// Grows by `initial` each time.
    pub fn linear(initial: Duration, max_delay: Duration) -> Result<Self, Invalid> {
        Self::new(Curve::Linear(initial), max_delay)
    }

    /// Grows by a factor each time.
    pub fn exponential(initial: Duration, multiplier: f64, max_delay: Duration) -> Result<Self, Invalid> {
        Self::new(Curve::Exponential(initial, multiplier), max_delay)
    }

    /// Grows by a power of the number of failures.
    pub fn polynomial(initial: Duration, exponent: f64, max_delay: Duration) -> Result<Self, Invalid> {
        Self::new(Curve::Polynomial(initial, exponent), max_delay)
    }

    /// Follows a list. The last entry repeats.
    pub fn schedule(delays: Vec<Duration>) -> Result<Self, Invalid> {
        let longest = delays.iter().max().copied().unwrap_or_default();
        Self::new(Curve::Schedule(delays), longest)
    }

    /// Checks a curve and its cap.
    pub fn new(curve: Curve, max_delay: Duration) -> Result<Self, Invalid> {
        if max_delay > HORIZON {
            return Err(Invalid::new(
                "maxDelayMs",
                format!("must be at most {} (a year)", HORIZON.as_millis()),
            ));
        }
        curve.check()?;
        // A schedule lists its waits, and the cap may shorten any of them, even the first.
        if !matches!(curve, Curve::Schedule(_)) && curve.initial() > max_delay {
            let problem = format!(
                "must not be above maxDelayMs ({}), is {}",
                max_delay.as_millis(),
                curve.initial().as_millis()
            );
            return Err(Invalid::new("initialDelayMs", problem));
        }
        Ok(Self { curve, max_delay })
    }

    /// The capped wait after `failed` failed attempts. Zero counts as one.
    pub fn before_retry(&self, failed: u32) -> Duration {
        let k = failed.max(1);
        let uncapped = match &self.curve {
            Curve::Fixed(initial) => *initial,
            Curve::Linear(initial) => initial.saturating_mul(k),
            Curve::Exponential(initial, multiplier) => scale(*initial, multiplier.powf(f64::from(k - 1))),
            Curve::Polynomial(initial, exponent) => scale(*initial, f64::from(k).powf(*exponent)),
            Curve::Schedule(delays) => delays[delays.len().min(k as usize) - 1],
        };
        uncapped.min(self.max_delay)
    }

    /// The first wait, where decorrelated jitter starts.
    pub fn initial(&self) -> Duration {
        self.curve.initial().min(self.max_delay)
    }

    /// The cap.
    pub fn max_delay(&self) -> Duration {
        self.max_delay
    }

    /// The shape under the cap.
    pub fn curve(&self) -> &Curve {
        &self.curve
    }
}

impl Curve {
    fn initial(&self) -> Duration {
        match self {
            Self::Fixed(initial)
            | Self::Linear(initial)
            | Self::Exponential(initial, _)
            | Self::Polynomial(initial, _) => *initial,
            Self::Schedule(delays) => delays.first().copied().unwrap_or_default(),
        }
    }

    fn check(&self) -> Result<(), Invalid> {
        match self {
            Self::Fixed(_) | Self::Linear(_) => Ok(()),
            Self::Exponential(_, multiplier) if multiplier.is_finite() && *multiplier > 0.0 => Ok(()),
            Self::Exponential(_, multiplier) => {
                Err(Invalid::new("multiplier", format!("must be a positive number, is {multiplier}")))
            }
            Self::Polynomial(_, exponent) if exponent.is_finite() && *exponent >= 0.0 => Ok(()),
            Self::Polynomial(_, exponent) => {
                Err(Invalid::new("exponent", format!("must be zero or a positive number, is {exponent}")))
            }
            Self::Schedule(delays) if (1..=DELAYS_ITEMS_MAX).contains(&delays.len()) => Ok(()),
            Self::Schedule(delays) => Err(Invalid::new(
                "delaysMs",
                format!("must have from 1 to {DELAYS_ITEMS_MAX} entries, has {}", delays.len()),
            )),
        }
    }
}

/// `initial · factor`, saturating. Nanoseconds are exact in an `f64` up to 104 days, so powers of two stay exact.
fn scale(initial: Duration, factor: f64) -> Duration {
    if initial.is_zero() {
        return Duration::ZERO; // zero times an infinite factor would be NaN
    }
    let nanos = initial.as_nanos() as f64 * factor;
    if nanos >= u64::MAX as f64 { Duration::MAX } else { Duration::from_nanos(nanos.round() as u64) }
}

/// The serialised form, with the names that the service's users write.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Spec {
    backoff_type: Type,
    #[serde(skip_serializing_if = "Option::is_none")]
    initial_delay_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    multiplier: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exponent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delays_ms: Option<Vec<u64>>,
    max_delay_ms: u64,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Type {
    Fixed,
    Linear,
    Exponential,
    Polynomial,
    Schedule,
}

impl TryFrom<Spec> for Backoff {
    type Error = Invalid;
    fn try_from(spec: Spec) -> Result<Self, Invalid> {
        let missing = |field| Invalid::new(field, "is missing for this backoffType");
        let initial =
            || spec.initial_delay_ms.map(Duration::from_millis).ok_or_else(|| missing("initialDelayMs"));
        let curve = match spec.backoff_type {
            Type::Fixed => Curve::Fixed(initial()?),
            Type::Linear => Curve::Linear(initial()?),
            Type::Exponential => {
                Curve::Exponential(initial()?, spec.multiplier.ok_or_else(|| missing("multiplier"))?)
            }
            Type::Polynomial => {
                Curve::Polynomial(initial()?, spec.exponent.ok_or_else(|| missing("exponent"))?)
            }
            Type::Schedule => {
                let delays = spec.delays_ms.as_ref().ok_or_else(|| missing("delaysMs"))?;
                Curve::Schedule(delays.iter().copied().map(Duration::from_millis).collect())
            }
        };
        Self::new(curve, Duration::from_millis(spec.max_delay_ms))
    }
}

impl From<Backoff> for Spec {
    fn from(backoff: Backoff) -> Self {
        let ms = |span: &Duration| u64::try_from(crate::time::ceil_ms(*span)).unwrap_or(0);
        let mut spec = Spec {
            backoff_type: Type::Fixed,
            initial_delay_ms: Some(ms(&backoff.curve.initial())),
            multiplier: None,
            exponent: None,
            delays_ms: None,
            max_delay_ms: ms(&backoff.max_delay),
        };
        match backoff.curve {
            Curve::Fixed(_) => {}
            Curve::Linear(_) => spec.backoff_type = Type::Linear,
            Curve::Exponential(_, multiplier) => {
                (spec.backoff_type, spec.multiplier) = (Type::Exponential, Some(multiplier));
            }
            Curve::Polynomial(_, exponent) => {
                (spec.backoff_type, spec.exponent) = (Type::Polynomial, Some(exponent));
            }
            Curve::Schedule(delays) => {
                (spec.backoff_type, spec.initial_delay_ms) = (Type::Schedule, None);
                spec.delays_ms = Some(delays.iter().map(ms).collect());
            }
        }
        spec
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn each_curve_follows_its_formula() {
        let cap = ms(60_000);
        let cases: [(Backoff, [u64; 5]); 6] = [
            (Backoff::fixed(ms(500)).unwrap(), [500, 500, 500, 500, 500]),
            (Backoff::linear(ms(500), cap).unwrap(), [500, 1_000, 1_500, 2_000, 2_500]),
            (Backoff::exponential(ms(1_000), 2.0, cap).unwrap(), [1_000, 2_000, 4_000, 8_000, 16_000]),
            (Backoff::exponential(ms(1_000), 3.0, ms(5_000)).unwrap(), [1_000, 3_000, 5_000, 5_000, 5_000]),
            (Backoff::polynomial(ms(1_000), 2.0, cap).unwrap(), [1_000, 4_000, 9_000, 16_000, 25_000]),
            (Backoff::schedule(vec![ms(5), ms(70), ms(3)]).unwrap(), [5, 70, 3, 3, 3]),
        ];
        for (backoff, waits) in cases {
            let got = [1, 2, 3, 4, 5].map(|k| backoff.before_retry(k));
            assert_eq!(got, waits.map(ms), "{backoff:?}");
        }
    }

    #[test]
    fn an_illegal_value_names_its_field() {
        let cases = [
            (Backoff::exponential(ms(1), -1.0, ms(2)), "multiplier"),
            (Backoff::exponential(ms(1), 0.0, ms(2)), "multiplier"),
            (Backoff::exponential(ms(1), f64::NAN, ms(2)), "multiplier"),
            (Backoff::exponential(ms(1), f64::INFINITY, ms(2)), "multiplier"),
            (Backoff::polynomial(ms(1), -0.5, ms(2)), "exponent"),
            (Backoff::polynomial(ms(1), f64::NEG_INFINITY, ms(2)), "exponent"),
            (Backoff::linear(ms(3), ms(2)), "initialDelayMs"),
            (Backoff::fixed(HORIZON + ms(1)), "maxDelayMs"),
            (Backoff::schedule(vec![]), "delaysMs"),
            (Backoff::schedule(vec![ms(1); DELAYS_ITEMS_MAX + 1]), "delaysMs"),
        ];
        for (result, field) in cases {
            assert_eq!(result.unwrap_err().field, field);
        }
    }

    #[test]
    fn every_curve_is_unchanged_after_json() {
        for backoff in [
            Backoff::fixed(ms(500)).unwrap(),
            Backoff::linear(ms(500), ms(900)).unwrap(),
            Backoff::exponential(ms(1), 1.5, ms(10)).unwrap(),
            Backoff::polynomial(ms(1), 2.5, ms(10)).unwrap(),
            Backoff::schedule(vec![ms(5), ms(70)]).unwrap(),
        ] {
            let json = serde_json::to_string(&backoff).unwrap();
            assert_eq!(serde_json::from_str::<Backoff>(&json).unwrap(), backoff, "{json}");
        }
    }

    proptest! {
        #[test]
        fn every_valid_backoff_stays_within_its_cap(
            initial in 0u64..10_000_000_000, max in 0u64..40_000_000_000,
            shape in 0u8..4, factor in any::<f64>(), failed in any::<u32>(),
        ) {
            let (initial, max) = (ms(initial), ms(max));
            let curve = match shape {
                0 => Curve::Fixed(initial),
                1 => Curve::Linear(initial),
                2 => Curve::Exponential(initial, factor),
                _ => Curve::Polynomial(initial, factor),
            };
            if let Ok(backoff) = Backoff::new(curve, max) {
                prop_assert!(backoff.before_retry(failed) <= max);
                prop_assert!(backoff.initial() <= max);
            }
        }
    }
}
