//! The page on failures names tests; each of them is there.

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
