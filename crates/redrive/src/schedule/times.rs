//! The times at which a schedule is due.

use std::time::Duration;

use redrive_core::limits::HORIZON;
use redrive_core::time::ceil_ms;
use redrive_core::{Invalid, Timestamp};
use serde::{Deserialize, Serialize};

use super::cron::CronTimes;

/// The shortest interval of [`Schedule::every`].
pub const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// How far back the search for recent occurrences starts. It is doubled until enough are found.
const LOOK_BACK: Duration = Duration::from_secs(60);

/// The times of a schedule: a cron expression in a time zone, or an interval.
///
/// The hour field of a cron expression decides what happens when the clock changes:
///
/// - If it names hours of the day (`2`, `1,2`, `1-4`, `*/2`), the expression names times of day. A time that the clock
///   skips is due at the first instant after the gap. A time that comes twice is due the first time only. Several times in
///   one gap are one occurrence.
/// - If it is `*`, the expression follows elapsed time. `*/15 * * * *` is due every real quarter of an hour: also in the
///   hour that comes twice, and never for the hour that is skipped.
///
/// ```
/// use redrive::{Schedule, Timestamp};
///
/// let nightly = Schedule::daily(2, 30, "Europe/Berlin")?;
/// let evening = Timestamp::from_ms(1_774_720_800_000); // 2026-03-28 19:00 in Berlin
/// let due: Vec<i64> = nightly.upcoming(evening, 2).into_iter().map(Timestamp::as_ms).collect();
/// // In that night 02:30 is skipped: it is due at 03:00 summer time, and the next day at 02:30 again.
/// assert_eq!(due, [1_774_746_000_000, 1_774_830_600_000]);
/// # Ok::<(), redrive::Invalid>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "StoredSchedule", into = "StoredSchedule")]
pub struct Schedule(Timing);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Timing {
    Cron(CronTimes),
    Every { ms: i64 },
}

/// The stored form of a schedule.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum StoredSchedule {
    Cron { pattern: String, zone: String },
    EveryMs(u64),
}

impl Schedule {
    /// A cron expression in an IANA time zone, for example `Europe/Berlin` or `UTC`. The expression has five fields (minute, hour,
    /// day of the month, month, weekday), or six with the seconds first.
    pub fn cron(expression: &str, zone: &str) -> Result<Self, Invalid> {
        CronTimes::parse(expression, zone).map(|times| Self(Timing::Cron(times)))
    }

    /// Once a day at this time of day in an IANA time zone.
    pub fn daily(hour: u8, minute: u8, zone: &str) -> Result<Self, Invalid> {
        if hour > 23 || minute > 59 {
            return Err(Invalid::new("daily", format!("{hour:02}:{minute:02} is not a time of day")));
        }
        Self::cron(&format!("{minute} {hour} * * *"), zone)
    }

    /// An interval, from [`INTERVAL_MIN`] to a year. Intervals count from the start of 1970 (UTC) and not from the creation of the
    /// schedule, so a restart does not move them: every hour means on the hour.
    pub fn every(interval: Duration) -> Result<Self, Invalid> {
        if (INTERVAL_MIN..=HORIZON).contains(&interval) {
            Ok(Self(Timing::Every { ms: ceil_ms(interval) }))
        } else {
            Err(Invalid::new(
                "every",
                format!("must be from {INTERVAL_MIN:?} to a year, but is {interval:?}"),
            ))
        }
    }

    /// The first `count` occurrences after `after`.
    pub fn upcoming(&self, after: Timestamp, count: usize) -> Vec<Timestamp> {
        self.occurrences(after).take(count).collect()
    }

    /// The first occurrence after `after`, if there is one.
    pub(crate) fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        match &self.0 {
            Timing::Every { ms } => {
                let step = after.as_ms().div_euclid(*ms).checked_add(1)?;
                step.checked_mul(*ms).map(Timestamp::from_ms)
            }
            Timing::Cron(times) => {
                let next = times.next_after(jiff::Timestamp::from_millisecond(after.as_ms()).ok()?)?;
                Some(Timestamp::from_ms(next.as_millisecond()))
            }
        }
    }

    /// The newest occurrences after `after` and up to `now`, at most `limit`, oldest first, and whether there are older ones. The
    /// cost depends on `limit` and not on how long ago `after` is.
    pub(crate) fn recent(&self, after: Timestamp, now: Timestamp, limit: usize) -> (Vec<Timestamp>, bool) {
        let mut back = LOOK_BACK;
        loop {
            let from = now.before(back).max(after);
            let mut found: Vec<Timestamp> =
                self.occurrences(from).take_while(|occurrence| *occurrence <= now).collect();
            if found.len() > limit {
                found.drain(..found.len() - limit);
                return (found, true);
            }
            if from == after {
                return (found, false);
            }
            back = back.saturating_mul(2);
        }
    }

    fn occurrences(&self, after: Timestamp) -> impl Iterator<Item = Timestamp> {
        std::iter::successors(self.next_after(after), |occurrence| self.next_after(*occurrence))
    }
}

impl TryFrom<StoredSchedule> for Schedule {
    type Error = Invalid;
    fn try_from(stored: StoredSchedule) -> Result<Self, Invalid> {
        match stored {
            StoredSchedule::Cron { pattern, zone } => Self::cron(&pattern, &zone),
            StoredSchedule::EveryMs(ms) => Self::every(Duration::from_millis(ms)),
        }
    }
}

impl From<Schedule> for StoredSchedule {
    fn from(Schedule(timing): Schedule) -> Self {
        match timing {
            Timing::Cron(times) => {
                Self::Cron { pattern: times.text().to_owned(), zone: times.zone_name().to_owned() }
            }
            Timing::Every { ms } => Self::EveryMs(ms.unsigned_abs()),
        }
    }
}

impl std::fmt::Display for Schedule {
    /// Writes the schedule for people to read, for example `every 90s`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Timing::Cron(times) => write!(f, "{} {}", times.text(), times.zone_name()),
            Timing::Every { ms } => write!(f, "every {:?}", Duration::from_millis(ms.unsigned_abs())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        Timestamp::from_ms(text.parse::<jiff::Timestamp>().unwrap().as_millisecond())
    }

    fn to_texts(instants: &[Timestamp]) -> Vec<String> {
        let show = |at: &Timestamp| jiff::Timestamp::from_millisecond(at.as_ms()).unwrap().to_string();
        instants.iter().map(show).collect()
    }

    #[test]
    fn occurrences_follow_the_wall_clock() {
        let berlin = "Europe/Berlin";
        // Berlin skips 02:00 to 03:00 on 2026-03-29 and has 02:00 to 03:00 twice on 2026-10-25; Lord Howe moves by half an hour.
        let cases: [(&str, &str, &str, &[&str]); 9] = [
            (
                "30 2 * * *",
                berlin,
                "2026-03-27T12:00:00Z",
                &["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"],
            ),
            (
                "30 2 * * *",
                berlin,
                "2026-10-23T12:00:00Z",
                &["2026-10-24T00:30:00Z", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"],
            ),
            // Starts between the two passes of the hour: the second pass is not an occurrence.
            ("30 2 * * *", berlin, "2026-10-25T00:45:00Z", &["2026-10-26T01:30:00Z"]),
            (
                "0 * * * *",
                berlin,
                "2026-10-24T23:30:00Z",
                &["2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"],
            ),
            ("0 * * * *", berlin, "2026-03-29T00:30:00Z", &["2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"]),
            (
                "*/30 * * * *",
                "Australia/Lord_Howe",
                "2026-10-03T15:00:00Z",
                &["2026-10-03T15:30:00Z", "2026-10-03T16:00:00Z"],
            ),
            ("0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z", &["2028-02-29T00:00:00Z"]),
            (
                "*/20 * * * * *",
                "UTC",
                "2026-01-01T00:00:00Z",
                &["2026-01-01T00:00:20Z", "2026-01-01T00:00:40Z"],
            ),
            // Strictly after, to the millisecond.
            (
                "0 3 * * *",
                "UTC",
                "2026-01-01T02:59:59.999Z",
                &["2026-01-01T03:00:00Z", "2026-01-02T03:00:00Z"],
            ),
        ];
        for (pattern, zone, after, due) in cases {
            let schedule = Schedule::cron(pattern, zone).unwrap();
            assert_eq!(
                to_texts(&schedule.upcoming(at(after), due.len())),
                due,
                "{pattern} {zone} after {after}"
            );
        }
    }

    #[test]
    fn intervals_are_counted_from_the_epoch() {
        let schedule = Schedule::every(Duration::from_secs(90)).unwrap();
        let due = schedule.upcoming(at("2026-01-01T00:00:00Z"), 2);
        assert_eq!(to_texts(&due), ["2026-01-01T00:01:30Z", "2026-01-01T00:03:00Z"]);
        assert_eq!(schedule.next_after(Timestamp::from_ms(-1)), Some(Timestamp::from_ms(0)));
        assert_eq!(schedule.next_after(Timestamp::MAX), None);
    }

    #[test]
    fn recent_occurrences_are_the_newest_ones_after_a_long_time() {
        let minutely = Schedule::cron("* * * * *", "Europe/Berlin").unwrap();
        let yearly = Schedule::cron("0 0 1 1 *", "UTC").unwrap();
        let quick = Schedule::every(Duration::from_millis(100)).unwrap();
        let (start, now) = (at("2016-01-01T00:00:00Z"), at("2026-07-01T00:00:30Z"));
        let (found, more) = minutely.recent(start, now, 3);
        assert_eq!(
            to_texts(&found),
            ["2026-06-30T23:58:00Z", "2026-06-30T23:59:00Z", "2026-07-01T00:00:00Z"]
        );
        assert!(more);
        let (found, more) = yearly.recent(start, now, 1000);
        assert_eq!((found.len(), more), (10, false));
        assert_eq!(found, yearly.upcoming(start, 10));
        let (found, more) = quick.recent(start, now, 1000);
        assert_eq!((found.len(), found.last(), more), (1000, Some(&now), true));
        assert_eq!(minutely.recent(now, now, 1000), (vec![], false));
        assert_eq!(minutely.recent(now, start, 1000), (vec![], false), "a clock that was set back");
    }

    #[test]
    fn an_invalid_schedule_is_rejected_with_the_name_of_its_field() {
        for (schedule, field) in [
            (Schedule::cron("every day", "UTC"), "cron"),
            (Schedule::cron("61 * * * *", "UTC"), "cron"),
            (Schedule::cron("0 0 30 2 *", "UTC"), "cron"),
            (Schedule::cron("0 0 * * *", "Europe/Atlantis"), "zone"),
            (Schedule::daily(24, 0, "UTC"), "daily"),
            (Schedule::daily(0, 60, "UTC"), "daily"),
            (Schedule::every(Duration::from_millis(99)), "every"),
            (Schedule::every(Duration::MAX), "every"),
        ] {
            assert_eq!(schedule.unwrap_err().field, field);
        }
    }

    #[test]
    fn a_stored_schedule_is_read_as_it_was_written() {
        for schedule in [
            Schedule::daily(3, 0, "Europe/Berlin").unwrap(),
            Schedule::every(Duration::from_secs(1)).unwrap(),
        ] {
            let json = serde_json::to_string(&schedule).unwrap();
            assert_eq!(serde_json::from_str::<Schedule>(&json).unwrap(), schedule, "{json}");
        }
        let wrong = r#"{"cron":{"pattern":"x","zone":"UTC"}}"#;
        assert!(serde_json::from_str::<Schedule>(wrong).unwrap_err().to_string().contains("cron:"));
    }
}
