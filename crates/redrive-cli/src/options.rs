//! Values of options: how they are parsed, and which of two options wins. Every error has an example of a valid value.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::ops::{Bound, RangeBounds};
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use ipnet::IpNet;
use jiff::Timestamp;
use redrive_core::Policy;
use redrive_wire::policy::RetryPolicy;

use crate::exit::ExitStatus;
use crate::output::time;

/// Returns a parser of integers within `range`.
pub(crate) fn integer<T>(
    range: impl RangeBounds<u64> + Clone + Send + Sync + 'static,
    example: u64,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: TryFrom<u64> + 'static,
{
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        let limits = match (range.start_bound(), range.end_bound()) {
            (Bound::Included(least), Bound::Included(most)) => format!(" from {least} to {most}"),
            (Bound::Included(least), _) => format!(" of at least {least}"),
            _ => String::new(),
        };
        let error = || format!("write a whole number{limits}, for example {example}");
        number.and_then(|number: u64| T::try_from(number).ok()).ok_or_else(error)
    }
}

/// Parses a number that may have a fraction.
pub(crate) fn parse_number(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
    number.ok_or_else(|| "write a number, for example 0.5 or 20".to_owned())
}

/// Parses an address to listen on.
pub(crate) fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    parse(text, "write an IP address and a port, for example 127.0.0.1:7373")
}

/// Parses a range of IP addresses. A single address is a range of one.
pub(crate) fn parse_ip_range(text: &str) -> Result<IpNet, String> {
    let address = || text.parse::<IpAddr>().map(IpNet::from);
    text.parse::<IpNet>().or_else(|_| address()).map_err(|_| {
        format!(
            "invalid range {text:?}: write an address such as 10.1.2.3, or a range such as 10.0.0.0/8 or fd00::/8"
        )
    })
}

fn parse<T: FromStr<Err: Display>>(text: &str, example: &str) -> Result<T, String> {
    text.parse().map_err(|error| format!("{error}; {example}"))
}

/// Parses a duration: `500ms`, `30s`, `5m`, `1h 30m`, `7d`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let remedy = if text.trim().parse::<f64>().is_ok() { "add a unit" } else { "write a number and a unit" };
    let error = |_| format!("invalid duration {text:?}: {remedy}, for example 5s, 2m, 1h");
    humantime::parse_duration(text).map_err(error)
}

/// Returns a duration in ms, as the API takes it.
pub(crate) fn as_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Parses a time in the past: `2h` means two hours ago. An exact time is written like `2026-05-01T08:00:00Z`.
pub(crate) fn parse_past(text: &str) -> Result<i64, String> {
    if let Ok(ago) = parse_duration(text) {
        let ago = i64::try_from(ago.as_millis()).unwrap_or(i64::MAX);
        return Ok(time::now().saturating_sub(ago));
    }
    parse_timestamp(text, "2h for two hours ago")
}

/// When a task is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DueTime {
    /// After this time, by the clock of the service.
    In(Duration),
    /// At this time in epoch ms.
    At(i64),
}

/// Parses a time in the future: `2h` means in two hours. An exact time is written like `2026-05-01T08:00:00Z`.
pub(crate) fn parse_future(text: &str) -> Result<DueTime, String> {
    match parse_duration(text) {
        Ok(delay) => Ok(DueTime::In(delay)),
        Err(_) => parse_timestamp(text, "2h for two hours from now").map(DueTime::At),
    }
}

fn parse_timestamp(text: &str, example: &str) -> Result<i64, String> {
    let error = |_| format!("invalid time {text:?}: write {example}, or 2026-05-01T08:00:00Z");
    text.parse::<Timestamp>().map(Timestamp::as_millisecond).map_err(error)
}

/// Reads a file that an option names. A file that cannot be read is an invalid value of the option.
pub(crate) fn read_file(path: &Path) -> anyhow::Result<Vec<u8>> {
    let error = |error| ExitStatus::Usage.error(format!("cannot read the file {}: {error}", path.display()));
    std::fs::read(path).map_err(error)
}

/// Reads a text file that an option names.
pub(crate) fn read_text(path: &Path) -> anyhow::Result<String> {
    let error = |_| ExitStatus::Usage.error(format!("the file {} is not UTF-8 text", path.display()));
    String::from_utf8(read_file(path)?).map_err(error)
}

/// Reads a policy, in its JSON form of the API, from a file that an option names.
pub(crate) fn read_policy(path: &Path) -> anyhow::Result<RetryPolicy> {
    parse_policy(&read_text(path)?, path)
}

/// Reads a policy of the engine from a file that an option names.
pub(crate) fn read_engine_policy(path: &Path) -> anyhow::Result<Policy> {
    let policy = read_policy(path)?.to_policy();
    policy.map_err(|error| ExitStatus::Usage.error(format!("invalid policy in {}: {error}", path.display())))
}

/// Parses a policy that was read from `path`.
pub(crate) fn parse_policy(text: &str, path: &Path) -> anyhow::Result<RetryPolicy> {
    let example = r#"{"maxAttempts": 5, "initialDelayMs": 500}"#;
    let error = |error| {
        let text = format!("invalid policy in {}: {error}; for example {example}", path.display());
        ExitStatus::Usage.error(text)
    };
    serde_json::from_str(text).map_err(error)
}

/// The options that are on the command line, as opposed to the environment or a default. It adds no option: flatten it into
/// the arguments of a command as the first field, because clap removes the values of a field once it has read them.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExplicitOptions(BTreeSet<String>);

impl ExplicitOptions {
    pub(crate) fn contains(&self, option: &str) -> bool {
        self.0.contains(option)
    }

    /// Chooses between two options that exclude each other. An option on the command line clears one from elsewhere; two
    /// options on the command line are an error. Two options from elsewhere both stay, and the command documents which wins.
    pub(crate) fn resolve<A, B>(
        &self,
        (first_name, first): (&str, &mut Option<A>),
        (second_name, second): (&str, &mut Option<B>),
    ) -> anyhow::Result<()> {
        match (self.contains(first_name), self.contains(second_name)) {
            (true, true) => {
                let [one, other] = [first_name, second_name].map(|id| id.replace('_', "-"));
                return Err(ExitStatus::Usage.error(format!("give --{one} or --{other}, not both")));
            }
            (true, false) => *second = None,
            (false, true) => *first = None,
            (false, false) => {}
        }
        Ok(())
    }
}

impl FromArgMatches for ExplicitOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_explicit = |id: &&str| matches.value_source(id) == Some(ValueSource::CommandLine);
        Ok(Self(matches.ids().map(clap::Id::as_str).filter(is_explicit).map(str::to_owned).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for ExplicitOptions {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_limits_and_their_errors_have_an_example() {
        assert_eq!(integer::<u8>(0..=9, 5)("9"), Ok(9));
        assert_eq!(integer::<u64>(1.., 5)("18446744073709551615"), Ok(u64::MAX));
        for text in ["10", "-1", "x", "", "1.5"] {
            let error = integer::<u8>(0..=9, 5)(text).unwrap_err();
            assert_eq!(error, "write a whole number from 0 to 9, for example 5", "{text}");
        }
        let error = integer::<u32>(1.., 5)("0").unwrap_err();
        assert_eq!(error, "write a whole number of at least 1, for example 5");
        assert!(integer::<u8>(1.., 5)("256").is_err());
        assert_eq!(parse_number("0.5"), Ok(0.5));
        for text in ["nan", "inf", "x"] {
            assert!(parse_number(text).unwrap_err().contains("0.5"), "{text}");
        }
        assert!(parse_listen("here").unwrap_err().contains("127.0.0.1:7373"));
        assert!(parse_ip_range("here").unwrap_err().contains("10.0.0.0/8"));
    }

    #[test]
    fn durations_need_a_unit() {
        for (text, ms) in [
            ("500ms", 500),
            ("1.5s", 1_500),
            ("5m", 300_000),
            ("2 h", 7_200_000),
            ("1h 30m", 5_400_000),
            ("7d", 604_800_000),
        ] {
            assert_eq!(parse_duration(text).unwrap(), Duration::from_millis(ms), "{text}");
        }
        for text in ["", "5", "s", "5 years ago", "-5s", "1e999d", "..s", "99999999999999999999d"] {
            assert!(parse_duration(text).unwrap_err().contains("5s, 2m, 1h"), "{text}");
        }
        let error = parse_duration("5").unwrap_err();
        assert_eq!(error, "invalid duration \"5\": add a unit, for example 5s, 2m, 1h");
    }

    #[test]
    fn a_duration_means_the_past_in_a_filter_and_the_future_for_a_new_task() {
        assert_eq!(parse_past("1970-01-01T00:00:01Z").unwrap(), 1_000);
        let ago = time::now() - parse_past("2h").unwrap();
        assert!((7_200_000..7_260_000).contains(&ago), "{ago}");
        assert!(parse_past("yesterday").unwrap_err().contains("2026-05-01T08:00:00Z"));

        assert_eq!(parse_future("1970-01-01T00:00:01Z").unwrap(), DueTime::At(1_000));
        assert_eq!(parse_future("2h").unwrap(), DueTime::In(Duration::from_secs(7_200)));
        assert!(parse_future("tomorrow").unwrap_err().contains("2h for two hours from now"));
    }

    fn resolve(explicit: &[&str]) -> anyhow::Result<(Option<u8>, Option<u8>)> {
        let options = ExplicitOptions(explicit.iter().map(|name| (*name).to_owned()).collect());
        let (mut first, mut second) = (Some(1), Some(2));
        options.resolve(("a_b", &mut first), ("c", &mut second))?;
        Ok((first, second))
    }

    #[test]
    fn the_command_line_wins_and_two_options_on_it_are_an_error() {
        assert_eq!(resolve(&[]).unwrap(), (Some(1), Some(2)));
        assert_eq!(resolve(&["a_b"]).unwrap(), (Some(1), None));
        assert_eq!(resolve(&["c"]).unwrap(), (None, Some(2)));
        assert_eq!(resolve(&["a_b", "c"]).unwrap_err().to_string(), "give --a-b or --c, not both");
    }
}
