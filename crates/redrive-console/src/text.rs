//! Numbers, durations and instants as people read them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use askama::Template;
use jiff::Timestamp;

/// The wall clock in epoch ms.
pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

pub(crate) use redrive_core::text::count;

/// A count that may be a lower bound.
pub(crate) fn count_at_least(number: u64, at_least: bool) -> String {
    if at_least { format!("at least {}", count(number)) } else { count(number) }
}

/// A count with its noun, in the singular or plural.
pub(crate) fn count_of(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

/// A number with two or three significant digits.
pub(crate) fn decimal(number: f64) -> String {
    match number {
        0.0 => "0".to_owned(),
        n if n.abs() >= 100.0 => format!("{n:.0}"),
        n if n.abs() >= 10.0 => trimmed(format!("{n:.1}")),
        n if n.abs() >= 0.01 => trimmed(format!("{n:.2}")),
        n => format!("{n:.1e}"),
    }
}

fn trimmed(text: String) -> String {
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A fraction in per cent.
pub(crate) fn percent(part: f64) -> String {
    match part * 100.0 {
        all if all >= 100.0 => "100 %".to_owned(),
        // Rounding to 100 would hide failures.
        most if most > 99.9 => "above 99.9 %".to_owned(),
        some => format!("{some:.1} %"),
    }
}

/// A duration in at most two units.
pub(crate) fn duration(ms: u64) -> String {
    redrive_core::text::duration(Duration::from_millis(ms))
}

/// A duration, or a dash if it is unknown.
pub(crate) fn duration_or_dash(ms: Option<u64>) -> String {
    ms.map_or_else(|| "–".to_owned(), duration)
}

/// A number of bytes.
pub(crate) fn bytes(number: usize) -> String {
    redrive_core::text::bytes(number as u64)
}

/// The words of an API name: `not_retryable` becomes `not retryable`.
pub(crate) fn words(name: &str) -> String {
    name.to_lowercase().replace('_', " ")
}

/// A sentence that starts with a capital letter.
pub(crate) fn capitalized(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map(|first| first.to_uppercase().chain(rest).collect()).unwrap_or_default()
}

/// An instant in UTC.
pub(crate) fn utc(ms: i64) -> String {
    format_utc(ms, "%Y-%m-%d %H:%M:%S")
}

/// The time of day in UTC, to the minute.
pub(crate) fn time_of_day(ms: i64) -> String {
    format_utc(ms, "%H:%M")
}

/// The time of day in UTC, to the second.
pub(crate) fn time_with_seconds(ms: i64) -> String {
    format_utc(ms, "%H:%M:%S")
}

fn format_utc(ms: i64, format: &str) -> String {
    match Timestamp::from_millisecond(ms) {
        Ok(at) => at.strftime(format).to_string(),
        Err(_) => format!("{ms} ms"),
    }
}

/// An instant by its distance from now, with the exact time as a tooltip.
#[derive(Debug, Clone, Template)]
#[template(
    source = "<time datetime=\"{{ iso }}\" title=\"{{ utc }} UTC\">{{ distance }}</time>",
    ext = "html"
)]
pub(crate) struct RelativeTime {
    iso: String,
    utc: String,
    distance: String,
}

impl askama::filters::HtmlSafe for RelativeTime {}

impl RelativeTime {
    /// The distance of an instant from `now`.
    pub(crate) fn new(at_ms: i64, now: i64) -> Self {
        let distance = duration(now.abs_diff(at_ms));
        let distance_text = match at_ms.cmp(&now) {
            std::cmp::Ordering::Greater => format!("in {distance}"),
            _ if now.abs_diff(at_ms) < 1000 => "now".to_owned(),
            _ => format!("{distance} ago"),
        };
        Self { iso: format_utc(at_ms, "%Y-%m-%dT%H:%M:%SZ"), utc: utc(at_ms), distance: distance_text }
    }
}

/// Parses an instant in UTC from a form field: `2026-11-16T08:00`.
pub(crate) fn parse_utc(text: &str) -> Option<i64> {
    let civil: jiff::civil::DateTime = text.parse().ok()?;
    Some(civil.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_millisecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_and_decimals_are_short() {
        for (part, text) in [(1.0, "100 %"), (0.99999, "above 99.9 %"), (0.5, "50.0 %"), (0.0, "0.0 %")] {
            assert_eq!(percent(part), text);
        }
        for (number, text) in [(0.0, "0"), (1234.5, "1234"), (12.34, "12.3"), (0.25, "0.25"), (2.0, "2")] {
            assert_eq!(decimal(number), text);
        }
    }

    #[test]
    fn an_instant_is_parsed_in_utc() {
        assert_eq!(parse_utc("1970-01-01T00:01"), Some(60_000));
        assert_eq!(parse_utc("yesterday"), None);
        assert_eq!(utc(60_000), "1970-01-01 00:01:00");
        assert!(
            RelativeTime::new(0, 60_000).to_string().contains("title=\"1970-01-01 00:00:00 UTC\">1 min ago<")
        );
    }
}
