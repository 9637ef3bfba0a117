//! What goes to standard output and standard error, and what the reader there can see.

use std::io::{self, IsTerminal as _, Write as _};

use serde::Serialize;
use serde_json::value::RawValue;

/// For whom an answer is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    /// Whether states are coloured.
    pub(crate) colours: bool,
    /// Columns of the terminal; none where there is no terminal, and nothing is cut off.
    pub(crate) width: Option<usize>,
    /// The service's time, in epoch ms, from which ages are counted.
    pub(crate) now: i64,
}

impl Look {
    /// Colours and widths only for a terminal, and no colours where `NO_COLOR` is set.
    pub(crate) fn of_stdout(now: i64) -> Self {
        let terminal = io::stdout().is_terminal();
        Self { colours: terminal && colours_wanted(), width: terminal.then(columns).flatten(), now }
    }
}

/// See <https://no-color.org>: any text switches them off, the empty one does not.
fn colours_wanted() -> bool {
    let off = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    !off && !dumb
}

fn columns() -> Option<usize> {
    terminal_size::terminal_size().map(|(width, _)| usize::from(width.0))
}

/// Prints text as it is.
pub(crate) fn text(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Prints a line.
pub(crate) fn line(line: &str) -> io::Result<()> {
    text(&format!("{line}\n"))
}

/// Prints a document on a line of its own.
pub(crate) fn json(document: &impl Serialize) -> anyhow::Result<()> {
    Ok(line(&serde_json::to_string(document)?)?)
}

/// Prints documents as the service wrote them, each on a line of its own.
pub(crate) fn documents(documents: &[Box<RawValue>]) -> io::Result<()> {
    let lines = documents.iter().map(|document| one_line(document.get()));
    text(&lines.collect::<String>())
}

/// A line break in JSON is never part of a text, so it can be a space.
pub(crate) fn one_line(json: &str) -> String {
    json.trim().replace(['\n', '\r'], " ") + "\n"
}

/// Says something beside the answer, on standard error.
pub(crate) fn note(note: &str) {
    // Whoever does not read it does not miss it.
    let _ = writeln!(io::stderr(), "{note}");
}
