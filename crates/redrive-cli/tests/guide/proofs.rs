//! What pages claim is backed: tests that are named as proofs exist, figures are those of the README.

use std::path::Path;

use crate::pages::{pages, root};

/// Names in code marks that look like a test: three words or more.
fn named(text: &str) -> Vec<&str> {
    let inside = text.split('`').skip(1).step_by(2);
    let is_name = |word: &&str| {
        word.matches('_').count() >= 1
            && word.chars().all(|c| c.is_ascii_lowercase() || c == '_' || c.is_ascii_digit())
    };
    inside.filter(is_name).collect()
}

fn sources(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn every_test_that_is_named_as_a_proof_exists() {
    let page = pages().into_iter().find(|page| page.path == "docs/failures.md").unwrap();
    let mut code = String::new();
    sources(&root().join("crates"), &mut code);
    let missing = |name: &&str| {
        !code.contains(&format!("fn {name}("))
            && !code.contains(&format!("(\"{name}\","))
            && !code.contains(&format!("\"{name}\",\n"))
    };
    let proofs = named(&page.text);
    assert!(proofs.len() > 30, "{proofs:?}");
    let missing: Vec<&str> = proofs.into_iter().filter(missing).collect();
    assert!(missing.is_empty(), "no test has these names: {missing:?}");
}

/// Thousands in tables: figures that were measured.
fn figures(text: &str) -> Vec<&str> {
    let rows = text.lines().filter(|line| line.starts_with('|'));
    let words = rows.flat_map(|row| row.split(|c: char| !(c.is_ascii_digit() || c == ',')));
    let words = words.map(|word| word.trim_matches(','));
    words.filter(|word| word.split_once(',').is_some_and(|(_, rest)| rest.len() >= 3)).collect()
}

#[test]
fn figures_in_the_guide_are_those_that_were_measured() {
    let all = pages();
    let of = |path: &str| all.iter().find(|page| page.path == path).unwrap();
    let measured = figures(&of("README.md").text);
    for path in ["docs/stores.md", "docs/production.md"] {
        let claimed = figures(&of(path).text);
        assert!(claimed.len() >= 3, "{path}: {claimed:?}");
        for figure in claimed {
            assert!(measured.contains(&figure), "{path} says {figure}, which the README did not measure");
        }
    }
}
