//! Checks the directions of dependencies, the licences, the beginning and length of files, and the wording.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use cargo_metadata::{DependencyKind, Metadata, Package};

use crate::prose;
use crate::run::root;

/// The crates of this workspace that each crate may use. Tests may use more.
const DIRECTIONS: [(&str, &[&str]); 19] = [
    ("redrive-core", &[]),
    ("redrive-macros", &[]),
    ("redrive-sql", &[]),
    ("redrive-simulate", &["redrive-core"]),
    ("redrive-bodies", &["redrive-core"]),
    ("redrive-store-sqlite", &["redrive-core", "redrive-sql"]),
    ("redrive-store-postgres", &["redrive-core", "redrive-sql"]),
    ("redrive-store-redis", &["redrive-core", "redrive-sql"]),
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
            "redrive-wire",
        ],
    ),
    ("redrive-delivery", &["redrive-bodies", "redrive-core", "redrive-worker"]),
    ("redrive-wire", &["redrive-core"]),
    ("redrive-server", &["redrive-core", "redrive-worker", "redrive", "redrive-delivery", "redrive-wire"]),
    ("redrive-console", &["redrive-core", "redrive-wire"]),
    (
        "redrive-cli",
        &[
            "redrive-core",
            "redrive",
            "redrive-console",
            "redrive-delivery",
            "redrive-server",
            "redrive-simulate",
            "redrive-wire",
            "redrive-worker",
        ],
    ),
    ("paste", &["redrive", "redrive-sql"]),
    ("xtask", &[]),
];

/// External crates that only some crates may use, for example SQL clients only in stores. The benchmark uses them for its raw
/// probes: SQLite without the engine, an endpoint without the service.
const RESERVED: [(&str, &[&str]); 6] = [
    ("rusqlite", &["redrive-store-sqlite", "redrive-bench"]),
    ("tokio-postgres", &["redrive-store-postgres", "redrive-bench"]),
    ("redis", &["redrive-store-redis", "redrive-bench"]),
    ("clap", &["redrive-cli", "redrive-bench", "paste", "xtask"]),
    ("axum", &["redrive-server", "redrive-console", "redrive-bench", "paste"]),
    ("object_store", &["redrive-bodies", "paste"]),
];

/// Crates that core must not use, directly or indirectly.
const BANNED_FROM_CORE: [&str; 4] = ["tokio", "rand", "fastrand", "getrandom"];

/// The most lines of a file, without its tests.
const FILE_LINES_MAX: usize = 500;

pub(crate) fn tidy() -> anyhow::Result<()> {
    let metadata = cargo_metadata::MetadataCommand::new().current_dir(root()).exec()?;
    let mut problems = Vec::new();
    check_directions(&metadata, &mut problems);
    check_core(&metadata, &mut problems)?;
    check_licences(&metadata, &mut problems)?;
    check_files(&mut problems)?;
    prose::check(&mut problems)?;
    for problem in &problems {
        eprintln!("tidy: {problem}");
    }
    anyhow::ensure!(problems.is_empty(), "tidy found {} problems", problems.len());
    println!("tidy: {} packages, no problems", metadata.packages.len());
    Ok(())
}

fn check_directions(metadata: &Metadata, problems: &mut Vec<String>) {
    let workspace: BTreeSet<&str> =
        metadata.workspace_packages().iter().map(|package| package.name.as_str()).collect();
    let allowed: BTreeMap<&str, &[&str]> = DIRECTIONS.into_iter().collect();
    for package in metadata.workspace_packages() {
        let name = package.name.as_str();
        let Some(allowed) = allowed.get(name) else {
            problems.push(format!("{name} is missing in DIRECTIONS: add it with the crates that it may use"));
            continue;
        };
        for used in normal_dependencies(package) {
            if workspace.contains(used) && !allowed.contains(&used) {
                problems.push(format!("{name} must not use {used}"));
            }
            for (reserved, users) in RESERVED {
                if used == reserved && !users.contains(&name) {
                    problems.push(format!("{name} must not use {reserved}, only {} may", users.join(", ")));
                }
            }
        }
    }
}

fn normal_dependencies(package: &Package) -> impl Iterator<Item = &str> {
    let normal = package.dependencies.iter().filter(|dependency| dependency.kind == DependencyKind::Normal);
    normal.map(|dependency| dependency.name.as_str())
}

fn check_core(metadata: &Metadata, problems: &mut Vec<String>) -> anyhow::Result<()> {
    let nodes = &metadata.resolve.as_ref().context("cargo metadata returned no dependency graph")?.nodes;
    let core = metadata.workspace_packages().into_iter().find(|package| package.name == "redrive-core");
    let mut pending = vec![core.context("the workspace has no redrive-core")?.id.clone()];
    let mut seen = BTreeSet::new();
    while let Some(id) = pending.pop() {
        if !seen.insert(id.clone()) {
            continue;
        }
        let name = metadata[&id].name.as_str();
        if BANNED_FROM_CORE.contains(&name) {
            problems.push(format!("redrive-core must not use {name}, directly or indirectly"));
        }
        let Some(node) = nodes.iter().find(|node| node.id == id) else { continue };
        let normal = |dependency: &&cargo_metadata::NodeDep| {
            dependency
                .dep_kinds
                .iter()
                .any(|kind| kind.kind == DependencyKind::Normal && kind.target.is_none())
        };
        pending.extend(node.deps.iter().filter(normal).map(|dependency| dependency.pkg.clone()));
    }
    Ok(())
}

/// Checks each licence against the list in deny.toml.
fn check_licences(metadata: &Metadata, problems: &mut Vec<String>) -> anyhow::Result<()> {
    #[derive(serde::Deserialize)]
    struct Deny {
        licenses: AllowedLicences,
    }
    #[derive(serde::Deserialize)]
    struct AllowedLicences {
        allow: Vec<String>,
    }
    let text = std::fs::read_to_string(root().join("deny.toml")).context("cannot read deny.toml")?;
    let deny: Deny = toml::from_str(&text)?;
    for package in &metadata.packages {
        let licence = package.license.as_deref().unwrap_or("none");
        if !is_allowed(licence, &deny.licenses.allow) {
            problems.push(format!("{} {} has the licence {licence}", package.name, package.version));
        }
    }
    Ok(())
}

/// Whether the allowed licences satisfy an SPDX expression.
fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    // Older packages write "MIT/Apache-2.0".
    let Ok(expression) = spdx::Expression::parse_mode(expression, spdx::ParseMode::LAX) else { return false };
    expression.evaluate(|requirement| allowed.contains(&requirement.to_string()))
}

fn check_files(problems: &mut Vec<String>) -> anyhow::Result<()> {
    for folder in ["crates", "bench", "xtask", "apps"] {
        let folder = root().join(folder);
        if folder.is_dir() {
            walk(&folder, &mut |path| check_file(path, problems))?;
        }
    }
    Ok(())
}

pub(crate) fn walk(folder: &Path, visit: &mut dyn FnMut(&Path) -> anyhow::Result<()>) -> anyhow::Result<()> {
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
        problems.push(format!("{shown} must start with {opening} and a sentence about its content"));
    }
    let lines = text.split("#[cfg(test)]\nmod tests").next().unwrap_or("").lines().count();
    if lines > FILE_LINES_MAX {
        problems.push(format!(
            "{shown} has {lines} lines without its tests, more than {FILE_LINES_MAX}: split it by concern"
        ));
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    if ["utils", "util", "helpers", "helper", "common", "manager", "misc"].contains(&stem.as_str()) {
        problems.push(format!("{shown}: name the file by what it does"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_side_of_or_and_both_sides_of_and_must_be_allowed() {
        let allow = ["MIT", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned);
        for (expression, expected) in [
            ("MIT", true),
            ("MIT OR Apache-2.0", true),
            ("Apache-2.0/MIT", true),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("GPL-3.0-only", false),
            ("GPL-3.0-only AND MIT", false),
            ("none", false),
        ] {
            assert_eq!(is_allowed(expression, &allow), expected, "{expression}");
        }
    }
}
