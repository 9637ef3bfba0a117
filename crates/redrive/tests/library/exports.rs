//! Checks that every type in public signatures, in the guide and in doc comments can be imported from `redrive`.
//!
//! The test parses the sources of our crates. It starts with the exports of `redrive`, follows the public fields, variants and
//! signatures of each item, and fails if it finds a type of these crates that is not exported.

mod prose;
mod sources;

use std::collections::{BTreeMap, BTreeSet};

use sources::{Name, Sources};

/// Types in public signatures that users never need to name.
const UNNAMED: [(&str, &str, &str); 1] =
    [("redrive_worker", "Context", "redrive::Context derefs to it, and would have to share its name")];

fn is_unnamed(name: &Name) -> bool {
    UNNAMED.iter().any(|(krate, item, _)| (*krate, *item) == (name.krate.as_str(), name.item.as_str()))
}

#[test]
fn every_type_in_a_public_signature_can_be_imported() {
    let sources = Sources::read();
    let exported = sources.exports();
    assert!(exported.len() > 100, "only {} exports were found", exported.len());
    let mut missing = BTreeMap::new();
    let mut seen = exported.clone();
    let mut open: Vec<Name> = exported.iter().cloned().collect();
    while let Some(name) = open.pop() {
        for used in sources.used_by(&name) {
            if !exported.contains(&used) && !is_unnamed(&used) {
                missing.entry(used.clone()).or_insert_with(BTreeSet::new).insert(name.item.clone());
            }
            if seen.insert(used.clone()) {
                open.push(used);
            }
        }
    }
    let missing: Vec<String> =
        missing.iter().map(|(name, users)| format!("{}::{} in {users:?}", name.krate, name.item)).collect();
    assert!(missing.is_empty(), "`redrive` does not export:\n{}", missing.join("\n"));
}

#[test]
fn every_type_that_the_docs_mention_can_be_imported() {
    let sources = Sources::read();
    let exported: BTreeSet<String> = sources.exports().into_iter().map(|name| name.item).collect();
    let library_names = sources.library_names();
    let mut missing = BTreeSet::new();
    let mut mentions = 0;
    for (page, names) in prose::pages() {
        for name in names.iter().filter(|name| library_names.contains(*name)) {
            mentions += 1;
            if !exported.contains(name) && !sources.exported_as(name) {
                missing.insert(format!("{name} in {page}"));
            }
        }
    }
    assert!(mentions > 100, "only {mentions} types were found in the docs");
    let missing: Vec<String> = missing.into_iter().collect();
    assert!(missing.is_empty(), "`redrive` does not export:\n{}", missing.join("\n"));
}
