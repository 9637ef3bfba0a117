//! Values of options: each error has an example of a legal value.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::ops::{Bound, RangeBounds};
use std::path::Path;
use std::str::FromStr;

use ipnet::IpNet;
use serde::de::DeserializeOwned;

use crate::exit::Exit;

/// A parser of whole numbers within `range`.
pub(crate) fn whole<T>(
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
            (Bound::Included(least), _) => format!(" from {least} on"),
            _ => String::new(),
        };
        let wrong = || format!("write a whole number{limits}, for example {example}");
        number.and_then(|number: u64| T::try_from(number).ok()).ok_or_else(wrong)
    }
}

/// Reads a number that may have a fraction.
pub(crate) fn parse_number(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
    number.ok_or_else(|| "write a number, for example 0.5 or 20".to_owned())
}

/// Reads an address to listen on.
pub(crate) fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    parse(text, "write an IP address and a port, for example 127.0.0.1:7373")
}

/// Reads a range of IP addresses; a single address is the range of it alone.
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

/// The content of a file that an argument names. One that cannot be read is an invalid value of the argument.
pub(crate) fn read_file(path: &Path) -> anyhow::Result<Vec<u8>> {
    let wrong = |error| Exit::Usage.because(format!("cannot read the file {}: {error}", path.display()));
    std::fs::read(path).map_err(wrong)
}

/// The text of a file that an argument names.
pub(crate) fn read_text(path: &Path) -> anyhow::Result<String> {
    let wrong = |_| Exit::Usage.because(format!("the file {} is not UTF-8 text", path.display()));
    String::from_utf8(read_file(path)?).map_err(wrong)
}

/// The policy in a file that an argument names.
pub(crate) fn read_policy<T: DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    parse_policy(&read_text(path)?, path)
}

/// The policy in `text`, which comes from `path`.
pub(crate) fn parse_policy<T: DeserializeOwned>(text: &str, path: &Path) -> anyhow::Result<T> {
    let example = r#"{"maxAttempts": 5, "initialDelayMs": 500}"#;
    let wrong = |error| {
        Exit::Usage.because(format!("invalid policy in {}: {error}; for example {example}", path.display()))
    };
    serde_json::from_str(text).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_limits_and_their_errors_an_example() {
        assert_eq!(whole::<u8>(0..=9, 5)("9"), Ok(9));
        assert_eq!(whole::<u64>(1.., 5)("18446744073709551615"), Ok(u64::MAX));
        for text in ["10", "-1", "x", "", "1.5"] {
            let error = whole::<u8>(0..=9, 5)(text).unwrap_err();
            assert_eq!(error, "write a whole number from 0 to 9, for example 5", "{text}");
        }
        let error = whole::<u32>(1.., 5)("0").unwrap_err();
        assert_eq!(error, "write a whole number from 1 on, for example 5");
        assert!(whole::<u8>(1.., 5)("256").is_err());
        assert_eq!(parse_number("0.5"), Ok(0.5));
        for text in ["nan", "inf", "x"] {
            assert!(parse_number(text).unwrap_err().contains("0.5"), "{text}");
        }
        assert!(parse_listen("here").unwrap_err().contains("127.0.0.1:7373"));
        assert!(parse_ip_range("here").unwrap_err().contains("10.0.0.0/8"));
    }
}
