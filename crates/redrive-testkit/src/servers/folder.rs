//! A folder that belongs to one server and goes with it.

use std::fs::{File, TryLockError};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::process::account;

/// The file that the owner of a folder holds locked for as long as it lives.
const ALIVE: &str = "alive";

/// A folder of a server, removed with this value.
pub(super) struct Folder {
    folder: TempDir,
    _alive: File,
}

impl Folder {
    /// A new one in `parent`, for the account that runs servers; those of processes that were killed are removed first.
    pub(super) fn create(kind: &str, parent: &Path) -> Self {
        let prefix = format!("redrive-{kind}-");
        sweep(&prefix, parent);
        let folder = tempfile::Builder::new().prefix(&prefix).tempdir_in(parent);
        let folder = folder.unwrap_or_else(|e| panic!("{}: no folder for a server: {e}", parent.display()));
        if let Some((user, group)) = account() {
            chown(folder.path(), Some(user), Some(group)).expect("root gives a folder away");
        }
        let alive = hold(folder.path()).unwrap_or_else(|e| panic!("{}: {e}", folder.path().display()));
        Self { folder, _alive: alive }
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Its name, which no other folder has.
    pub(super) fn name(&self) -> String {
        self.path().file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// Locked before it has its name, so that whoever sweeps never finds it unlocked.
fn hold(folder: &Path) -> std::io::Result<File> {
    let unnamed = folder.join("alive.new");
    let alive = File::create(&unnamed)?;
    alive.lock()?;
    std::fs::rename(unnamed, folder.join(ALIVE))?;
    Ok(alive)
}

/// Removes what processes left that could not: they were killed, or held a server in a static.
fn sweep(prefix: &str, parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(prefix);
        if ours && is_abandoned(&entry.path()) {
            // Another process may be at it too.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

fn is_abandoned(folder: &Path) -> bool {
    let Ok(alive) = File::open(folder.join(ALIVE)) else { return false };
    match alive.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock | TryLockError::Error(_)) => false,
    }
}
