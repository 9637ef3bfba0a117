//! Finds the instants at which a cron expression is due, including the nights in which clocks change.

use croner::Cron;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};
use redrive_core::Invalid;

const SECOND: SignedDuration = SignedDuration::from_secs(1);

/// A cron expression in a time zone. The `croner` library parses the expression and finds the readings of a clock that match
/// it; this type decides which instant each reading stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CronTimes {
    text: String,
    pattern: Box<Cron>,
    zone_name: String,
    zone: TimeZone,
    clock_changes: ClockChanges,
}

/// What happens to a reading that a change of the clock skips or repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClockChanges {
    /// A skipped time of day is due at the first instant after the gap. A repeated one is due the first time only.
    MoveTimesOfDay,
    /// Every instant whose reading matches is due. For `*/15 * * * *` that is every real quarter of an hour.
    FollowElapsedTime,
}

impl ClockChanges {
    /// Only an hour field of `*` (or `*/1`) means "every hour that passes". Every other hour field names hours of the day,
    /// whatever the minutes are: a job of `*/15 2 * * *` belongs to the time between two and three.
    fn of(pattern: &Cron) -> Self {
        let hours = &pattern.pattern.hours;
        if hours.from_wildcard && hours.values().len() == 24 {
            Self::FollowElapsedTime
        } else {
            Self::MoveTimesOfDay
        }
    }
}

impl CronTimes {
    pub(super) fn parse(text: &str, zone_name: &str) -> Result<Self, Invalid> {
        let invalid = |problem: String| Invalid::new("cron", problem);
        let pattern: Cron = text
            .parse()
            .map_err(|error| invalid(format!("{text:?} is not a valid cron expression: {error}")))?;
        let zone = TimeZone::get(zone_name).map_err(|_| {
            let problem = format!(
                "{zone_name:?} is not a known time zone: use an IANA name, for example Europe/Berlin"
            );
            Invalid::new("zone", problem)
        })?;
        let clock_changes = ClockChanges::of(&pattern);
        let (text, zone_name) = (text.to_owned(), zone_name.to_owned());
        let times = Self { text, pattern: Box::new(pattern), zone_name, zone, clock_changes };
        match times.next_after(Timestamp::UNIX_EPOCH) {
            Some(_) => Ok(times),
            None => Err(invalid(format!("{:?} never matches a date", times.text))),
        }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn zone_name(&self) -> &str {
        &self.zone_name
    }

    /// The first instant after `after` at which the expression is due.
    pub(super) fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        // Occurrences are whole seconds, so the fraction of `after` makes no difference.
        let after = Timestamp::from_second(after.as_millisecond().div_euclid(1000)).ok()?;
        match self.clock_changes {
            ClockChanges::MoveTimesOfDay => self.next_time_of_day(after),
            ClockChanges::FollowElapsedTime => self.next_matching_instant(after),
        }
    }

    fn next_time_of_day(&self, after: Timestamp) -> Option<Timestamp> {
        let reading = self.next_match(self.latest_reading(after)?)?;
        match self.zone.to_ambiguous_timestamp(reading).offset() {
            AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(reading).ok(),
            AmbiguousOffset::Fold { before, .. } => before.to_timestamp(reading).ok(),
            AmbiguousOffset::Gap { after, .. } => {
                // With the later offset, a skipped reading lies before the gap.
                let before_gap = after.to_timestamp(reading).ok()?;
                self.shifts_after(before_gap).next().map(|shift| shift.at)
            }
        }
    }

    /// The latest time of day that the clock has shown up to `at`: while an hour is repeated, the last second of that hour.
    fn latest_reading(&self, at: Timestamp) -> Option<DateTime> {
        let offset = self.zone.to_offset(at);
        let reading = offset.to_datetime(at);
        match self.zone.to_ambiguous_timestamp(reading).offset() {
            AmbiguousOffset::Fold { before, after } if offset == after => {
                let first_pass = before.to_timestamp(reading).ok()?;
                let shift = self.shifts_after(first_pass).next()?;
                before.to_datetime(shift.at).checked_sub(SECOND).ok()
            }
            AmbiguousOffset::Fold { .. }
            | AmbiguousOffset::Gap { .. }
            | AmbiguousOffset::Unambiguous { .. } => Some(reading),
        }
    }

    fn next_matching_instant(&self, after: Timestamp) -> Option<Timestamp> {
        let mut offset = self.zone.to_offset(after);
        let mut searched_from = offset.to_datetime(after);
        let mut reading = self.next_match(searched_from)?;
        for shift in self.shifts_after(after) {
            let due = offset.to_timestamp(reading).ok()?;
            if due < shift.at {
                return Some(due);
            }
            // Readings that the shift skips are not due, and readings that it repeats are due again.
            let first = shift.offset.to_datetime(shift.at);
            if reading < first || first <= searched_from {
                searched_from = first.checked_sub(SECOND).ok()?;
                reading = self.next_match(searched_from)?;
            }
            offset = shift.offset;
        }
        offset.to_timestamp(reading).ok()
    }

    /// The first matching reading after `reading`, on a clock that is never changed.
    fn next_match(&self, reading: DateTime) -> Option<DateTime> {
        self.pattern.find_next_occurrence(&reading, false).ok()
    }

    /// The changes of the clock after `after`, without transitions of the time zone database that keep the offset.
    fn shifts_after(&self, after: Timestamp) -> impl Iterator<Item = Shift> {
        let mut current = self.zone.to_offset(after);
        self.zone.following(after).filter_map(move |transition| {
            let offset = transition.offset();
            let previous = std::mem::replace(&mut current, offset);
            (offset != previous).then(|| Shift { at: transition.timestamp(), offset })
        })
    }
}

/// A change of the clock: the instant at which it happens, and the offset from then on.
struct Shift {
    at: Timestamp,
    offset: Offset,
}
