//! Counts, durations and sizes as people read them. The CLI, the console, problems and findings all use these functions.

use std::time::Duration;

/// Formats a number with commas between thousands: `1,234,567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number with its noun: `1 job`, `1,200 jobs`.
pub fn count_of(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(number), if number == 1 { "" } else { "s" })
}

/// Formats a duration: `12 ms`, `1.2 s`, and from a minute on in its two largest units, `1 h 5 min`.
pub fn duration(duration: Duration) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let ms = duration.as_secs_f64() * 1_000.0;
    if ms < 999.5 {
        return format!("{ms:.0} ms");
    }
    if ms < 59_950.0 {
        return format!("{} s", format!("{:.1}", ms / 1_000.0).trim_end_matches(".0"));
    }
    let mut rest = (ms / 1_000.0).round() as u64;
    let parts = UNITS.map(|(size, unit)| {
        let whole = rest / size;
        rest %= size;
        (whole, unit)
    });
    let parts = parts.into_iter().skip_while(|(whole, _)| *whole == 0).take(2);
    let shown: Vec<String> =
        parts.filter(|(whole, _)| *whole > 0).map(|(whole, unit)| format!("{whole} {unit}")).collect();
    shown.join(" ")
}

/// Formats a size: `512 bytes`, `1.5 KiB`, `20.0 MiB`.
pub fn bytes(number: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS.into_iter().find(|(size, _)| number >= *size) {
        Some((size, unit)) => format!("{:.1} {unit}", number as f64 / size as f64),
        None => count_of(number, "byte"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_commas_and_nouns_a_plural() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(number), text);
        }
        assert_eq!([0, 1, 1_200].map(|n| count_of(n, "job")), ["0 jobs", "1 job", "1,200 jobs"]);
    }

    #[test]
    fn durations_have_at_most_two_units() {
        for (ms, text) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_000, "1 s"),
            (1_240, "1.2 s"),
            (12_340, "12.3 s"),
            (59_940, "59.9 s"),
            (59_960, "1 min"),
            (61_000, "1 min 1 s"),
            (3_599_900, "1 h"),
            (3_660_500, "1 h 1 min"),
            (86_460_000, "1 d"),
            (90_061_000, "1 d 1 h"),
        ] {
            assert_eq!(duration(Duration::from_millis(ms)), text);
        }
        assert_eq!(duration(Duration::from_micros(999_700)), "1 s");
    }

    #[test]
    fn sizes_have_a_unit() {
        let sizes = [1, 512, 1_536, 20 << 20, 3 << 30].map(bytes);
        assert_eq!(sizes, ["1 byte", "512 bytes", "1.5 KiB", "20.0 MiB", "3.0 GiB"]);
    }
}
