//! The names that the guide and the doc comments of `redrive` mention in code.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::sources::{root, rust_files};

/// Each page of the guide, the README and each file of `redrive` with the names that it mentions.
pub(crate) fn pages() -> Vec<(String, BTreeSet<String>)> {
    let mut pages: Vec<PathBuf> = std::fs::read_dir(root().join("docs"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    pages.push(root().join("README.md"));
    let mut read: Vec<_> =
        pages.iter().map(|page| (relative_path(page), names_in_code(&text(page)))).collect();
    for file in rust_files(&root().join("crates/redrive/src")) {
        read.push((relative_path(&file), names_in_code(&doc_comments(&text(&file)))));
    }
    read
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

fn relative_path(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// The doc comments of a file, without the lines of examples that readers do not see.
fn doc_comments(text: &str) -> String {
    let lines = text.lines().map(str::trim_start);
    let docs = lines.filter_map(|line| line.strip_prefix("///").or_else(|| line.strip_prefix("//!")));
    docs.filter(|line| !line.trim_start().starts_with("# "))
        .fold(String::new(), |all, line| all + line + "\n")
}

/// Words between backticks that are spelled like a type, or like a constant of several words. A fence is three backticks, so
/// code always follows an odd number of backticks.
fn names_in_code(text: &str) -> BTreeSet<String> {
    let code = text.split('`').skip(1).step_by(2);
    let words = code.flat_map(|code| code.split(|letter: char| !letter.is_alphanumeric() && letter != '_'));
    words.filter(|word| is_name(word)).map(str::to_owned).collect()
}

fn is_name(word: &str) -> bool {
    word.starts_with(char::is_uppercase) && (word.contains('_') || word.contains(char::is_lowercase))
}
