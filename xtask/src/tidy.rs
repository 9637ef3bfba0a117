//! Checks that the code keeps its shape: dependencies point one way, licences are allowed, files say what they are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use cargo_metadata::{DependencyKind, Metadata, Package};

use crate::run::root;

/// Which of our crates each of ours may use. Tests may use more.
const DIRECTIONS: [(&str, &[&str]); 17] = [
    ("redrive-core", &[]),
    ("redrive-macros", &[]),
    ("redrive-simulate", &["redrive-core"]),
    ("redrive-bodies", &["redrive-core"]),
    ("redrive-store-sqlite", &["redrive-core"]),
    ("redrive-store-postgres", &["redrive-core"]),
    ("redrive-store-redis", &["redrive-core"]),
    ("redrive-worker", &["redrive-core"]),
    ("redrive-testkit", &["redrive-core", "redrive-worker"]),
    (
        "redrive",
        &[
            "redrive-bodies",
            "redrive-core",
            "redrive-macros",
            "redrive-worker",
            "redrive-store-sqlite",
            "redrive-store-postgres",
            "redrive-store-redis",
        ],
    ),
    (
        "redrive-bench",
        &[
            "redrive",
            "redrive-core",
            "redrive-worker",
            "redrive-store-sqlite",
            "redrive-store-postgres",
            "redrive-store-redis",
            "redrive-testkit",
            "redrive-delivery",
            "redrive-server",
        ],
    ),
    ("redrive-delivery", &["redrive-bodies", "redrive-core", "redrive-worker"]),
    ("redrive-server", &["redrive-core", "redrive-worker", "redrive", "redrive-delivery"]),
    ("redrive-console", &["redrive-server"]),
    (
        "redrive-cli",
        &[
            "redrive-core",
            "redrive",
            "redrive-bench",
            "redrive-console",
            "redrive-delivery",
            "redrive-server",
            "redrive-simulate",
            "redrive-worker",
        ],
    ),
    ("paste", &["redrive"]),
    ("xtask", &[]),
];

/// Crates that only some of ours may use, so that each kind of knowledge has one home. The benchmark has them too where
/// it holds one of ours against the bare thing: SQLite without the engine, an endpoint without the service.
const RESERVED: [(&str, &[&str]); 6] = [
    ("rusqlite", &["redrive-store-sqlite", "redrive-bench"]),
    ("tokio-postgres", &["redrive-store-postgres", "redrive-bench"]),
    ("redis", &["redrive-store-redis", "redrive-bench"]),
    ("clap", &["redrive-cli", "redrive-bench", "paste", "xtask"]),
    ("axum", &["redrive-server", "redrive-console", "redrive-bench", "paste"]),
    ("object_store", &["redrive-bodies", "paste"]),
];

/// What core must not use at all, not even through others.
const BANNED_FROM_CORE: [&str; 4] = ["tokio", "rand", "fastrand", "getrandom"];

/// Lines of a file without its tests.
const FILE_LINES_MAX: usize = 500;

pub(crate) fn tidy() -> anyhow::Result<()> {
    let metadata = cargo_metadata::MetadataCommand::new().current_dir(root()).exec()?;
    let mut problems = Vec::new();
    directions(&metadata, &mut problems);
    core_is_pure(&metadata, &mut problems)?;
    licences(&metadata, &mut problems)?;
    files(&mut problems)?;
    for problem in &problems {
        eprintln!("tidy: {problem}");
    }
    anyhow::ensure!(problems.is_empty(), "{} things are untidy", problems.len());
    println!("tidy: {} packages, all in order", metadata.packages.len());
    Ok(())
}

fn directions(metadata: &Metadata, problems: &mut Vec<String>) {
    let ours: BTreeSet<&str> =
        metadata.workspace_packages().iter().map(|package| package.name.as_str()).collect();
    let allowed: BTreeMap<&str, &[&str]> = DIRECTIONS.into_iter().collect();
    for package in metadata.workspace_packages() {
        let name = package.name.as_str();
        let Some(allowed) = allowed.get(name) else {
            problems.push(format!("{name} has no line in DIRECTIONS"));
            continue;
        };
        for used in normal_dependencies(package) {
            if ours.contains(used) && !allowed.contains(&used) {
                problems.push(format!("{name} must not use {used}"));
            }
            for (reserved, homes) in RESERVED {
                if used == reserved && !homes.contains(&name) {
                    problems.push(format!("{name} must not use {reserved}, only {} may", homes.join(", ")));
                }
            }
        }
    }
}

fn normal_dependencies(package: &Package) -> impl Iterator<Item = &str> {
    let normal = package.dependencies.iter().filter(|dependency| dependency.kind == DependencyKind::Normal);
    normal.map(|dependency| dependency.name.as_str())
}

fn core_is_pure(metadata: &Metadata, problems: &mut Vec<String>) -> anyhow::Result<()> {
    let nodes = &metadata.resolve.as_ref().context("cargo metadata has no graph")?.nodes;
    let core = metadata.workspace_packages().into_iter().find(|package| package.name == "redrive-core");
    let mut open = vec![core.context("there is no redrive-core")?.id.clone()];
    let mut seen = BTreeSet::new();
    while let Some(id) = open.pop() {
        if !seen.insert(id.clone()) {
            continue;
        }
        let name = metadata[&id].name.as_str();
        if BANNED_FROM_CORE.contains(&name) {
            problems.push(format!("redrive-core must not use {name}, not even through another crate"));
        }
        let Some(node) = nodes.iter().find(|node| node.id == id) else { continue };
        let normal = |dependency: &&cargo_metadata::NodeDep| {
            dependency
                .dep_kinds
                .iter()
                .any(|kind| kind.kind == DependencyKind::Normal && kind.target.is_none())
        };
        open.extend(node.deps.iter().filter(normal).map(|dependency| dependency.pkg.clone()));
    }
    Ok(())
}

/// The licences that deny.toml allows, checked here too so that no tool has to be installed for it.
fn licences(metadata: &Metadata, problems: &mut Vec<String>) -> anyhow::Result<()> {
    #[derive(serde::Deserialize)]
    struct Deny {
        licenses: Licenses,
    }
    #[derive(serde::Deserialize)]
    struct Licenses {
        allow: BTreeSet<String>,
    }
    let text = std::fs::read_to_string(root().join("deny.toml")).context("deny.toml cannot be read")?;
    let Deny { licenses: Licenses { allow } } = toml::from_str(&text)?;
    for package in &metadata.packages {
        let licence = package.license.as_deref().unwrap_or("none");
        if !allowed(licence, &allow) {
            problems.push(format!("{} {} has the licence {licence}", package.name, package.version));
        }
    }
    Ok(())
}

/// Whether an SPDX expression can be met: one side of each OR, both sides of each AND.
fn allowed(expression: &str, allow: &BTreeSet<String>) -> bool {
    let either = expression.split(" OR ").flat_map(|part| part.split('/'));
    let mut either = either.map(|part| part.trim().trim_matches(['(', ')']));
    either.any(|part| part.split(" AND ").all(|one| allow.contains(one.trim().trim_matches(['(', ')']))))
}

fn files(problems: &mut Vec<String>) -> anyhow::Result<()> {
    for folder in ["crates", "bench", "xtask", "apps"] {
        let folder = root().join(folder);
        if folder.is_dir() {
            walk(&folder, &mut |path| check_file(path, problems))?;
        }
    }
    Ok(())
}

fn walk(folder: &Path, visit: &mut dyn FnMut(&Path) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" {
            walk(&path, visit)?;
        } else if path.is_file() {
            visit(&path)?;
        }
    }
    Ok(())
}

fn check_file(path: &Path, problems: &mut Vec<String>) -> anyhow::Result<()> {
    let extension = path.extension().unwrap_or_default().to_string_lossy().into_owned();
    let opening = match extension.as_str() {
        "rs" => "//!",
        "sql" | "lua" => "--",
        _ => return Ok(()),
    };
    let shown = path.strip_prefix(root()).unwrap_or(path).display();
    let text = std::fs::read_to_string(path)?;
    if !text.starts_with(opening) {
        problems.push(format!("{shown} does not open with {opening} and a sentence"));
    }
    let lines = text.split("#[cfg(test)]\nmod tests").next().unwrap_or("").lines().count();
    if lines > FILE_LINES_MAX {
        problems
            .push(format!("{shown} has {lines} lines without its tests, at most {FILE_LINES_MAX} are calm"));
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    if ["utils", "util", "helpers", "helper", "common", "manager", "misc"].contains(&stem.as_str()) {
        problems.push(format!("{shown} is named after nothing: name it by its verb"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_licence_expression_is_met_by_one_side_of_or_and_all_of_and() {
        let allow = BTreeSet::from(["MIT".to_owned(), "Unicode-3.0".to_owned()]);
        for (expression, met) in [
            ("MIT", true),
            ("MIT OR Apache-2.0", true),
            ("Apache-2.0/MIT", true),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("GPL-3.0", false),
            ("GPL-3.0 AND MIT", false),
            ("none", false),
        ] {
            assert_eq!(allowed(expression, &allow), met, "{expression}");
        }
    }
}
