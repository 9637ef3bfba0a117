//! Numbers, spans and instants as people read them.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use askama::Template;
use jiff::Timestamp;

/// The wall clock in epoch ms, for what only people read.
pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// A number with its thousands apart.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number that may be the least of what there is.
pub(crate) fn about(number: u64, at_least: bool) -> String {
    if at_least { format!("at least {}", count(number)) } else { count(number) }
}

/// A thing that is counted, in the singular where it is one.
pub(crate) fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

/// A number with as many digits as say something.
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

/// A part of a whole in per cent.
pub(crate) fn per_cent(part: f64) -> String {
    match part * 100.0 {
        all if all >= 100.0 => "100 %".to_owned(),
        // Rounded to 100 it would hide that something fails.
        most if most > 99.9 => "above 99.9 %".to_owned(),
        some => format!("{some:.1} %"),
    }
}

/// A span in its two largest units.
pub(crate) fn span(ms: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s")];
    if ms < 1000 {
        return format!("{ms} ms");
    }
    if ms < 10_000 {
        return format!("{} s", trimmed(format!("{:.1}", ms as f64 / 1000.0)));
    }
    let mut rest = ms;
    let mut parts = Vec::new();
    for (size, unit) in UNITS {
        let whole = rest / size;
        rest %= size;
        if whole > 0 {
            parts.push(format!("{whole} {unit}"));
        } else if !parts.is_empty() {
            break;
        }
        if parts.len() == 2 {
            break;
        }
    }
    parts.join(" ")
}

/// A span that may be unknown.
pub(crate) fn span_or_dash(ms: Option<u64>) -> String {
    ms.map_or_else(|| "–".to_owned(), span)
}

/// A number of bytes.
pub(crate) fn bytes(number: usize) -> String {
    match number {
        small if small < 1024 => format!("{small} bytes"),
        medium if medium < 1024 * 1024 => format!("{:.1} KiB", medium as f64 / 1024.0),
        large => format!("{:.1} MiB", large as f64 / 1024.0 / 1024.0),
    }
}

/// A text in lower case without underscores: `NOT_RETRYABLE` reads `not retryable`.
pub(crate) fn plain(name: &str) -> String {
    name.to_lowercase().replace('_', " ")
}

/// A sentence with its first letter large.
pub(crate) fn capital(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map(|first| first.to_uppercase().chain(rest).collect()).unwrap_or_default()
}

/// Bytes as text.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// An instant as it is written out, in UTC.
pub(crate) fn utc(ms: i64) -> String {
    at(ms, "%Y-%m-%d %H:%M:%S")
}

/// The time of day in UTC.
pub(crate) fn clock(ms: i64) -> String {
    at(ms, "%H:%M")
}

/// The same to the second.
pub(crate) fn clock_s(ms: i64) -> String {
    at(ms, "%H:%M:%S")
}

fn at(ms: i64, format: &str) -> String {
    match Timestamp::from_millisecond(ms) {
        Ok(at) => at.strftime(format).to_string(),
        Err(_) => format!("{ms} ms"),
    }
}

/// An instant that is shown by how far away it is, and written out for whoever looks closer.
#[derive(Debug, Clone, Template)]
#[template(source = "<time datetime=\"{{ iso }}\" title=\"{{ utc }} UTC\">{{ words }}</time>", ext = "html")]
pub(crate) struct Moment {
    iso: String,
    utc: String,
    /// How far away it is.
    pub(crate) words: String,
}

impl askama::filters::HtmlSafe for Moment {}

impl Moment {
    /// An instant as seen from `now`.
    pub(crate) fn seen(at_ms: i64, now: i64) -> Self {
        let away = span(now.abs_diff(at_ms));
        let words = match at_ms.cmp(&now) {
            std::cmp::Ordering::Greater => format!("in {away}"),
            _ if now.abs_diff(at_ms) < 1000 => "just now".to_owned(),
            _ => format!("{away} ago"),
        };
        Self { iso: at(at_ms, "%Y-%m-%dT%H:%M:%SZ"), utc: utc(at_ms), words }
    }
}

/// The instant that a field of a form names, in UTC: `2026-11-16T08:00`.
pub(crate) fn instant(text: &str) -> Option<i64> {
    let civil: jiff::civil::DateTime = text.parse().ok()?;
    Some(civil.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_millisecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_spans_read_well() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(number), text);
        }
        for (ms, text) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1000, "1 s"),
            (1200, "1.2 s"),
            (61_000, "1 min 1 s"),
            (3_600_000, "1 h"),
            (3_660_500, "1 h 1 min"),
            (90_061_000, "1 d 1 h"),
            (86_400_000, "1 d"),
            (86_460_000, "1 d"),
        ] {
            assert_eq!(span(ms), text);
        }
        for (part, text) in [(1.0, "100 %"), (0.99999, "above 99.9 %"), (0.5, "50.0 %"), (0.0, "0.0 %")] {
            assert_eq!(per_cent(part), text);
        }
        for (number, text) in [(0.0, "0"), (1234.5, "1234"), (12.34, "12.3"), (0.25, "0.25"), (2.0, "2")] {
            assert_eq!(decimal(number), text);
        }
    }

    #[test]
    fn an_instant_is_read_in_utc() {
        assert_eq!(instant("1970-01-01T00:01"), Some(60_000));
        assert_eq!(instant("yesterday"), None);
        assert_eq!(utc(60_000), "1970-01-01 00:01:00");
        assert!(Moment::seen(0, 60_000).to_string().contains("title=\"1970-01-01 00:00:00 UTC\">1 min ago<"));
    }
}
