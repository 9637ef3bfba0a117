//! Connections that only read, beside the writer.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use redrive_core::StoreError;
use rusqlite::{Connection, OpenFlags};

use crate::error::Sorted;

/// Read connections kept open; more are opened while more reads run at once, and closed after.
const KEPT: usize = 4;

/// A pool of read-only connections to one file.
#[derive(Debug)]
pub(crate) struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
}

impl Readers {
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), idle: Mutex::default() }
    }

    /// Runs a read on a connection of its own.
    pub(crate) fn with<T>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let conn = match kept {
            Some(conn) => conn,
            None => self.open()?,
        };
        let result = read(&conn);
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < KEPT {
            idle.push(conn);
        }
        result
    }

    fn open(&self) -> Result<Connection, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = Connection::open_with_flags(&self.path, flags).sorted()?;
        conn.pragma_update(None, "cache_size", -4096).sorted()?;
        conn.busy_timeout(std::time::Duration::from_secs(5)).sorted()?;
        Ok(conn)
    }
}
