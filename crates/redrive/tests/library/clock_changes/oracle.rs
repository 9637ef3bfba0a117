//! Applies the documented rule to every matching reading of a clock, and converts each reading to an instant. It shares no code
//! with the library: it has its own parser, and uses another time library with other time zone data.

use chrono::{
    DateTime, Datelike, Days, MappedLocalTime, NaiveDate, NaiveDateTime, Offset, TimeDelta, TimeZone, Utc,
};
use chrono_tz::Tz;

pub(super) struct Oracle {
    pub(super) expression: &'static str,
    pub(super) zone: Tz,
    pub(super) from: DateTime<Utc>,
    pub(super) until: DateTime<Utc>,
}

impl Oracle {
    pub(super) fn new(expression: &'static str, zone: Tz, from: DateTime<Utc>, until: DateTime<Utc>) -> Self {
        Self { expression, zone, from, until }
    }

    pub(super) fn occurrences(&self) -> Vec<DateTime<Utc>> {
        let fields: Vec<&str> = self.expression.split(' ').collect();
        let (minutes, hours) = (values(fields[0], 0, 59), values(fields[1], 0, 23));
        let every_hour = matches!(fields[1], "*" | "*/1");
        let (days, months, weekdays) =
            (values(fields[2], 1, 31), values(fields[3], 1, 12), values(fields[4], 0, 6));
        let matches_date = |date: &NaiveDate| {
            let day = days.contains(&date.day());
            let weekday = weekdays.contains(&date.weekday().num_days_from_sunday());
            // If both the day of the month and the weekday are restricted, either of them suffices.
            let either = fields[2] != "*" && fields[4] != "*";
            months.contains(&date.month()) && if either { day || weekday } else { day && weekday }
        };
        let mut instants = Vec::new();
        for date in self.dates().filter(matches_date) {
            for (hour, minute) in
                hours.iter().flat_map(|hour| minutes.iter().map(move |minute| (*hour, *minute)))
            {
                let reading = date.and_hms_opt(hour, minute, 0).unwrap();
                match self.zone.from_local_datetime(&reading) {
                    MappedLocalTime::Single(only) => instants.push(only),
                    MappedLocalTime::Ambiguous(first, second) if every_hour => {
                        instants.extend([first, second])
                    }
                    MappedLocalTime::Ambiguous(first, _) => instants.push(first),
                    MappedLocalTime::None if every_hour => {}
                    MappedLocalTime::None => instants.push(self.end_of_gap(reading)),
                }
            }
        }
        let mut instants: Vec<DateTime<Utc>> = instants.into_iter().map(|at| at.to_utc()).collect();
        instants.sort_unstable();
        instants.dedup();
        instants.retain(|at| (self.from..self.until).contains(at));
        instants
    }

    /// The instants at which the offset changes; all are on a quarter of an hour.
    pub(super) fn changes(&self) -> Vec<DateTime<Utc>> {
        let offset = |at: &DateTime<Utc>| self.zone.offset_from_utc_datetime(&at.naive_utc()).fix();
        let quarter = TimeDelta::minutes(15);
        let days = std::iter::successors(Some(self.from), |day| Some(*day + TimeDelta::days(1)));
        days.take_while(|day| *day < self.until)
            .filter(|day| offset(day) != offset(&(*day + TimeDelta::days(1))))
            .filter_map(|day| {
                let mut quarters = (1..=96).map(|count| day + quarter * count);
                quarters.find(|at| offset(at) != offset(&(*at - quarter)))
            })
            .collect()
    }

    /// All dates of the period, and one more at either end since zones are ahead of UTC or behind it.
    fn dates(&self) -> impl Iterator<Item = NaiveDate> + use<> {
        let last = self.until.date_naive() + Days::new(1);
        (self.from.date_naive() - Days::new(1)).iter_days().take_while(move |date| *date <= last)
    }

    fn end_of_gap(&self, skipped: NaiveDateTime) -> DateTime<Tz> {
        let later = (1..).map(|minutes| skipped + TimeDelta::minutes(minutes));
        later.map(|reading| self.zone.from_local_datetime(&reading).earliest()).find_map(|at| at).unwrap()
    }
}

impl std::fmt::Display for Oracle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} in {}", self.expression, self.zone.name())
    }
}

fn values(field: &str, min: u32, max: u32) -> Vec<u32> {
    let part = |part: &str| {
        let (range, step) = part.split_once('/').unwrap_or((part, "1"));
        let (first, last) = match range.split_once('-') {
            Some((first, last)) => (first.parse().unwrap(), last.parse().unwrap()),
            None if range == "*" => (min, max),
            None => (range.parse().unwrap(), range.parse().unwrap()),
        };
        (first..=last).step_by(step.parse().unwrap())
    };
    let mut values: Vec<u32> = field.split(',').flat_map(part).collect();
    values.sort_unstable();
    values
}
