//! The same for a terminal: rows of blocks as wide as it is, and tables.

use super::strips::align;
use super::{Lines, Strips, people, seconds};

const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Columns that a row of blocks has at least, however narrow the terminal is.
const COLUMNS_MIN: usize = 20;

pub(super) fn of_strips(strips: &Strips, columns: usize) -> String {
    let names = strips.strips.iter().map(|strip| strip.name.chars().count()).max().unwrap_or(0);
    let room = columns.saturating_sub(names + 2).max(COLUMNS_MIN);
    let aligned = align(strips, room);
    let (top, _) = strips.scale.axis(aligned.highest);
    let mut drawn = format!("{}\n\n", strips.title);
    for (strip, row) in strips.strips.iter().zip(&aligned.rows) {
        let marks: String =
            row.calls.iter().map(|calls| block(strips.scale.height(*calls, top), *calls)).collect();
        let on = row.goes_on_until_ms.map(|until| format!(", goes on until {}", seconds(until)));
        drawn += &format!("{:names$}  {}\n", strip.name, marks.trim_end());
        drawn += &format!("{:names$}  {}{}\n", "", strip.note, on.unwrap_or_default());
    }
    if let Some(mark) = &strips.mark {
        let place = (mark.at_ms as f64 / aligned.step_ms) as usize;
        drawn += &format!("{:names$}  {:place$}↑ {}\n", "", "", mark.meaning);
    }
    drawn
        + &format!(
            "\neach mark is {}, a full one {} {}{}\n",
            seconds(aligned.step_ms),
            people(top),
            strips.counted,
            strips.scale.said()
        )
}

/// What is there is seen, however little it is.
fn block(height: f64, calls: f64) -> char {
    let least = usize::from(calls > 0.0);
    BLOCKS[((height * 8.0).round() as usize).clamp(least, 8)]
}

pub(super) fn of_lines(lines: &Lines) -> String {
    let mut drawn = format!("{}\n", lines.title);
    for chart in &lines.charts {
        drawn += &format!("\n{:>7}", "clients");
        for series in &chart.series {
            drawn += &format!("  {:>12}", series.name);
        }
        drawn += &format!("   {}\n", chart.title);
        let points = chart.series.first().map_or(0, |series| series.points.len());
        for place in 0..points {
            let clients = chart.series.first().map_or(0.0, |series| series.points[place].0);
            drawn += &format!("{clients:>7.0}");
            for series in &chart.series {
                drawn += &format!("  {:>12}", people(series.points[place].1));
            }
            drawn.push('\n');
        }
    }
    drawn
}
