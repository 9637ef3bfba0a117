//! Figures as CSV.

use super::{ByClients, CallsOverTime};

pub(super) fn timelines(figure: &CallsOverTime) -> String {
    let mut table = String::from("name,startMs,calls\n");
    for timeline in &figure.timelines {
        for (step, calls) in (0u64..).zip(timeline.calls.calls()) {
            let start = step * u64::from(timeline.calls.step_ms());
            table += &format!("{},{start},{calls}\n", quote(&timeline.name));
        }
    }
    table
}

pub(super) fn lines(lines: &ByClients) -> String {
    let mut table = String::from("name,clients,figure,value\n");
    for chart in &lines.charts {
        for series in &chart.series {
            for (clients, value) in &series.points {
                table += &format!("{},{clients},{},{value}\n", quote(&series.name), quote(chart.title));
            }
        }
    }
    table
}

/// Quotes a field if RFC 4180 requires it.
fn quote(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}
