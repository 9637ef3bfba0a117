//! What to do about occurrences that nobody was there for.

use std::time::Duration;

use redrive_core::Timestamp;
use redrive_core::limits::BATCH_ITEMS_MAX;
use serde::{Deserialize, Serialize};

use super::Schedule;

/// How late an occurrence may be and still count as on time: a restart or a short failure of the store loses no run.
pub const ON_TIME: Duration = Duration::from_secs(10);

/// Missed occurrences that [`Missed::All`] makes up for, the newest ones.
pub const MISSED_MAX: usize = BATCH_ITEMS_MAX;

/// What to do about occurrences that were missed, because no worker ran for longer than [`ON_TIME`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Missed {
    /// Leave them out.
    Skip,
    /// Run once for all of them, at once.
    #[default]
    Once,
    /// Run once for each, at once; for the newest [`MISSED_MAX`] if there are more.
    All,
}

/// What follows from the time at which a schedule is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Occurrences to enqueue for.
    pub(crate) run: Vec<Timestamp>,
    /// The newest occurrence that this settles.
    pub(crate) last: Timestamp,
    /// More were missed than are made up for.
    pub(crate) cut: bool,
}

/// What is to be done at `now` for a schedule that was settled up to `last`; nothing while no occurrence is due.
pub(crate) fn plan(schedule: &Schedule, missed: Missed, last: Timestamp, now: Timestamp) -> Option<Plan> {
    let (due, cut) = schedule.recent(last, now, MISSED_MAX);
    let newest = *due.last()?;
    let on_time: Vec<Timestamp> =
        due.iter().copied().filter(|occurrence| now.since(*occurrence) <= ON_TIME).collect();
    let (run, cut) = match missed {
        Missed::All => (due, cut),
        Missed::Once if on_time.is_empty() => (vec![newest], false),
        Missed::Once | Missed::Skip => (on_time, false),
    };
    Some(Plan { run, last: newest, cut })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: i64 = 60_000;

    /// The minutes that are run for, and the one that is settled, for a schedule of every minute.
    fn planned(missed: Missed, last: i64, now_ms: i64) -> Option<(Vec<i64>, i64)> {
        let minutely = Schedule::every(Duration::from_secs(60)).unwrap();
        let at = Timestamp::from_ms;
        let plan = plan(&minutely, missed, at(last * MINUTE), at(now_ms))?;
        assert!(!plan.cut);
        let minute = |at: &Timestamp| at.as_ms() / MINUTE;
        Some((plan.run.iter().map(minute).collect(), minute(&plan.last)))
    }

    #[test]
    fn what_is_missed_is_treated_as_the_schedule_says() {
        let late = 9 * MINUTE + 30_000;
        let just = 9 * MINUTE + 10_000;
        let cases = [
            // Nothing is due.
            (Missed::All, 9, late, None),
            // On time, or a little late.
            (Missed::Skip, 8, 9 * MINUTE, Some((vec![9], 9))),
            (Missed::Skip, 8, just, Some((vec![9], 9))),
            (Missed::Once, 8, just, Some((vec![9], 9))),
            (Missed::All, 8, just, Some((vec![9], 9))),
            // Missed.
            (Missed::Skip, 5, late, Some((vec![], 9))),
            (Missed::Once, 5, late, Some((vec![9], 9))),
            (Missed::All, 5, late, Some((vec![6, 7, 8, 9], 9))),
            // Missed, and one that is on time.
            (Missed::Skip, 5, just, Some((vec![9], 9))),
            (Missed::Once, 5, just, Some((vec![9], 9))),
            (Missed::All, 5, just, Some((vec![6, 7, 8, 9], 9))),
        ];
        for (missed, last, now, expected) in cases {
            assert_eq!(planned(missed, last, now), expected, "{missed:?} after {last} at {now}");
        }
    }

    #[test]
    fn the_times_that_a_clock_skips_are_one_missed_occurrence() {
        let at = |text: &str| Timestamp::from_ms(text.parse::<jiff::Timestamp>().unwrap().as_millisecond());
        let twice_nightly = Schedule::cron("0,30 2 * * *", "Europe/Berlin").unwrap();
        // No worker runs from Saturday noon to Sunday noon. In that night the clock skips 02:00 to 03:00.
        let (last, now) = (at("2026-03-28T11:00:00Z"), at("2026-03-29T10:00:00Z"));
        let after_the_gap = at("2026-03-29T01:00:00Z");
        let cases =
            [(Missed::Skip, vec![]), (Missed::Once, vec![after_the_gap]), (Missed::All, vec![after_the_gap])];
        for (missed, run) in cases {
            let plan = plan(&twice_nightly, missed, last, now).unwrap();
            assert_eq!((plan.run, plan.last), (run, after_the_gap), "{missed:?}");
        }
        // At the very end of the gap, the occurrence is on time.
        let plan = plan(&twice_nightly, Missed::Skip, last, after_the_gap).unwrap();
        assert_eq!(plan.run, [after_the_gap]);
    }

    #[test]
    fn a_short_stall_of_a_quick_schedule_loses_nothing() {
        let quick = Schedule::every(Duration::from_millis(200)).unwrap();
        for missed in [Missed::Skip, Missed::Once, Missed::All] {
            let plan = plan(&quick, missed, Timestamp::from_ms(0), Timestamp::from_ms(3_100)).unwrap();
            assert_eq!((plan.run.len(), plan.last.as_ms()), (15, 3_000), "{missed:?}");
        }
    }

    #[test]
    fn making_up_for_all_has_an_end() {
        let minutely = Schedule::every(Duration::from_secs(60)).unwrap();
        let now = Timestamp::from_ms(10_000 * MINUTE);
        let plan = plan(&minutely, Missed::All, Timestamp::from_ms(0), now).unwrap();
        assert_eq!((plan.run.len(), plan.cut, plan.last), (MISSED_MAX, true, now));
        assert_eq!(plan.run[0].as_ms(), (10_000 - 999) * MINUTE);
    }
}
