//! Cron schedules where clocks change: named nights, and ten years compared with an independent implementation.

mod oracle;

use chrono::{DateTime, TimeDelta, Utc};
use chrono_tz::Tz;
use redrive::{Schedule, Timestamp};

use oracle::Oracle;

const BERLIN_SPRING: Night = Night("Europe/Berlin", "2026-03-29T01:00:00Z");
const BERLIN_AUTUMN: Night = Night("Europe/Berlin", "2026-10-25T01:00:00Z");

/// A time zone, and the instant at which its clocks change.
struct Night(&'static str, &'static str);

impl Night {
    /// Compares the occurrences from two hours before the change to two hours after it, both included.
    #[track_caller]
    fn check(&self, expression: &str, expected: &[&str]) {
        let zone: Tz = self.0.parse().unwrap();
        let change = self.1.parse::<DateTime<Utc>>().unwrap();
        let (from, until) = (change - TimeDelta::hours(2), change + TimeDelta::hours(2));
        let schedule = Schedule::cron(expression, self.0).unwrap();
        let due = schedule.upcoming(Timestamp::from_ms(from.timestamp_millis() - 1), 1000);
        let due = due.into_iter().map(to_utc);
        let shown: Vec<String> = due
            .take_while(|at| *at <= until)
            .map(|at| {
                at.with_timezone(&zone)
                    .format("%H:%M:%S%:z")
                    .to_string()
                    .replace(":00+", "+")
                    .replace(":00-", "-")
            })
            .collect();
        assert_eq!(shown, expected, "{expression} in {} around {}", self.0, self.1);
    }
}

#[test]
fn a_list_in_the_skipped_hour_runs_once_after_it_and_once_each_in_the_repeated_hour() {
    BERLIN_SPRING.check("0,30 2 * * *", &["03:00+02:00"]);
    BERLIN_AUTUMN.check("0,30 2 * * *", &["02:00+02:00", "02:30+02:00"]);
    BERLIN_SPRING.check("10-12 2 * * *", &["03:00+02:00"]);
    BERLIN_AUTUMN.check("10-12 2 * * *", &["02:10+02:00", "02:11+02:00", "02:12+02:00"]);
}

#[test]
fn ranges_and_lists_of_hours_are_times_of_day() {
    BERLIN_SPRING.check("0 1-4 * * *", &["01:00+01:00", "03:00+02:00", "04:00+02:00"]);
    BERLIN_AUTUMN.check("0 1-4 * * *", &["01:00+02:00", "02:00+02:00", "03:00+01:00", "04:00+01:00"]);
    BERLIN_SPRING.check("30 1,2,4 * * *", &["01:30+01:00", "03:00+02:00", "04:30+02:00"]);
    BERLIN_AUTUMN.check("30 1,2,4 * * *", &["01:30+02:00", "02:30+02:00"]);
}

#[test]
fn steps_in_hours_are_times_of_day() {
    BERLIN_SPRING.check("30 */2 * * *", &["00:30+01:00", "03:00+02:00", "04:30+02:00"]);
    BERLIN_AUTUMN.check("30 */2 * * *", &["02:30+02:00"]);
    BERLIN_SPRING.check("15 0-6/2 * * *", &["00:15+01:00", "03:00+02:00", "04:15+02:00"]);
    BERLIN_AUTUMN.check("15 0-6/2 * * *", &["02:15+02:00"]);
}

#[test]
fn steps_in_minutes_of_a_fixed_hour_are_times_of_day() {
    BERLIN_SPRING.check("*/15 2 * * *", &["03:00+02:00"]);
    BERLIN_AUTUMN.check("*/15 2 * * *", &["02:00+02:00", "02:15+02:00", "02:30+02:00", "02:45+02:00"]);
    BERLIN_SPRING.check("0-30/10 2 * * *", &["03:00+02:00"]);
    BERLIN_AUTUMN.check("0-30/10 2 * * *", &["02:00+02:00", "02:10+02:00", "02:20+02:00", "02:30+02:00"]);
    BERLIN_SPRING.check("*/30 2,3 * * *", &["03:00+02:00", "03:30+02:00"]);
    BERLIN_SPRING.check("* 2 * * *", &["03:00+02:00"]);
}

#[test]
fn every_hour_follows_elapsed_time() {
    BERLIN_SPRING.check("30 * * * *", &["00:30+01:00", "01:30+01:00", "03:30+02:00", "04:30+02:00"]);
    BERLIN_AUTUMN.check("30 * * * *", &["01:30+02:00", "02:30+02:00", "02:30+01:00", "03:30+01:00"]);
    BERLIN_AUTUMN.check(
        "*/30 */1 * * *",
        &[
            "01:00+02:00",
            "01:30+02:00",
            "02:00+02:00",
            "02:30+02:00",
            "02:00+01:00",
            "02:30+01:00",
            "03:00+01:00",
            "03:30+01:00",
            "04:00+01:00",
        ],
    );
    // A range of all hours names times of day, as every range does.
    BERLIN_AUTUMN.check("0 0-23 * * *", &["01:00+02:00", "02:00+02:00", "03:00+01:00", "04:00+01:00"]);
}

#[test]
fn seconds_follow_the_rule_of_their_hour() {
    BERLIN_SPRING.check("*/20 30 2 * * *", &["03:00+02:00"]);
    BERLIN_AUTUMN.check("*/20 30 2 * * *", &["02:30+02:00", "02:30:20+02:00", "02:30:40+02:00"]);
    BERLIN_AUTUMN.check("30 59 2-3 * * *", &["02:59:30+02:00", "03:59:30+01:00"]);
    BERLIN_AUTUMN
        .check("30 59 * * * *", &["01:59:30+02:00", "02:59:30+02:00", "02:59:30+01:00", "03:59:30+01:00"]);
}

#[test]
fn new_york_skips_and_repeats_hours_west_of_greenwich() {
    let spring = Night("America/New_York", "2026-03-08T07:00:00Z");
    let autumn = Night("America/New_York", "2026-11-01T06:00:00Z");
    spring.check("15,45 2 * * *", &["03:00-04:00"]);
    spring.check("15,45 1-2 * * *", &["01:15-05:00", "01:45-05:00", "03:00-04:00"]);
    autumn.check("15,45 1 * * *", &["01:15-04:00", "01:45-04:00"]);
    autumn.check("45 * * * *", &["00:45-04:00", "01:45-04:00", "01:45-05:00", "02:45-05:00"]);
}

#[test]
fn havana_skips_and_repeats_the_hour_after_midnight() {
    // 2026-03-08 is a Sunday: the skipped reading counts, so a schedule for Sundays runs.
    let spring = Night("America/Havana", "2026-03-08T05:00:00Z");
    let autumn = Night("America/Havana", "2026-11-01T05:00:00Z");
    spring.check("0,30 0 * * SUN", &["01:00-04:00"]);
    spring.check("*/20 0 8 3 *", &["01:00-04:00"]);
    spring.check("0 22-23,0-2 * * *", &["22:00-05:00", "23:00-05:00", "01:00-04:00", "02:00-04:00"]);
    autumn.check("0,30 0 * * *", &["00:00-04:00", "00:30-04:00"]);
    autumn.check("0 0,1 1 11 *", &["00:00-04:00", "01:00-05:00"]);
}

#[test]
fn lord_howe_skips_and_repeats_half_an_hour() {
    let spring = Night("Australia/Lord_Howe", "2026-10-03T15:30:00Z");
    let autumn = Night("Australia/Lord_Howe", "2026-04-04T15:00:00Z");
    spring.check("0,15,45 2 * * *", &["02:30+11:00", "02:45+11:00"]);
    spring.check("0 1-3 * * *", &["01:00+10:30", "02:30+11:00", "03:00+11:00"]);
    autumn.check("30,45 1 * * *", &["01:30+11:00", "01:45+11:00"]);
    autumn.check("*/15 1 * * *", &["01:00+11:00", "01:15+11:00", "01:30+11:00", "01:45+11:00"]);
    // The expression is due at every full hour that the clock shows. A skipped reading is not due at another time.
    spring.check("0 * * * *", &["00:00+10:30", "01:00+10:30", "03:00+11:00", "04:00+11:00"]);
}

#[test]
fn zones_whose_rules_changed_follow_the_rules_of_the_day() {
    // Cairo had no summer time from 2015 to 2022. It was introduced again on a Friday at midnight.
    let returned = Night("Africa/Cairo", "2023-04-27T22:00:00Z");
    returned.check("0,30 0 * * *", &["01:00+03:00"]);
    Night("Africa/Cairo", "2022-04-28T22:00:00Z").check("0,30 0 * * *", &["00:00+02:00", "00:30+02:00"]);
    // São Paulo had its last summer in 2018 and 2019.
    Night("America/Sao_Paulo", "2018-11-04T03:00:00Z").check("0,30 0 * * *", &["01:00-02:00"]);
    Night("America/Sao_Paulo", "2019-02-17T02:00:00Z")
        .check("0,30 23 * * *", &["23:00-02:00", "23:30-02:00"]);
    Night("America/Sao_Paulo", "2019-11-03T03:00:00Z").check("0,30 0 * * *", &["00:00-03:00", "00:30-03:00"]);
    // Volgograd moved to another zone and back, without summer time.
    Night("Europe/Volgograd", "2018-10-27T23:00:00Z").check("10,50 2 * * *", &["03:00+04:00"]);
    Night("Europe/Volgograd", "2020-12-26T22:00:00Z").check("10,50 1 * * *", &["01:10+04:00", "01:50+04:00"]);
    // Amman stayed on summer time for good in 2022.
    Night("Asia/Amman", "2022-10-27T22:00:00Z").check("0,30 0 * * *", &["00:00+03:00", "00:30+03:00"]);
}

#[test]
fn a_day_that_a_zone_skips_runs_once_after_it() {
    // Samoa crossed the date line: 2011-12-30 did not happen there.
    let night = Night("Pacific/Apia", "2011-12-30T10:00:00Z");
    night.check("0 3,12 30 12 *", &["00:00+14:00"]);
    night.check("0 * 30 12 *", &[]);
}

/// The nights of these zones are compared for ten years. Their rules for those years will not change any more.
const ZONES: [Tz; 8] = [
    Tz::Europe__Berlin,
    Tz::America__New_York,
    Tz::America__Havana,
    Tz::Australia__Lord_Howe,
    Tz::Africa__Cairo,
    Tz::America__Sao_Paulo,
    Tz::Europe__Volgograd,
    Tz::Antarctica__Troll,
];

const EXPRESSIONS: [&str; 29] = [
    "30 2 * * *",
    "0 0 * * *",
    "59 23 * * *",
    "30 0 * * 0",
    "0,30 2 * * *",
    "15,45 0,1 * * *",
    "5,10,50 1-3 * * *",
    "0 1-4 * * *",
    "0 0-23 * 3,10 *",
    "30 */2 * * *",
    "15 0-6/2 * * *",
    "*/15 2 * * *",
    "*/15 0-1 * * 5,0",
    "*/20 */2 * 3,4,10,11 *",
    "0-30/10 2 * * *",
    "10-50/20 0,23 * * *",
    "* 2 * * 0",
    "* 1 25-31 3,10 *",
    "0 * * * *",
    "30 * * * 0",
    "*/15 * * * 0",
    "*/15 */1 25-31 3,10 *",
    "*/5 * 24-31 3,10 *",
    "0 2 29 2 *",
    "0 * 29 2 *",
    "30 2 1 * *",
    "30 2 1 * 0",
    "45 1,2 8-14 3,11 *",
    "0 0 1 1 *",
];

#[test]
fn ten_years_agree_with_an_independent_implementation() {
    let from = "2016-01-01T00:00:00Z".parse().unwrap();
    let until = "2026-01-01T00:00:00Z".parse().unwrap();
    std::thread::scope(|scope| {
        for zone in ZONES {
            scope.spawn(move || {
                for expression in EXPRESSIONS {
                    compare(&Oracle::new(expression, zone, from, until));
                }
            });
        }
    });
}

fn compare(oracle: &Oracle) {
    let schedule = Schedule::cron(oracle.expression, oracle.zone.name()).unwrap();
    let expected = oracle.occurrences();
    let before = Timestamp::from_ms(oracle.from.timestamp_millis() - 1);
    let mut due = schedule.upcoming(before, expected.len() + 1).into_iter().map(to_utc);
    for expected in &expected {
        assert_eq!(due.next(), Some(*expected), "{oracle}");
    }
    let beyond = due.next().unwrap();
    assert!(beyond >= oracle.until, "{oracle} is also due at {beyond}");
    // A worker that starts in the middle of such a night finds the same next occurrence.
    for change in oracle.changes() {
        for minutes in -20..=20 {
            let started = change + TimeDelta::minutes(7 * minutes);
            let Some(due) = expected.get(expected.partition_point(|due| *due <= started)) else { continue };
            let next = schedule.upcoming(Timestamp::from_ms(started.timestamp_millis()), 1)[0];
            assert_eq!(to_utc(next), *due, "{oracle} after {started}");
        }
    }
}

fn to_utc(at: Timestamp) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(at.as_ms()).unwrap()
}
