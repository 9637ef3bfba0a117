//! A folder that belongs to one server and is deleted with it.

use std::fs::{File, TryLockError};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::process::account;

/// The file that the owner of a folder keeps locked while it lives.
const ALIVE: &str = "alive";

/// The folder of a server, deleted with this value.
pub(super) struct Folder {
    folder: TempDir,
    _alive: File,
}

impl Folder {
    /// Creates a folder in `parent` for the account that runs servers. First deletes the folders of processes that were
    /// killed.
    pub(super) fn create(kind: &str, parent: &Path) -> Self {
        let prefix = format!("redrive-{kind}-");
        sweep(&prefix, parent);
        let folder = tempfile::Builder::new().prefix(&prefix).tempdir_in(parent);
        let folder = folder.unwrap_or_else(|e| panic!("{}: no folder for a server: {e}", parent.display()));
        if let Some((user, group)) = account() {
            chown(folder.path(), Some(user), Some(group)).expect("root can change the owner of a folder");
        }
        let alive =
            create_lock_file(folder.path()).unwrap_or_else(|e| panic!("{}: {e}", folder.path().display()));
        Self { folder, _alive: alive }
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// The name of the folder, which is unique.
    pub(super) fn name(&self) -> String {
        self.path().file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// Locks the file before it gets its name, so that another process never finds it unlocked.
fn create_lock_file(folder: &Path) -> std::io::Result<File> {
    let unnamed = folder.join("alive.new");
    let alive = File::create(&unnamed)?;
    alive.lock()?;
    std::fs::rename(unnamed, folder.join(ALIVE))?;
    Ok(alive)
}

/// Deletes the folders of processes that were killed or kept a server in a static.
fn sweep(prefix: &str, parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_server_folder = entry.file_name().to_string_lossy().starts_with(prefix);
        if is_server_folder && is_abandoned(&entry.path()) {
            // Another process may delete the folder at the same time.
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
