//! Results by the number of clients as SVG: charts side by side, with one legend.

use std::fmt::Write as _;

use super::scale::nice;
use super::svg::{COLOURS, Picture, Side};
use super::{ByClients, Chart, format_count};

const CHART: (f64, f64) = (340.0, 280.0);
const LEFT: f64 = 66.0;
const TOP: f64 = 76.0;
const GAP: f64 = 84.0;
const LEGEND: f64 = 84.0;

pub(super) fn svg(lines: &ByClients) -> String {
    let charts = lines.charts.len() as f64;
    let width = LEFT + charts * CHART.0 + (charts - 1.0) * GAP + 24.0;
    let mut picture = Picture::new(width, TOP + CHART.1 + LEGEND, &lines.title);
    picture.text(16.0, 26.0, Side::Start, "title", &lines.title);
    for (place, chart) in lines.charts.iter().enumerate() {
        draw_chart(&mut picture, chart, LEFT + place as f64 * (CHART.0 + GAP));
    }
    if let Some(chart) = lines.charts.first() {
        draw_legend(&mut picture, chart);
    }
    picture.finish()
}

fn draw_chart(picture: &mut Picture, chart: &Chart, left: f64) {
    let points = || chart.series.iter().flat_map(|series| &series.points);
    let widest = points().map(|point| point.0).fold(1.0, f64::max);
    let (top, labels) = chart.scale.axis(points().map(|point| point.1).fold(0.0, f64::max));
    let base = TOP + CHART.1;
    let x = |clients: f64| left + CHART.0 * clients / widest;
    let y = |value: f64| base - CHART.1 * chart.scale.height(value, top);
    picture.text(left, TOP - 14.0, Side::Start, "name", chart.title);
    for label in labels {
        picture.line((left, y(label)), (left + CHART.0, y(label)), "grid");
        picture.text(left - 8.0, y(label) + 4.0, Side::End, "small", &format_count(label));
    }
    let step = nice(widest / 5.0);
    for tick in 0..=(widest / step) as u32 {
        let clients = f64::from(tick) * step;
        picture.line((x(clients), base), (x(clients), base + 5.0), "axis");
        picture.text(x(clients), base + 18.0, Side::Middle, "small", &format_count(clients));
    }
    picture.line((left, base), (left + CHART.0, base), "axis");
    picture.text(left + CHART.0 / 2.0, base + 36.0, Side::Middle, "small", "clients");
    for (place, series) in chart.series.iter().enumerate() {
        let mut path = String::new();
        for (number, (clients, value)) in series.points.iter().enumerate() {
            let step = if number == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{step}{:.1} {:.1}", x(*clients), y(*value));
        }
        picture.path(&path, &format!("line c{}", place % COLOURS));
    }
}

fn draw_legend(picture: &mut Picture, chart: &Chart) {
    let y = TOP + CHART.1 + LEGEND - 20.0;
    for (place, series) in chart.series.iter().enumerate() {
        let left = LEFT + place as f64 * 140.0;
        let path = format!("M{left:.1} {y:.1}h28");
        picture.path(&path, &format!("line c{}", place % COLOURS));
        picture.text(left + 36.0, y + 4.0, Side::Start, "", &series.name);
    }
}
