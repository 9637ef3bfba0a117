//! Checks claims of the pages: the tests that they name exist, and their figures are in the README.

use std::path::Path;

use super::pages::{read_pages, repository_root};

/// Words in backticks that are spelled like the name of a test.
fn test_names(text: &str) -> Vec<&str> {
    let in_backticks = text.split('`').skip(1).step_by(2);
    let is_name = |word: &&str| {
        word.matches('_').count() >= 1
            && word.chars().all(|c| c.is_ascii_lowercase() || c == '_' || c.is_ascii_digit())
    };
    // Reasons of dead letters are spelled like test names.
    let reasons = ["budget_exceeded", "body_lost", "not_retryable"];
    in_backticks.filter(is_name).filter(|word| !reasons.contains(word)).collect()
}

fn read_sources(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn every_test_named_as_a_proof_exists() {
    let page = read_pages().into_iter().find(|page| page.path == "docs/failures.md").unwrap();
    let mut code = String::new();
    read_sources(&repository_root().join("crates"), &mut code);
    let is_missing = |name: &&str| {
        !code.contains(&format!("fn {name}("))
            && !code.contains(&format!("(\"{name}\","))
            && !code.contains(&format!("\"{name}\",\n"))
    };
    let names = test_names(&page.text);
    assert!(names.len() > 30, "{names:?}");
    let missing: Vec<&str> = names.into_iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "docs/failures.md names tests that do not exist: {missing:?}");
}

/// The numbers above 999 in tables: they are measured figures.
fn figures(text: &str) -> Vec<&str> {
    let rows = text.lines().filter(|line| line.starts_with('|'));
    let words = rows.flat_map(|row| row.split(|c: char| !(c.is_ascii_digit() || c == ',')));
    let words = words.map(|word| word.trim_matches(','));
    words.filter(|word| word.split_once(',').is_some_and(|(_, rest)| rest.len() >= 3)).collect()
}

#[test]
fn every_figure_of_the_guide_is_in_the_readme() {
    let pages = read_pages();
    let find = |path: &str| pages.iter().find(|page| page.path == path).unwrap();
    let measured = figures(&find("README.md").text);
    for path in ["docs/stores.md", "docs/production.md"] {
        let claimed = figures(&find(path).text);
        assert!(claimed.len() >= 3, "{path}: {claimed:?}");
        for figure in claimed {
            assert!(measured.contains(&figure), "{path} states {figure}, which is not in the README");
        }
    }
}
