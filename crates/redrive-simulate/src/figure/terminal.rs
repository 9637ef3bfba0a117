//! Figures for a terminal: timelines of block characters, and tables.

use super::timelines::align;
use super::{ByClients, CallsOverTime, format_count, format_ms};

const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The fewest columns of a timeline, even in a narrow terminal.
const COLUMNS_MIN: usize = 20;

pub(super) fn timelines(figure: &CallsOverTime, columns: usize) -> String {
    let names = figure.timelines.iter().map(|timeline| timeline.name.chars().count()).max().unwrap_or(0);
    let timeline_columns = columns.saturating_sub(names + 2).max(COLUMNS_MIN);
    let aligned = align(figure, timeline_columns);
    let (top, _) = figure.scale.axis(aligned.highest);
    let mut drawn = format!("{}\n\n", figure.title);
    for (timeline, row) in figure.timelines.iter().zip(&aligned.rows) {
        let blocks: String =
            row.calls.iter().map(|calls| block(figure.scale.height(*calls, top), *calls)).collect();
        let continues = row.continues_until_ms.map(|until| format!(", continues until {}", format_ms(until)));
        drawn += &format!("{:names$}  {}\n", timeline.name, blocks.trim_end());
        drawn += &format!("{:names$}  {}{}\n", "", timeline.note, continues.unwrap_or_default());
    }
    if let Some(mark) = &figure.mark {
        let place = (mark.at_ms as f64 / aligned.step_ms) as usize;
        drawn += &format!("{:names$}  {:place$}↑ {}\n", "", "", mark.meaning);
    }
    drawn
        + &format!(
            "\neach column is {}, a full block is {} {}{}\n",
            format_ms(aligned.step_ms),
            format_count(top),
            figure.counted,
            figure.scale.legend()
        )
}

/// The block for a height. Even a single call is visible.
fn block(height: f64, calls: f64) -> char {
    let least = usize::from(calls > 0.0);
    BLOCKS[((height * 8.0).round() as usize).clamp(least, 8)]
}

pub(super) fn tables(lines: &ByClients) -> String {
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
                drawn += &format!("  {:>12}", format_count(series.points[place].1));
            }
            drawn.push('\n');
        }
    }
    drawn
}
