//! Reads `Retry-After`: the pause that a target asks for.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::{DATE, HeaderName, RETRY_AFTER};
use redrive_core::limits::HORIZON;

/// The pause in `Retry-After`: a number of seconds, or a date. A date is compared with the `Date` of the answer, or with `now` if there
/// is none; both dates come from the target's clock, so that clock skew does not matter.
///
/// Returns `None` for a value that cannot be read. A longer pause than [`HORIZON`] is reduced to it.
pub fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let value = text(headers, RETRY_AFTER)?.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number with too many digits is a very long time.
        return Some(Duration::from_secs(value.parse().unwrap_or(u64::MAX)).min(HORIZON));
    }
    let until = httpdate::parse_http_date(value).ok()?;
    let since =
        text(headers, DATE).and_then(|date| httpdate::parse_http_date(date.trim()).ok()).unwrap_or(now);
    Some(until.duration_since(since).unwrap_or_default().min(HORIZON))
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn wait(value: &str, date: Option<&str>) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, value.parse().unwrap());
        if let Some(date) = date {
            headers.insert(DATE, date.parse().unwrap());
        }
        retry_after(&headers, SystemTime::UNIX_EPOCH + Duration::from_secs(NOW))
    }

    fn at(seconds: u64) -> String {
        httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
    }

    #[test]
    fn seconds_and_dates_are_understood() {
        let secs = |count| Some(Duration::from_secs(count));
        for (value, date, expected) in [
            ("120", None, secs(120)),
            (" 7 ", None, secs(7)),
            ("0", None, secs(0)),
            (&*at(NOW + 90), None, secs(90)),
            // The target's clock is an hour slow; the wait is still what it meant.
            (&*at(NOW - 3600 + 30), Some(&*at(NOW - 3600)), secs(30)),
            (&*at(NOW + 90), Some("no date"), secs(90)),
            (&*at(NOW - 10), None, secs(0)),
            ("Sunday, 06-Nov-94 08:49:37 GMT", None, secs(0)),
            ("Sun Nov  6 08:49:37 1994", None, secs(0)),
            ("99999999999999999999999999", None, Some(HORIZON)),
            ("31536001", None, Some(HORIZON)),
            (&*at(NOW + 40_000_000_000), None, Some(HORIZON)),
        ] {
            assert_eq!(wait(value, date), expected, "{value} {date:?}");
        }
    }

    #[test]
    fn an_unreadable_value_is_ignored() {
        for value in ["", "-1", "+5", "1.5", "1e3", "soon", "0x10", "12 34", "Wed, 21 Oct 2015"] {
            assert_eq!(wait(value, None), None, "{value}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), SystemTime::UNIX_EPOCH), None);
    }
}
