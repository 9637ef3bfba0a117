//! Instants as milliseconds since the Unix epoch, and the clock that a store reads them from.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// An instant, in milliseconds since the Unix epoch. All arithmetic saturates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The latest instant. Nothing is ever due at it.
    pub const MAX: Self = Self(i64::MAX);

    /// The instant `ms` milliseconds after the Unix epoch.
    pub const fn from_ms(ms: i64) -> Self {
        Self(ms)
    }

    /// Milliseconds since the Unix epoch.
    pub const fn as_ms(self) -> i64 {
        self.0
    }

    /// The time since `earlier`. Zero if `earlier` is later, as after a clock was set back.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// The instant `wait` later, rounded up to whole milliseconds so that nothing runs early.
    pub fn after(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(ceil_ms(wait)))
    }

    /// The instant `span` earlier.
    pub fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(ceil_ms(span)))
    }
}

/// Whole milliseconds in `span`, rounded up.
pub fn ceil_ms(span: Duration) -> i64 {
    i64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

/// A source of the current time. Stores take one, so that tests and simulations can control the time.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// The current instant.
    fn now(&self) -> Timestamp;
}

/// Durations as whole milliseconds in serialised form.
pub(crate) mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(span: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_i64(super::ceil_ms(*span))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }

    pub(crate) mod option {
        use super::{Deserialize, Deserializer, Duration, Serializer};

        pub(crate) fn serialize<S: Serializer>(span: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
            match span {
                Some(span) => to.serialize_some(&crate::time::ceil_ms(*span)),
                None => to.serialize_none(),
            }
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
            Ok(Option::<u64>::deserialize(from)?.map(Duration::from_millis))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_and_never_runs_early() {
        let t = Timestamp::from_ms(1_000);
        assert_eq!(t.after(Duration::from_micros(1)).as_ms(), 1_001);
        assert_eq!(t.since(Timestamp::from_ms(2_000)), Duration::ZERO);
        assert_eq!(t.after(Duration::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::MAX.since(Timestamp::from_ms(i64::MIN)).as_millis(), i64::MAX as u128);
    }
}
