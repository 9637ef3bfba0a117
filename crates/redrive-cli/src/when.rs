//! Spans and instants: how people write them, and how they like to read them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// This machine's time, in epoch ms.
pub(crate) fn now_here() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// A span as people write it: `500ms`, `30s`, `5m`, `2h`, `7d`.
pub(crate) fn parse_span(text: &str) -> Result<Duration, String> {
    let wrong = || format!("invalid duration {text:?}: write a number and a unit, for example 5s, 2m, 1h");
    let no_unit = || match text.parse::<f64>() {
        Ok(_) => format!("invalid duration {text:?}: add a unit, for example 5s, 2m, 1h"),
        Err(_) => wrong(),
    };
    let digits = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').ok_or_else(no_unit)?;
    let (number, unit) = text.split_at(digits);
    let unit = match unit.trim() {
        "ms" => 1,
        "s" => SECOND,
        "m" | "min" => MINUTE,
        "h" => HOUR,
        "d" => DAY,
        _ => return Err(wrong()),
    };
    let ms = number.parse::<f64>().map_err(|_| wrong())? * unit as f64;
    if ms.is_finite() && ms <= i64::MAX as f64 / 2.0 {
        return Ok(Duration::from_millis(ms.round() as u64));
    }
    Err(wrong())
}

/// A time in the past, for filters: `2h` is two hours ago. A date and time such as `2026-05-01T08:00:00Z` is that.
pub(crate) fn parse_past(text: &str) -> Result<i64, String> {
    if let Ok(span) = parse_span(text) {
        let ago = i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
        return Ok(now_here().saturating_sub(ago));
    }
    parse_time(text, "2h for two hours ago")
}

/// When something is to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// After this long.
    In(Duration),
    /// At this time, in epoch ms.
    At(i64),
}

/// A time in the future: `2h` is in two hours. A date and time such as `2026-05-01T08:00:00Z` is that.
pub(crate) fn parse_future(text: &str) -> Result<Due, String> {
    match parse_span(text) {
        Ok(span) => Ok(Due::In(span)),
        Err(_) => parse_time(text, "2h for in two hours").map(Due::At),
    }
}

fn parse_time(text: &str, example: &str) -> Result<i64, String> {
    let wrong = |_| format!("invalid time {text:?}: write {example}, or 2026-05-01T08:00:00Z");
    text.parse::<Timestamp>().map(Timestamp::as_millisecond).map_err(wrong)
}

/// How far an instant is from `now`: `3 min ago`, `in 12 s`, `now`.
pub(crate) fn age(at: i64, now: i64) -> String {
    let (apart, past) = (at.abs_diff(now), at <= now);
    match (whole(apart), past) {
        (None, _) => "now".to_owned(),
        (Some(span), true) => format!("{span} ago"),
        (Some(span), false) => format!("in {span}"),
    }
}

/// In whole units, rounded down; nothing below a second.
fn whole(ms: u64) -> Option<String> {
    let (unit, name) = match ms {
        0..SECOND => return None,
        SECOND..MINUTE => (SECOND, "s"),
        MINUTE..HOUR => (MINUTE, "min"),
        HOUR..DAY => (HOUR, "h"),
        DAY.. => (DAY, "d"),
    };
    Some(format!("{} {name}", ms / unit))
}

/// How long something took or takes: `12 ms`, `1.2 s`, `3 min`.
pub(crate) fn span(ms: u64) -> String {
    let in_units = |unit: u64, name: &str| {
        let number = format!("{:.1}", ms as f64 / unit as f64);
        format!("{} {name}", number.trim_end_matches(".0"))
    };
    match ms {
        0..SECOND => format!("{ms} ms"),
        SECOND..MINUTE => in_units(SECOND, "s"),
        MINUTE..HOUR => in_units(MINUTE, "min"),
        HOUR..DAY => in_units(HOUR, "h"),
        DAY.. => in_units(DAY, "d"),
    }
}

/// An instant in full, with how far it is from `now`.
pub(crate) fn instant(at: i64, now: i64) -> String {
    format!("{} ({})", stamp(at), age(at, now))
}

/// An instant in full, in UTC.
pub(crate) fn stamp(at: i64) -> String {
    Timestamp::from_millisecond(at).map_or_else(|_| at.to_string(), |at| format!("{at:.3}"))
}

/// The time of day, in UTC.
pub(crate) fn clock(at: i64) -> String {
    let stamp = stamp(at);
    stamp.split_once('T').map_or(stamp.clone(), |(_, time)| time.trim_end_matches('Z').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_as_they_are_written() {
        for (text, ms) in
            [("500ms", 500), ("1.5s", 1_500), ("5m", 300_000), ("2 h", 7_200_000), ("7d", 604_800_000)]
        {
            assert_eq!(parse_span(text).unwrap(), Duration::from_millis(ms), "{text}");
        }
        for text in ["", "5", "s", "5 weeks", "-5s", "1e999d", "..s", "99999999999999999999d"] {
            assert!(parse_span(text).unwrap_err().contains("5s, 2m, 1h"), "{text}");
        }
        let error = parse_span("5").unwrap_err();
        assert_eq!(error, "invalid duration \"5\": add a unit, for example 5s, 2m, 1h");
    }

    #[test]
    fn a_duration_is_ago_in_a_filter_and_from_now_on_for_what_is_to_happen() {
        assert_eq!(parse_past("1970-01-01T00:00:01Z").unwrap(), 1_000);
        let ago = now_here() - parse_past("2h").unwrap();
        assert!((7_200_000..7_260_000).contains(&ago), "{ago}");
        assert!(parse_past("yesterday").unwrap_err().contains("2026-05-01T08:00:00Z"));

        assert_eq!(parse_future("1970-01-01T00:00:01Z").unwrap(), Due::At(1_000));
        assert_eq!(parse_future("2h").unwrap(), Due::In(Duration::from_secs(7_200)));
        assert!(parse_future("tomorrow").unwrap_err().contains("2h for in two hours"));
    }

    #[test]
    fn ages_and_spans_are_short() {
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
        let spans = [12, 1_240, 90_000, 3_600_000, 129_600_000].map(span);
        assert_eq!(spans, ["12 ms", "1.2 s", "1.5 min", "1 h", "1.5 d"]);
        assert_eq!(stamp(1_500), "1970-01-01T00:00:01.500Z");
        assert_eq!(clock(1_500), "00:00:01.500");
    }
}
