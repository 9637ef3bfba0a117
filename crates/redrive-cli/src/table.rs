//! Tables and sheets for people: aligned, cut to the terminal's width, with states in colours.

use serde::Serialize;

use crate::print::Look;
use crate::when;

/// Columns between two columns.
const GAP: usize = 2;
/// Columns that a text keeps at least, however narrow the terminal is.
const NARROW: usize = 12;
/// Columns of a cell that says when or how long: what changes with every look moves nothing else.
const TIME: usize = 10;

/// What a state means to whoever reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    /// It is well.
    Good,
    /// It needs help.
    Bad,
    /// It is under way or wants a look.
    Busy,
    /// It matters little.
    Faint,
}

impl Tone {
    fn code(self) -> &'static str {
        match self {
            Self::Good => "32",
            Self::Bad => "31",
            Self::Busy => "33",
            Self::Faint => "2",
        }
    }
}

/// What a state or status means to whoever reads it, as the service or the engine names it.
pub(crate) fn tone_of(state: &str) -> Option<Tone> {
    match state.to_ascii_lowercase().as_str() {
        "succeeded" | "done" | "open" | "ok" => Some(Tone::Good),
        "dead" | "exhausted" | "failed" | "closed" | "canary_failed" | "bad" | "grave" | "timeout"
        | "rejected" | "lease_expired" => Some(Tone::Bad),
        "running" | "in_flight" | "retrying" | "probing" | "held" | "warn" | "warning" | "paused" => {
            Some(Tone::Busy)
        }
        "cancelled" | "stopped" | "released" => Some(Tone::Faint),
        _ => None,
    }
}

/// Text in the colour of its tone, where colours are shown.
pub(crate) fn painted(text: &str, tone: Option<Tone>, look: &Look) -> String {
    match tone {
        Some(tone) if look.colours && !text.is_empty() => format!("\x1b[{}m{text}\x1b[0m", tone.code()),
        _ => text.to_owned(),
    }
}

/// Text without anything that would move a cursor, colour a screen or break a line: answers of targets are in it.
pub(crate) fn harmless(text: &str) -> String {
    text.chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect::<String>()
        .trim()
        .to_owned()
}

/// A word of the service as it writes it.
pub(crate) fn word(word: &impl Serialize) -> String {
    serde_json::to_value(word).ok().and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_default()
}

/// One cell of a table.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    text: String,
    tone: Option<Tone>,
    least: usize,
    whole: bool,
}

impl Cell {
    /// Any text.
    pub(crate) fn text(text: impl AsRef<str>) -> Self {
        Self { text: harmless(text.as_ref()), tone: None, least: 0, whole: false }
    }

    /// A text that is of no use in part, such as an id.
    pub(crate) fn whole(text: impl AsRef<str>) -> Self {
        Self { whole: true, ..Self::text(text) }
    }

    /// A text that may be missing.
    pub(crate) fn maybe(text: Option<impl AsRef<str>>) -> Self {
        text.map_or_else(|| Self::text("-"), Self::text)
    }

    /// A state or status, in its colour.
    pub(crate) fn state(name: &str) -> Self {
        Self { tone: tone_of(name), ..Self::text(name) }
    }

    /// A number.
    pub(crate) fn number(number: impl std::fmt::Display) -> Self {
        Self::text(number.to_string())
    }

    /// How far an instant is from now.
    pub(crate) fn age(at: Option<i64>, look: &Look) -> Self {
        Self { least: TIME, ..Self::maybe(at.map(|at| when::age(at, look.now))) }
    }

    /// How long something takes.
    pub(crate) fn span(ms: Option<u64>) -> Self {
        Self { least: TIME, ..Self::maybe(ms.map(when::span)) }
    }

    fn width(&self) -> usize {
        self.text.chars().count().max(self.least)
    }
}

/// A table whose columns are as wide as its first rows need.
pub(crate) struct Table {
    heads: Vec<&'static str>,
    /// Columns to leave out on a narrow terminal, the first one first.
    spare: &'static [&'static str],
    rows: Vec<Vec<Cell>>,
    /// Known once something was shown; none for a column that is left out.
    widths: Option<Vec<Option<usize>>>,
    look: Look,
}

impl Table {
    /// A table with these columns.
    pub(crate) fn new(heads: &[&'static str], spare: &'static [&'static str], look: Look) -> Self {
        Self { heads: heads.to_vec(), spare, rows: Vec::new(), widths: None, look }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.heads.len());
        self.rows.push(cells);
    }

    /// The rows so far, under their heads the first time. Later rows keep the widths, so that a long list needs not be
    /// known before its beginning is shown.
    pub(crate) fn show(&mut self) -> String {
        let first = self.widths.is_none();
        let widths = self.widths.take().unwrap_or_else(|| self.measure());
        let heads: Vec<Cell> = self.heads.iter().map(|head| Cell::text(*head)).collect();
        let above = if first { self.line(&heads, &widths) } else { String::new() };
        let rows = std::mem::take(&mut self.rows);
        let below: String = rows.iter().map(|row| self.line(row, &widths)).collect();
        self.widths = Some(widths);
        above + &below
    }

    /// As wide as it needs to be; on a terminal long texts give way first, then whole columns.
    fn measure(&self) -> Vec<Option<usize>> {
        let mut widths: Vec<Option<usize>> = (0..self.heads.len()).map(|at| Some(self.widest(at))).collect();
        let Some(room) = self.look.width else { return widths };
        for spare in self.spare {
            if total(&self.squeezed(&widths, room)) <= room {
                break;
            }
            if let Some(at) = self.heads.iter().position(|head| head == spare) {
                widths[at] = None;
            }
        }
        self.squeezed(&widths, room)
    }

    fn widest(&self, at: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(at)).map(Cell::width);
        cells.chain([self.heads[at].chars().count()]).max().unwrap_or(0)
    }

    /// The same within `room`, as far as there are texts that may be cut.
    fn squeezed(&self, widths: &[Option<usize>], room: usize) -> Vec<Option<usize>> {
        let mut widths = widths.to_vec();
        let is_whole = |at: usize| self.rows.iter().any(|row| row.get(at).is_some_and(|cell| cell.whole));
        let cuttable: Vec<bool> = (0..widths.len()).map(|at| !is_whole(at)).collect();
        for _ in room..total(&widths) {
            let texts = widths.iter_mut().zip(&cuttable).filter(|(_, cuttable)| **cuttable);
            match texts.filter_map(|(width, _)| width.as_mut()).max_by_key(|width| **width) {
                Some(widest) if *widest > NARROW => *widest -= 1,
                _ => break,
            }
        }
        widths
    }

    fn line(&self, cells: &[Cell], widths: &[Option<usize>]) -> String {
        let mut line = String::new();
        let mut blank = 0;
        for (cell, width) in cells.iter().zip(widths) {
            let Some(width) = *width else { continue };
            let cut_off = self.look.width.is_some() && !cell.whole;
            let text = if cut_off { cut(&cell.text, width) } else { cell.text.clone() };
            if !text.is_empty() {
                line += &" ".repeat(std::mem::take(&mut blank));
                line += &painted(&text, cell.tone, &self.look);
            }
            blank += width.saturating_sub(text.chars().count()) + GAP;
        }
        line + "\n"
    }
}

/// Columns of a line.
fn total(widths: &[Option<usize>]) -> usize {
    let shown = widths.iter().flatten();
    shown.clone().sum::<usize>() + GAP * shown.count().saturating_sub(1)
}

/// The text within so many columns, with a sign where it goes on.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// What is known of one thing, a line for each: a name and a value.
pub(crate) struct Sheet {
    lines: Vec<(&'static str, String, Option<Tone>)>,
    look: Look,
}

impl Sheet {
    /// An empty sheet.
    pub(crate) fn new(look: Look) -> Self {
        Self { lines: Vec::new(), look }
    }

    /// Adds a line.
    pub(crate) fn line(&mut self, name: &'static str, value: impl AsRef<str>) {
        self.lines.push((name, harmless(value.as_ref()), None));
    }

    /// Adds a line where there is something to say.
    pub(crate) fn maybe(&mut self, name: &'static str, value: Option<impl AsRef<str>>) {
        if let Some(value) = value {
            self.line(name, value);
        }
    }

    /// Adds a line with a state, in its colour.
    pub(crate) fn state(&mut self, name: &'static str, state: &str) {
        self.lines.push((name, harmless(state), tone_of(state)));
    }

    /// Adds a line with an instant, where there is one.
    pub(crate) fn instant(&mut self, name: &'static str, at: Option<i64>) {
        self.maybe(name, at.map(|at| when::instant(at, self.look.now)));
    }

    /// All lines.
    pub(crate) fn show(&self) -> String {
        let width = self.lines.iter().map(|(name, ..)| name.chars().count()).max().unwrap_or(0);
        let line = |(name, value, tone): &(&str, String, Option<Tone>)| {
            format!("{name:<width$}  {}\n", painted(value, *tone, &self.look))
        };
        self.lines.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Look = Look { colours: false, width: None, now: 0 };

    fn table(look: Look) -> Table {
        let mut table = Table::new(&["ID", "STATE", "ERROR"], &["STATE"], look);
        table.row(vec![Cell::whole("a"), Cell::state("dead"), Cell::text("connection refused by peer")]);
        table.row(vec![Cell::whole("long-id"), Cell::state("pending"), Cell::maybe(None::<&str>)]);
        table
    }

    #[test]
    fn columns_are_aligned_and_nothing_is_cut_without_a_terminal() {
        let text =
            "ID       STATE    ERROR\na        dead     connection refused by peer\nlong-id  pending  -\n";
        assert_eq!(table(PLAIN).show(), text);
    }

    #[test]
    fn texts_give_way_on_a_narrow_terminal_then_columns_and_ids_never() {
        let at = |width| table(Look { width: Some(width), ..PLAIN }).show();
        let text = at(30);
        assert!(text.contains("dead     connection …\n"), "{text}");
        let narrower = at(29);
        assert_eq!(narrower, "ID       ERROR\na        connection refused …\nlong-id  -\n");
        let tiny = at(5);
        assert!(tiny.contains("long-id  -\n"), "{tiny}");
    }

    #[test]
    fn heads_are_shown_once_and_later_rows_keep_the_widths() {
        let mut table = table(PLAIN);
        table.show();
        table.row(vec![Cell::text("b"), Cell::text(""), Cell::text("x")]);
        assert_eq!(table.show(), "b                 x\n");
    }

    #[test]
    fn colours_do_not_count_as_columns() {
        let text = table(Look { colours: true, ..PLAIN }).show();
        assert!(text.contains("a        \x1b[31mdead\x1b[0m     connection"), "{text:?}");
    }

    #[test]
    fn what_a_target_answers_cannot_move_the_cursor() {
        let mut table = Table::new(&["ERROR"], &[], PLAIN);
        table.row(vec![Cell::text("a\x1b[2J\nb\u{9b}1m\tc")]);
        let text = table.show();
        assert_eq!(text, "ERROR\na [2J b 1m c\n");
        let mut sheet = Sheet::new(PLAIN);
        sheet.line("error", "x\r\ny");
        sheet.instant("created", Some(0));
        assert_eq!(sheet.show(), "error    x  y\ncreated  1970-01-01T00:00:00.000Z (now)\n");
    }
}
