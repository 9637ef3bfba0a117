//! Tables and field lists for people: aligned, fitted to the terminal, with states in colour.

use comfy_table::{ColumnConstraint, Row, TableStyle, Width};
use crossterm::style::{Color, Stylize as _};

use super::{OutputStyle, time};

/// Spaces between two columns.
const GAP: usize = 2;
/// A column of text is not made narrower than this to fit the terminal.
const TEXT_WIDTH_MIN: usize = 12;
/// The least width of a column with ages or durations, so that a change of one does not move the others.
const TIME_WIDTH_MIN: usize = 10;

/// The colour of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StateColour {
    /// All is well.
    Green,
    /// Something needs help.
    Red,
    /// Something is in progress, or needs attention.
    Yellow,
    /// Of little interest.
    Grey,
}

impl StateColour {
    /// The colour of a state, an outcome or a severity by its name. Other names have no colour.
    pub(crate) fn of(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "succeeded" | "done" | "passing" | "active" | "ok" => Some(Self::Green),
            "dead" | "failed" | "blocked" | "canary_failed" | "bad" | "critical" | "timeout" | "panic"
            | "rejected" | "lease_expired" => Some(Self::Red),
            "running" | "retrying" | "probing" | "held" | "warn" | "warning" | "paused" => Some(Self::Yellow),
            "cancelled" | "released" => Some(Self::Grey),
            _ => None,
        }
    }

    /// The number of the colour in the palette of the terminal.
    fn ansi(self) -> u8 {
        match self {
            Self::Red => 1,
            Self::Green => 2,
            Self::Yellow => 3,
            Self::Grey => 8,
        }
    }
}

/// Returns the text in a colour, if the output has colours.
pub(crate) fn coloured(text: &str, colour: Option<StateColour>, style: &OutputStyle) -> String {
    match colour {
        Some(colour) if style.colours && !text.is_empty() => {
            text.with(Color::AnsiValue(colour.ansi())).to_string()
        }
        _ => text.to_owned(),
    }
}

/// Replaces control characters by spaces. Answers of targets must not move the cursor or colour the screen.
pub(crate) fn without_controls(text: &str) -> String {
    text.chars()
        .map(|character| if character.is_control() { ' ' } else { character })
        .collect::<String>()
        .trim()
        .to_owned()
}

/// Cuts text to a number of characters and ends it with an ellipsis.
pub(crate) fn truncate(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// One cell of a table.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    text: String,
    colour: Option<StateColour>,
    width_min: usize,
    is_id: bool,
}

impl Cell {
    pub(crate) fn text(text: impl AsRef<str>) -> Self {
        Self { text: without_controls(text.as_ref()), colour: None, width_min: 0, is_id: false }
    }

    /// An id or a name that people copy: it is never cut.
    pub(crate) fn id(text: impl AsRef<str>) -> Self {
        Self { is_id: true, ..Self::text(text) }
    }

    /// A text, or a dash.
    pub(crate) fn optional(text: Option<impl AsRef<str>>) -> Self {
        text.map_or_else(|| Self::text("-"), Self::text)
    }

    /// A state in its colour.
    pub(crate) fn state(name: &str) -> Self {
        Self { colour: StateColour::of(name), ..Self::text(name) }
    }

    pub(crate) fn number(number: impl std::fmt::Display) -> Self {
        Self::text(number.to_string())
    }

    /// The distance of an instant from now.
    pub(crate) fn age(at: Option<i64>, style: &OutputStyle) -> Self {
        Self { width_min: TIME_WIDTH_MIN, ..Self::optional(at.map(|at| time::age(at, style.now))) }
    }

    pub(crate) fn duration(ms: Option<u64>) -> Self {
        Self { width_min: TIME_WIDTH_MIN, ..Self::optional(ms.map(time::duration)) }
    }

    fn render(&self, style: &OutputStyle) -> comfy_table::Cell {
        let cell = comfy_table::Cell::new(&self.text);
        match self.colour {
            Some(colour) if style.colours => cell.fg(comfy_table::Color::AnsiValue(colour.ansi())),
            _ => cell,
        }
    }
}

/// A table that is printed page by page. The first page decides the widths of the columns, so that the beginning of a
/// long list can be shown before its end is known.
pub(crate) struct Table {
    headers: Vec<&'static str>,
    /// Columns to leave out on a narrow terminal, in this order.
    optional: &'static [&'static str],
    rows: Vec<Vec<Cell>>,
    /// Known after the first page; `None` for a column that is left out.
    widths: Option<Vec<Option<usize>>>,
    style: OutputStyle,
}

impl Table {
    pub(crate) fn new(
        headers: &[&'static str],
        optional: &'static [&'static str],
        style: OutputStyle,
    ) -> Self {
        Self { headers: headers.to_vec(), optional, rows: Vec::new(), widths: None, style }
    }

    pub(crate) fn add_row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.headers.len());
        self.rows.push(cells);
    }

    /// Renders the rows that were added since the last call, below the headers on the first call.
    pub(crate) fn render(&mut self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(TableStyle::new()).force_no_tty().set_truncation_indicator("…");
        if self.style.colours {
            table.enforce_styling().style_text_only();
        }
        let first = self.widths.is_none();
        let widths = self.widths.take().unwrap_or_else(|| self.column_widths());
        if first {
            table.set_header(self.headers.clone());
        }
        for cells in std::mem::take(&mut self.rows) {
            let mut row = Row::from(cells.iter().map(|cell| cell.render(&self.style)).collect::<Vec<_>>());
            row.max_height(1);
            table.add_row(row);
        }
        table.set_constraints(widths.iter().map(|width| self.constraint(*width)));
        for column in table.column_iter_mut() {
            column.set_padding((0, GAP as u16));
        }
        self.widths = Some(widths);
        table.trim_fmt() + "\n"
    }

    fn constraint(&self, width: Option<usize>) -> ColumnConstraint {
        let Some(width) = width else { return ColumnConstraint::Hidden };
        // The library counts the padding as part of the width.
        let width = Width::Fixed(u16::try_from(width + GAP).unwrap_or(u16::MAX));
        match self.style.width {
            Some(_) => ColumnConstraint::Absolute(width),
            None => ColumnConstraint::LowerBoundary(width),
        }
    }

    /// The widths that the content needs. On a terminal, long texts are cut first, then columns are left out.
    fn column_widths(&self) -> Vec<Option<usize>> {
        let mut widths: Vec<Option<usize>> =
            (0..self.headers.len()).map(|column| Some(self.content_width(column))).collect();
        let Some(room) = self.style.width else { return widths };
        for header in self.optional {
            if total_width(&self.fitted(&widths, room)) <= room {
                break;
            }
            if let Some(column) = self.headers.iter().position(|name| name == header) {
                widths[column] = None;
            }
        }
        self.fitted(&widths, room)
    }

    fn content_width(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|row| &row[column]);
        let widths = cells.map(|cell| cell.text.chars().count().max(cell.width_min));
        widths.chain([self.headers[column].chars().count()]).max().unwrap_or(0)
    }

    /// Takes width from the widest texts until the table fits, or until no text can be cut further.
    fn fitted(&self, widths: &[Option<usize>], room: usize) -> Vec<Option<usize>> {
        let mut widths = widths.to_vec();
        let has_ids: Vec<bool> =
            (0..widths.len()).map(|column| self.rows.iter().any(|row| row[column].is_id)).collect();
        for _ in room..total_width(&widths) {
            let texts = widths.iter_mut().zip(&has_ids).filter(|(_, has_ids)| !**has_ids);
            match texts.filter_map(|(width, _)| width.as_mut()).max_by_key(|width| **width) {
                Some(widest) if *widest > TEXT_WIDTH_MIN => *widest -= 1,
                _ => break,
            }
        }
        widths
    }
}

fn total_width(widths: &[Option<usize>]) -> usize {
    let shown = widths.iter().flatten();
    shown.clone().sum::<usize>() + GAP * shown.count().saturating_sub(1)
}

/// The fields of one thing, one per line: a name and a value.
pub(crate) struct FieldList {
    fields: Vec<(&'static str, String, Option<StateColour>)>,
    style: OutputStyle,
}

impl FieldList {
    pub(crate) fn new(style: OutputStyle) -> Self {
        Self { fields: Vec::new(), style }
    }

    pub(crate) fn add(&mut self, name: &'static str, value: impl AsRef<str>) {
        self.fields.push((name, without_controls(value.as_ref()), None));
    }

    /// Adds a field if it has a value.
    pub(crate) fn add_optional(&mut self, name: &'static str, value: Option<impl AsRef<str>>) {
        if let Some(value) = value {
            self.add(name, value);
        }
    }

    /// Adds a state in its colour.
    pub(crate) fn add_state(&mut self, name: &'static str, state: &str) {
        self.fields.push((name, without_controls(state), StateColour::of(state)));
    }

    /// Adds an instant if it is known.
    pub(crate) fn add_instant(&mut self, name: &'static str, at: Option<i64>) {
        self.add_optional(name, at.map(|at| time::instant(at, self.style.now)));
    }

    pub(crate) fn render(&self) -> String {
        let width = self.fields.iter().map(|(name, ..)| name.chars().count()).max().unwrap_or(0);
        let line = |(name, value, colour): &(&str, String, Option<StateColour>)| {
            format!("{name:<width$}  {}\n", coloured(value, *colour, &self.style))
        };
        self.fields.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: OutputStyle = OutputStyle { colours: false, width: None, now: 0 };

    fn table(style: OutputStyle) -> Table {
        let mut table = Table::new(&["ID", "STATE", "ERROR"], &["STATE"], style);
        table.add_row(vec![Cell::id("a"), Cell::state("dead"), Cell::text("connection refused by peer")]);
        table.add_row(vec![Cell::id("long-id"), Cell::state("pending"), Cell::optional(None::<&str>)]);
        table
    }

    #[test]
    fn columns_are_aligned_and_nothing_is_cut_without_a_terminal() {
        let text =
            "ID       STATE    ERROR\na        dead     connection refused by peer\nlong-id  pending  -\n";
        assert_eq!(table(PLAIN).render(), text);
    }

    #[test]
    fn a_narrow_terminal_cuts_texts_then_drops_columns_and_keeps_ids_whole() {
        let at = |width| table(OutputStyle { width: Some(width), ..PLAIN }).render();
        let text = at(30);
        assert!(text.contains("dead     connection…\n"), "{text}");
        let narrower = at(29);
        assert_eq!(narrower, "ID       ERROR\na        connection refused…\nlong-id  -\n");
        let tiny = at(5);
        assert!(tiny.contains("long-id  -\n"), "{tiny}");
    }

    #[test]
    fn headers_are_printed_once_and_later_rows_keep_the_widths() {
        let mut table = table(PLAIN);
        table.render();
        table.add_row(vec![Cell::text("b"), Cell::text(""), Cell::text("x")]);
        assert_eq!(table.render(), "b                 x\n");
        table.add_row(vec![Cell::text("b"), Cell::text("a longer state"), Cell::text("x")]);
        assert_eq!(table.render(), "b        a longer state  x\n");
    }

    #[test]
    fn colours_do_not_count_as_width() {
        let text = table(OutputStyle { colours: true, ..PLAIN }).render();
        let plain = regex::Regex::new("\x1b\\[[0-9;]*m").unwrap().replace_all(&text, "").into_owned();
        assert!(text.contains("\x1b[38;5;1mdead\x1b["), "{text:?}");
        assert_eq!(plain, table(PLAIN).render());
    }

    #[test]
    fn an_answer_of_a_target_cannot_move_the_cursor() {
        let mut table = Table::new(&["ERROR"], &[], PLAIN);
        table.add_row(vec![Cell::text("a\x1b[2J\nb\u{9b}1m\tc")]);
        assert_eq!(table.render(), "ERROR\na [2J b 1m c\n");
        let mut fields = FieldList::new(PLAIN);
        fields.add("error", "x\r\ny");
        fields.add_instant("created", Some(0));
        assert_eq!(fields.render(), "error    x  y\ncreated  1970-01-01T00:00:00.000Z (now)\n");
    }
}
