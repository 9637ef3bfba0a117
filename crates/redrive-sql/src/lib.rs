//! SQL files that hold several named statements.
//!
//! A file groups the statements of one concern. Each statement starts with a line `-- name: …`, followed by comment
//! lines that say what the statement guarantees. A part that several statements share is a fragment, which starts with
//! `-- fragment: …`:
//!
//! ```sql
//! -- name: claim_due
//! -- Locks due jobs, earliest first. Skips rows that another claim has locked.
//! SELECT {job_columns} FROM jobs WHERE {is_due} ORDER BY next_run_at FOR UPDATE SKIP LOCKED;
//!
//! -- fragment: is_due
//! -- A job that may be claimed now.
//! state < 2 AND next_run_at <= {now}
//! ```
//!
//! A placeholder in braces stands for a value that the store gives to all its files, or for a fragment of the same
//! file or of one that it shares with others. Values and fragments may contain placeholders themselves. So the column list and the clock expression exist
//! once.
//!
//! The compiler checks names and placeholders: a `static` does not compile if its statement does not exist or has an
//! unknown placeholder.
//!
//! ```
//! use redrive_sql::{SqlFile, Statement};
//!
//! const VALUES: &[(&str, &str)] = &[("job_columns", "id, state, next_run_at")];
//! const READ: SqlFile = SqlFile::new("-- name: get\n-- One job.\nSELECT {job_columns} FROM jobs WHERE id = ?1;\n", VALUES);
//!
//! static GET: Statement = READ.statement("get");
//!
//! assert_eq!(GET.text(), "SELECT id, state, next_run_at FROM jobs WHERE id = ?1");
//! ```

mod parse;

use std::ops::Deref;
use std::sync::OnceLock;

/// A file of named statements, and the values of its placeholders.
#[derive(Debug, Clone, Copy)]
pub struct SqlFile {
    text: &'static str,
    values: &'static [(&'static str, &'static str)],
    shared: &'static str,
}

impl SqlFile {
    /// A file with this text. `values` are pairs of a placeholder's name, without braces, and the text that replaces
    /// it.
    #[must_use]
    pub const fn new(text: &'static str, values: &'static [(&'static str, &'static str)]) -> Self {
        Self { text, values, shared: "" }
    }

    /// The same file, which may also use the fragments of another file with the text `shared`.
    #[must_use]
    pub const fn with_fragments_of(self, shared: &'static str) -> Self {
        Self { shared, ..self }
    }

    /// The statement with this name. Put it into a `static`, so that the checks run at compile time.
    ///
    /// # Panics
    /// If the file has no such statement or has it twice, if no comment says what the statement guarantees, or if a
    /// placeholder is unknown.
    #[must_use]
    pub const fn statement(self, name: &str) -> Statement {
        let template = match parse::section(self.text, parse::STATEMENT, name) {
            Some(template) => template,
            None => panic!("the file has no statement with this name"),
        };
        self.check(template);
        Statement { file: self, template, text: OnceLock::new() }
    }

    /// The names of all statements of the file, in their order. Tests use it to prepare each statement.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.text.lines().filter_map(|line| line.strip_prefix(parse::STATEMENT))
    }

    /// Panics if a placeholder in `template` is unknown.
    const fn check(&self, template: &'static str) {
        let mut rest = template;
        while let Some((_, name, after)) = parse::placeholder(rest) {
            self.check(self.replacement(name));
            rest = after;
        }
    }

    /// The text that replaces a placeholder.
    const fn replacement(&self, name: &str) -> &'static str {
        let mut index = 0;
        while index < self.values.len() {
            let (key, value) = self.values[index];
            if parse::equal(key.as_bytes(), name.as_bytes()) {
                return value;
            }
            index += 1;
        }
        if let Some(fragment) = parse::section(self.text, parse::FRAGMENT, name) {
            return fragment;
        }
        match parse::section(self.shared, parse::FRAGMENT, name) {
            Some(fragment) => fragment,
            None => panic!("a placeholder has no value, and the file has no fragment with its name"),
        }
    }

    fn fill(&self, template: &'static str, text: &mut String) {
        let mut rest = template;
        while let Some((before, name, after)) = parse::placeholder(rest) {
            text.push_str(before);
            self.fill(self.replacement(name), text);
            rest = after;
        }
        text.push_str(rest);
    }
}

/// One statement of a file. Its text is built when it is first used, and stays the same from then on, so that it can be
/// the key of a cache of prepared statements.
#[derive(Debug)]
pub struct Statement {
    file: SqlFile,
    template: &'static str,
    text: OnceLock<String>,
}

impl Statement {
    /// The SQL text, with every placeholder replaced, and without the header and the closing semicolon.
    #[must_use]
    pub fn text(&self) -> &str {
        self.text.get_or_init(|| {
            let mut text = String::with_capacity(self.template.len());
            self.file.fill(self.template, &mut text);
            text
        })
    }
}

impl Deref for Statement {
    type Target = str;

    fn deref(&self) -> &str {
        self.text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: SqlFile = SqlFile::new(
        "-- Reads jobs.\n\n\
         -- name: get\n-- One job.\nSELECT {columns} FROM jobs\nWHERE id = ?1;\n\n\
         -- name: get_due\n-- A job that is due.\n-- Takes no lock.\nSELECT {columns} FROM jobs WHERE {is_due} AND tags <> '{}'\n\n\
         -- fragment: is_due\n-- May be claimed now.\nstate < 2 AND next_run_at <= {now}\n\n\
         -- name: bare\nSELECT 1\n\n\
         -- name: twice\n-- First.\nSELECT 1\n\n-- name: twice\n-- Second.\nSELECT 2\n\n\
         -- name: unfilled\n-- Has a placeholder without a value.\nSELECT {nothing}\n",
        &[("columns", "id, state"), ("now", "clock.now")],
    );

    static GET: Statement = FILE.statement("get");
    static GET_DUE: Statement = FILE.statement("get_due");

    #[test]
    fn a_statement_ends_at_the_next_header_and_has_no_semicolon() {
        assert_eq!(GET.text(), "SELECT id, state FROM jobs\nWHERE id = ?1");
    }

    #[test]
    fn values_and_fragments_replace_placeholders() {
        let expected =
            "SELECT id, state FROM jobs WHERE state < 2 AND next_run_at <= clock.now AND tags <> '{}'";
        assert_eq!(&*GET_DUE, expected);
    }

    #[test]
    fn the_text_is_built_once() {
        assert!(std::ptr::eq(GET.text(), GET.text()));
    }

    #[test]
    fn names_lists_statements_without_fragments() {
        let names: Vec<&str> = FILE.names().collect();
        assert_eq!(names, ["get", "get_due", "bare", "twice", "twice", "unfilled"]);
    }

    #[test]
    #[should_panic(expected = "no statement with this name")]
    fn an_unknown_statement_is_refused() {
        let _ = FILE.statement("put");
    }

    #[test]
    #[should_panic(expected = "no statement with this name")]
    fn a_fragment_is_not_a_statement() {
        let _ = FILE.statement("is_due");
    }

    #[test]
    #[should_panic(expected = "has no comment")]
    fn a_statement_without_a_comment_is_refused() {
        let _ = FILE.statement("bare");
    }

    #[test]
    #[should_panic(expected = "twice")]
    fn a_statement_that_exists_twice_is_refused() {
        let _ = FILE.statement("twice");
    }

    #[test]
    #[should_panic(expected = "a placeholder has no value")]
    fn an_unknown_placeholder_is_refused() {
        let _ = FILE.statement("unfilled");
    }
}
