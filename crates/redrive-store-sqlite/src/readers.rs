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
        let running = RunningRead(self);
        let result = read(&conn);
        let mut connections = self.lock();
        if connections.idle.len() < IDLE_MAX {
            connections.idle.push(conn);
        }
        drop(connections);
        drop(running);
        result
    }

    /// Takes an idle connection, or opens one. If that fails, for example without file descriptors, waits for the connection of another
    /// read.
    fn take(&self) -> Result<Connection> {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            if let Some(conn) = self.lock().take_idle() {
                return Ok(conn);
            }
            let error = match self.open() {
                Ok(conn) => {
                    self.lock().used += 1;
                    return Ok(conn);
                }
                Err(error) => error,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            let is_awaited =
                |connections: &mut ReaderConnections| connections.idle.is_empty() && connections.used > 0;
            let waited = self.returned.wait_timeout_while(self.lock(), left, is_awaited);
            let (connections, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if connections.idle.is_empty() {
                return Err(error);
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
    fn take_idle(&mut self) -> Option<Connection> {
        let conn = self.idle.pop()?;
        self.used += 1;
        Some(conn)
    }
}

/// A read that uses a connection. Dropping it ends the use, also after a panic.
struct RunningRead<'a>(&'a ReaderPool);

impl Drop for RunningRead<'_> {
    fn drop(&mut self) {
        self.0.lock().used -= 1;
        // Reads that wait get a connection, or their error if nobody uses one any more.
        self.0.returned.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use redrive_core::panics::catch;

    use super::*;

    #[test]
    fn a_read_fails_at_once_if_no_connection_can_be_opened_and_none_is_in_use() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("redrive.db");
        Connection::open(&path).and_then(|conn| conn.execute_batch("CREATE TABLE a (b)")).expect("a file");
        let pool = ReaderPool::new(&path);
        let panicked = catch("a read", || pool.with(|_| -> Result<()> { panic!("a test") }));
        assert!(panicked.is_err());
        std::fs::remove_file(&path).expect("removed");
        let started = Instant::now();
        assert!(pool.with(|_| Ok(())).is_err());
        assert!(started.elapsed() < WAIT_MAX, "the read that panicked is over");
    }

    #[test]
    fn a_read_that_can_open_no_connection_gets_that_of_another_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("redrive.db");
        Connection::open(&path).and_then(|conn| conn.execute_batch("CREATE TABLE a (b)")).expect("a file");
        let pool = ReaderPool::new(&path);
        std::thread::scope(|scope| {
            let (started, wait_for_start) = std::sync::mpsc::channel();
            let (end, wait_for_end) = std::sync::mpsc::channel();
            let pool = &pool;
            scope.spawn(move || {
                let read = pool.with(|_| {
                    started.send(()).expect("the test waits");
                    wait_for_end.recv().expect("the test says when");
                    Ok(())
                });
                read.expect("read");
            });
            wait_for_start.recv().expect("the read starts");
            std::fs::remove_file(&path).expect("removed");
            let second = scope.spawn(move || pool.with(|_| Ok(())));
            std::thread::sleep(Duration::from_millis(20));
            end.send(()).expect("the read waits");
            second.join().expect("no panic").expect("it gets the connection of the first read");
        });
    }
}
