//! Charts as SVG, drawn here so that they need no script; each comes with a table that says the same.

mod scale;
pub(crate) mod schedule;
pub(crate) mod series;
pub(crate) mod timeline;

use askama::Template;

pub(crate) use scale::{Unit, as_f64};

/// How wide a chart is, in its own units; it grows and shrinks with the page.
const WIDTH: f64 = 560.0;
/// How high it is.
const HEIGHT: f64 = 190.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 26.0;

/// A chart with its axes, its legend and its table.
#[derive(Debug, Template)]
#[template(path = "figure.html")]
pub(crate) struct Figure {
    /// What a link or a label can refer to.
    pub(crate) id: String,
    /// What it shows.
    pub(crate) title: String,
    /// The same in a sentence, for whoever does not see it.
    pub(crate) summary: String,
    /// Whether there is anything to draw.
    pub(crate) empty: bool,
    /// Lines across, with their labels.
    pub(crate) rows: Vec<Tick>,
    /// Labels below.
    pub(crate) columns: Vec<Tick>,
    /// What is drawn, from back to front.
    pub(crate) shapes: Vec<Shape>,
    /// What each colour means, and its last value.
    pub(crate) legend: Vec<Meaning>,
    /// The same in numbers.
    pub(crate) table: Table,
}

impl askama::filters::HtmlSafe for Figure {}

/// A mark on an axis.
#[derive(Debug)]
pub(crate) struct Tick {
    pub(crate) at: String,
    pub(crate) label: String,
}

/// A path in a colour.
#[derive(Debug)]
pub(crate) struct Shape {
    pub(crate) class: &'static str,
    pub(crate) path: String,
}

/// What a colour means.
#[derive(Debug)]
pub(crate) struct Meaning {
    pub(crate) class: &'static str,
    pub(crate) label: String,
    pub(crate) value: String,
}

/// Numbers in rows.
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

/// A place on a drawing: a tenth of a unit is finer than any screen.
fn place(at: f64) -> String {
    let text = format!("{at:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}
