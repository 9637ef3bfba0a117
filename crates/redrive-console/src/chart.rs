//! Charts as SVG, which need no script. Each one has a table with the same values.

mod scale;
pub(crate) mod schedule;
pub(crate) mod series;
pub(crate) mod timeline;

use askama::Template;

pub(crate) use scale::{Unit, as_f64};

/// The width of a chart in SVG units. The browser scales the chart to the page.
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 190.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 26.0;

/// A chart with axes, legend and table.
#[derive(Debug, Template)]
#[template(path = "figure.html")]
pub(crate) struct Figure {
    /// The id of the element.
    pub(crate) id: String,
    pub(crate) title: String,
    /// A description for screen readers.
    pub(crate) summary: String,
    /// Whether there is nothing to draw.
    pub(crate) empty: bool,
    /// Horizontal lines with their labels.
    pub(crate) rows: Vec<Tick>,
    /// Labels below the chart.
    pub(crate) columns: Vec<Tick>,
    /// The shapes, from back to front.
    pub(crate) shapes: Vec<Shape>,
    /// The meaning of each colour, with the last value.
    pub(crate) legend: Vec<LegendEntry>,
    /// The same values as numbers.
    pub(crate) table: Table,
}

impl askama::filters::HtmlSafe for Figure {}

/// A tick of an axis.
#[derive(Debug)]
pub(crate) struct Tick {
    pub(crate) at: String,
    pub(crate) label: String,
}

/// A path with a CSS class.
#[derive(Debug)]
pub(crate) struct Shape {
    pub(crate) class: &'static str,
    pub(crate) path: String,
}

/// An entry of the legend.
#[derive(Debug)]
pub(crate) struct LegendEntry {
    pub(crate) class: &'static str,
    pub(crate) label: String,
    pub(crate) value: String,
}

/// The values of a chart.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Figure {
    fn width(&self) -> f64 {
        WIDTH
    }

    fn height(&self) -> f64 {
        HEIGHT
    }

    fn left(&self) -> f64 {
        LEFT
    }

    fn right(&self) -> f64 {
        WIDTH - RIGHT
    }

    fn floor(&self) -> f64 {
        HEIGHT - BOTTOM
    }
}

/// Formats a coordinate, rounded to a tenth of a unit, which is less than a pixel.
fn coordinate(at: f64) -> String {
    let text = format!("{at:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}
