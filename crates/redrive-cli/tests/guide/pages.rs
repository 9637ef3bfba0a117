//! The pages: the README and everything under `docs/`, as their authors wrote them.

use std::path::{Path, PathBuf};

/// One page.
pub(crate) struct Page {
    /// Its path from the root of the repository.
    pub(crate) path: String,
    pub(crate) text: String,
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The README and all pages of the book, in the order of their paths.
pub(crate) fn pages() -> Vec<Page> {
    let mut paths = vec![root().join("README.md")];
    collect(&root().join("docs"), &mut paths);
    paths.sort();
    let page = |path: PathBuf| Page {
        path: path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned(),
        text: std::fs::read_to_string(&path).unwrap(),
    };
    paths.into_iter().map(page).collect()
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, paths);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            paths.push(path);
        }
    }
}
