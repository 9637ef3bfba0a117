//! Reads the pages: the README and every file under `docs/`.

use std::path::{Path, PathBuf};

pub(crate) struct Page {
    /// The path from the root of the repository.
    pub(crate) path: String,
    pub(crate) text: String,
}

pub(crate) fn repository_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The README and all pages of the book, ordered by path.
pub(crate) fn read_pages() -> Vec<Page> {
    let mut paths = vec![repository_root().join("README.md")];
    collect_markdown(&repository_root().join("docs"), &mut paths);
    paths.sort();
    let read = |path: PathBuf| Page {
        path: path.strip_prefix(repository_root()).unwrap().to_str().unwrap().to_owned(),
        text: std::fs::read_to_string(&path).unwrap(),
    };
    paths.into_iter().map(read).collect()
}

fn collect_markdown(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect_markdown(&path, paths);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            paths.push(path);
        }
    }
}
