//! Decides which occurrences of a schedule to enqueue, including those that were missed while no worker ran.

use std::time::Duration;

use redrive_core::Timestamp;
use redrive_core::limits::BATCH_ITEMS_MAX;
use serde::{Deserialize, Serialize};

use super::Schedule;

/// How late an occurrence may be and still count as on time, so that a restart or a short outage of the store skips none.
pub const ON_TIME_TOLERANCE: Duration = Duration::from_secs(10);

/// The most missed occurrences that [`MissedRuns::All`] enqueues. If there are more, the newest ones are enqueued.
pub const MISSED_RUNS_MAX: usize = BATCH_ITEMS_MAX;

/// What happens to occurrences that were missed, because no worker ran for longer than [`ON_TIME_TOLERANCE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MissedRuns {
    /// They are skipped.
    Skip,
    /// One job is enqueued for all of them.
    #[default]
    Once,
    /// One job is enqueued for each of them, up to the newest [`MISSED_RUNS_MAX`].
    All,
}

/// The occurrences of a schedule that are due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DueOccurrences {
    /// Those to enqueue.
    pub(crate) enqueue: Vec<Timestamp>,
    /// The newest one, enqueued or skipped.
    pub(crate) last: Timestamp,
    /// Whether more than [`MISSED_RUNS_MAX`] were missed.
    pub(crate) truncated: bool,
}

/// The occurrences that are due at `now` for a schedule whose occurrences up to `last` are handled. None if there are none.
pub(crate) fn due_occurrences(
    schedule: &Schedule,
    missed: MissedRuns,
    last: Timestamp,
    now: Timestamp,
) -> Option<DueOccurrences> {
    let (due, truncated) = schedule.recent(last, now, MISSED_RUNS_MAX);
    let newest = *due.last()?;
    let on_time: Vec<Timestamp> =
        due.iter().copied().filter(|occurrence| now.since(*occurrence) <= ON_TIME_TOLERANCE).collect();
    let (enqueue, truncated) = match missed {
        MissedRuns::All => (due, truncated),
        MissedRuns::Once if on_time.is_empty() => (vec![newest], false),
        MissedRuns::Once | MissedRuns::Skip => (on_time, false),
    };
    Some(DueOccurrences { enqueue, last: newest, truncated })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: i64 = 60_000;

    /// For a schedule of every minute: the minutes to enqueue, and the newest one that is due.
    fn due_minutes(missed: MissedRuns, last: i64, now_ms: i64) -> Option<(Vec<i64>, i64)> {
        let minutely = Schedule::every(Duration::from_secs(60)).unwrap();
        let at = Timestamp::from_ms;
        let due = due_occurrences(&minutely, missed, at(last * MINUTE), at(now_ms))?;
        assert!(!due.truncated);
        let minute = |at: &Timestamp| at.as_ms() / MINUTE;
        Some((due.enqueue.iter().map(minute).collect(), minute(&due.last)))
    }

    #[test]
    fn missed_occurrences_are_skipped_or_enqueued_as_set() {
        let late = 9 * MINUTE + 30_000;
        let slightly_late = 9 * MINUTE + 10_000;
        let cases = [
            // Nothing is due.
            (MissedRuns::All, 9, late, None),
            // On time, or a little late.
            (MissedRuns::Skip, 8, 9 * MINUTE, Some((vec![9], 9))),
            (MissedRuns::Skip, 8, slightly_late, Some((vec![9], 9))),
            (MissedRuns::Once, 8, slightly_late, Some((vec![9], 9))),
            (MissedRuns::All, 8, slightly_late, Some((vec![9], 9))),
            // Missed.
            (MissedRuns::Skip, 5, late, Some((vec![], 9))),
            (MissedRuns::Once, 5, late, Some((vec![9], 9))),
            (MissedRuns::All, 5, late, Some((vec![6, 7, 8, 9], 9))),
            // Missed, and one that is on time.
            (MissedRuns::Skip, 5, slightly_late, Some((vec![9], 9))),
            (MissedRuns::Once, 5, slightly_late, Some((vec![9], 9))),
            (MissedRuns::All, 5, slightly_late, Some((vec![6, 7, 8, 9], 9))),
        ];
        for (missed, last, now, expected) in cases {
            assert_eq!(due_minutes(missed, last, now), expected, "{missed:?} after {last} at {now}");
        }
    }

    #[test]
    fn the_times_that_a_clock_skips_are_one_missed_occurrence() {
        let at = |text: &str| Timestamp::from_ms(text.parse::<jiff::Timestamp>().unwrap().as_millisecond());
        let twice_nightly = Schedule::cron("0,30 2 * * *", "Europe/Berlin").unwrap();
        // No worker runs from Saturday noon to Sunday noon. In that night the clock skips 02:00 to 03:00.
        let (last, now) = (at("2026-03-28T11:00:00Z"), at("2026-03-29T10:00:00Z"));
        let after_the_gap = at("2026-03-29T01:00:00Z");
        let cases = [
            (MissedRuns::Skip, vec![]),
            (MissedRuns::Once, vec![after_the_gap]),
            (MissedRuns::All, vec![after_the_gap]),
        ];
        for (missed, enqueue) in cases {
            let due = due_occurrences(&twice_nightly, missed, last, now).unwrap();
            assert_eq!((due.enqueue, due.last), (enqueue, after_the_gap), "{missed:?}");
        }
        // At the very end of the gap, the occurrence is on time.
        let due = due_occurrences(&twice_nightly, MissedRuns::Skip, last, after_the_gap).unwrap();
        assert_eq!(due.enqueue, [after_the_gap]);
    }

    #[test]
    fn a_short_stall_of_a_quick_schedule_loses_nothing() {
        let quick = Schedule::every(Duration::from_millis(200)).unwrap();
        for missed in [MissedRuns::Skip, MissedRuns::Once, MissedRuns::All] {
            let due =
                due_occurrences(&quick, missed, Timestamp::from_ms(0), Timestamp::from_ms(3_100)).unwrap();
            assert_eq!((due.enqueue.len(), due.last.as_ms()), (15, 3_000), "{missed:?}");
        }
    }

    #[test]
    fn only_the_newest_missed_occurrences_are_enqueued() {
        let minutely = Schedule::every(Duration::from_secs(60)).unwrap();
        let now = Timestamp::from_ms(10_000 * MINUTE);
        let due = due_occurrences(&minutely, MissedRuns::All, Timestamp::from_ms(0), now).unwrap();
        assert_eq!((due.enqueue.len(), due.truncated, due.last), (MISSED_RUNS_MAX, true, now));
        assert_eq!(due.enqueue[0].as_ms(), (10_000 - 999) * MINUTE);
    }
}
