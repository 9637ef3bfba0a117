//! Durations and instants as people read them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use redrive_core::text;

const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// The time of this machine in epoch ms.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// The distance of an instant from `now`: `3 min ago`, `in 12 s`, `now`.
pub(crate) fn age(at: i64, now: i64) -> String {
    match (largest_unit(at.abs_diff(now)), at <= now) {
        (None, _) => "now".to_owned(),
        (Some(duration), true) => format!("{duration} ago"),
        (Some(duration), false) => format!("in {duration}"),
    }
}

/// A duration in its largest unit, rounded down. `None` below a second.
fn largest_unit(ms: u64) -> Option<String> {
    let (unit, name) = match ms {
        0..SECOND => return None,
        SECOND..MINUTE => (SECOND, "s"),
        MINUTE..HOUR => (MINUTE, "min"),
        HOUR..DAY => (HOUR, "h"),
        DAY.. => (DAY, "d"),
    };
    Some(format!("{} {name}", ms / unit))
}

/// A duration in at most two units.
pub(crate) fn duration(ms: u64) -> String {
    text::duration(Duration::from_millis(ms))
}

/// An instant in UTC, with its distance from `now`.
pub(crate) fn instant(at: i64, now: i64) -> String {
    format!("{} ({})", utc(at), age(at, now))
}

/// An instant in UTC.
pub(crate) fn utc(at: i64) -> String {
    Timestamp::from_millisecond(at).map_or_else(|_| at.to_string(), |at| format!("{at:.3}"))
}

/// The time of day in UTC.
pub(crate) fn time_of_day(at: i64) -> String {
    let utc = utc(at);
    utc.split_once('T').map_or(utc.clone(), |(_, time)| time.trim_end_matches('Z').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        let now = 100 * DAY as i64;
        for (apart, past, future) in [
            (0, "now", "now"),
            (999, "now", "now"),
            (1_000, "1 s ago", "in 1 s"),
            (3 * MINUTE as i64, "3 min ago", "in 3 min"),
            (5 * HOUR as i64, "5 h ago", "in 5 h"),
            (99 * DAY as i64, "99 d ago", "in 99 d"),
        ] {
            assert_eq!((age(now - apart, now).as_str(), age(now + apart, now).as_str()), (past, future));
        }
        assert_eq!(utc(1_500), "1970-01-01T00:00:01.500Z");
        assert_eq!(time_of_day(1_500), "00:00:01.500");
    }
}
