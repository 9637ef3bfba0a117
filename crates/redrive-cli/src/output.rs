//! Everything that the command prints: text, tables, lists and progress.

pub(crate) mod list;
pub(crate) mod progress;
pub(crate) mod screen;
pub(crate) mod table;
pub(crate) mod time;

use std::io::{self, IsTerminal as _, Write as _};

use serde::Serialize;
use serde_json::value::RawValue;

/// How an answer is printed to standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutputStyle {
    /// Whether states are coloured.
    pub(crate) colours: bool,
    /// The width of the terminal in columns. `None` if there is no terminal; then nothing is cut off.
    pub(crate) width: Option<usize>,
    /// The current time of the service in epoch ms. Ages are relative to it.
    pub(crate) now: i64,
}

impl OutputStyle {
    /// Uses colours and a width only on a terminal, and no colours if `NO_COLOR` is set.
    pub(crate) fn of_stdout(now: i64) -> Self {
        let terminal = io::stdout().is_terminal();
        let width = terminal.then(|| screen::size().0);
        Self { colours: terminal && colours_wanted(), width, now }
    }
}

/// Follows <https://no-color.org>: any value except the empty one switches colours off.
fn colours_wanted() -> bool {
    let off = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    !off && !dumb
}

/// Prints text unchanged.
pub(crate) fn text(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Prints a line.
pub(crate) fn line(line: &str) -> io::Result<()> {
    text(&format!("{line}\n"))
}

/// Prints a JSON document on one line.
pub(crate) fn json(document: &impl Serialize) -> anyhow::Result<()> {
    Ok(line(&serde_json::to_string(document)?)?)
}

/// Prints JSON documents of the service, one per line.
pub(crate) fn documents(documents: &[Box<RawValue>]) -> io::Result<()> {
    let lines = documents.iter().map(|document| one_line(document.get()));
    text(&lines.collect::<String>())
}

/// Puts a JSON document on one line. A line break in JSON is never part of a string, so a space can replace it.
pub(crate) fn one_line(json: &str) -> String {
    json.trim().replace(['\n', '\r'], " ") + "\n"
}

/// The name of an enum value in the API.
pub(crate) fn enum_name(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Prints a remark to standard error.
pub(crate) fn note(note: &str) {
    // A closed standard error must not fail the command.
    let _ = writeln!(io::stderr(), "{note}");
}
