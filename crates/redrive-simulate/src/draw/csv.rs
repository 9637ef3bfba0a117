//! The figures behind a picture, for other programs.

use super::{Lines, Strips};

pub(super) fn of_strips(strips: &Strips) -> String {
    let mut table = String::from("name,startMs,calls\n");
    for strip in &strips.strips {
        for (step, calls) in (0u64..).zip(strip.calls.calls()) {
            let start = step * u64::from(strip.calls.step_ms());
            table += &format!("{},{start},{calls}\n", quoted(&strip.name));
        }
    }
    table
}

pub(super) fn of_lines(lines: &Lines) -> String {
    let mut table = String::from("name,clients,figure,value\n");
    for chart in &lines.charts {
        for series in &chart.series {
            for (clients, value) in &series.points {
                table += &format!("{},{clients},{},{value}\n", quoted(&series.name), quoted(chart.title));
            }
        }
    }
    table
}

/// A field as RFC 4180 has it.
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}
