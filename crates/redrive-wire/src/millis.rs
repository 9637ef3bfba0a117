//! Durations as whole milliseconds, as the API states them.

use std::time::Duration;

use redrive_core::time::ceil_ms;

/// A duration in milliseconds, rounded up.
pub fn ms(span: Duration) -> u64 {
    u64::try_from(ceil_ms(span)).unwrap_or(0)
}
