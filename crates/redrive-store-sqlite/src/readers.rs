//! Read-only connections, which work in parallel with the writer.

use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags};

use crate::error::Result;

/// How many idle connections stay open. Further ones are opened while more reads run at once, and closed afterwards.
const IDLE_MAX: usize = 4;

/// How long a read waits for the connection of another read, if it cannot open one.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// A pool of read-only connections to one file.
#[derive(Debug)]
pub(crate) struct ReaderPool {
    path: PathBuf,
    connections: Mutex<ReaderConnections>,
    returned: Condvar,
}

#[derive(Debug, Default)]
struct ReaderConnections {
    idle: Vec<Connection>,
    /// Connections in use.
    used: usize,
}

impl ReaderPool {
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), connections: Mutex::default(), returned: Condvar::new() }
    }

    /// Runs a read on a connection that no other read uses meanwhile.
    pub(crate) fn with<T>(&self, read: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        let conn = self.take()?;
        let result = read(&conn);
        let mut connections = self.lock();
        connections.used -= 1;
        if connections.idle.len() < IDLE_MAX {
            connections.idle.push(conn);
        }
        self.returned.notify_one();
        result
    }

    /// Takes an idle connection, or opens one. If that fails, for example without file descriptors, waits for the connection of another
    /// read.
    fn take(&self) -> Result<Connection> {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            let idle = self.lock().take_idle();
            let error = match idle.map_or_else(|| self.open(), Ok) {
                Ok(conn) => return Ok(conn),
                Err(error) => error,
            };
            let mut connections = self.lock();
            connections.used -= 1;
            let left = deadline.saturating_duration_since(Instant::now());
            if connections.idle.is_empty() && (connections.used == 0 || left.is_zero()) {
                return Err(error);
            }
            if connections.idle.is_empty() {
                drop(self.returned.wait_timeout(connections, left));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, ReaderConnections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = Connection::open_with_flags(&self.path, flags)?;
        conn.pragma_update(None, "cache_size", -4096)?;
        conn.busy_timeout(Duration::from_secs(5))?;
        Ok(conn)
    }
}

impl ReaderConnections {
    /// Takes an idle connection, if there is one. Counts it, or the one that the caller opens, as used.
    fn take_idle(&mut self) -> Option<Connection> {
        self.used += 1;
        self.idle.pop()
    }
}
