//! Opening and closing a store: the lock, the settings of its connections, its writer.

use std::fmt;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redrive_core::store::Wake;
use redrive_core::{Clock, StoreError, Timestamp};
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use tokio::sync::watch;

use crate::SqliteStore;
use crate::checkpoint::Checkpointer;
use crate::error::{Sorted, closed};
use crate::lanes::SharedLanes;
use crate::leases::Leases;
use crate::migrate::{SCHEMA, migrate};
use crate::quotas::Quotas;
use crate::readers::Readers;
use crate::records::Paused;
use crate::writer::{Operation, Tx, Writer, submit};

/// How a store is opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// Tells the time; the system's by default.
    pub clock: Arc<dyn Clock>,
    /// The size that the database may reach by enqueues, beyond which they are refused; none but the disk's by default.
    pub db_bytes_max: Option<u64>,
    /// Memory for the writer's page cache, 32 MiB by default.
    pub cache_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { clock: Arc::new(SystemClock), db_bytes_max: None, cache_bytes: 32 * 1024 * 1024 }
    }
}

impl Options {
    /// Tells the time by `clock`.
    pub fn with_clock(self, clock: impl Clock + 'static) -> Self {
        Self { clock: Arc::new(clock), ..self }
    }

    /// Refuses enqueues that would make the database larger than `bytes`.
    pub fn with_db_bytes_max(self, bytes: u64) -> Self {
        Self { db_bytes_max: Some(bytes), ..self }
    }
}

/// The clock of this process.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_ms(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }
}

impl SqliteStore {
    /// Opens or creates a file. A file that another process has open is refused.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self, StoreError> {
        let path = path.as_ref();
        let lock = lock(path)?;
        let conn = Connection::open(path).sorted()?;
        Self::start(conn, Some(path), Some(lock), options)
    }

    /// Makes or updates the tables of a file, which opening it does too, and says which schema they are at.
    pub fn migrate(path: impl AsRef<Path>) -> Result<u32, StoreError> {
        Self::open(path, Options::default())?;
        // A newer one was refused.
        Ok(SCHEMA)
    }

    /// Opens a store that lives in memory and is gone with its last clone.
    pub fn open_in_memory() -> Result<Self, StoreError> {
        Self::open_in_memory_with(Options::default())
    }

    /// Opens a store in memory with options.
    pub fn open_in_memory_with(options: Options) -> Result<Self, StoreError> {
        Self::start(Connection::open_in_memory().sorted()?, None, None, options)
    }

    fn start(
        mut conn: Connection,
        path: Option<&Path>,
        lock: Option<File>,
        options: Options,
    ) -> Result<Self, StoreError> {
        prepare(&conn, &options)?;
        migrate(&conn)?;
        let checkpointer = path.map(|path| Checkpointer::new(path, &mut conn)).transpose()?;
        let lanes = SharedLanes::default();
        lanes.reload(&conn)?;
        let mut paused = Paused::default();
        paused.reload(&conn)?;
        let mut quotas = Quotas::default();
        quotas.reload(&conn)?;
        let (wakes, seen) = watch::channel(0);
        let (cancels, cancels_seen) = watch::channel(0);
        let (sender, arrivals) = mpsc::channel();
        let clock = options.clock;
        let writer = Writer {
            conn,
            clock: clock.clone(),
            db_bytes_max: options.db_bytes_max,
            lanes: lanes.clone(),
            leases: Leases::default(),
            paused,
            quotas,
            wakes,
            cancels,
            checkpointer,
        };
        let thread = std::thread::Builder::new()
            .name("redrive-writer".to_owned())
            .spawn(move || {
                writer.serve(&arrivals);
                drop(lock); // only now may another process open the file
            })
            .map_err(|error| StoreError::Unavailable(Box::new(error)))?;
        let inner = Inner {
            sender: Some(sender),
            thread: Mutex::new(Some(thread)),
            readers: path.map(Readers::new),
            lanes,
            seen,
            cancels: cancels_seen,
            clock,
        };
        Ok(Self { inner: Arc::new(inner) })
    }
}

/// What the clones of a store share.
pub(crate) struct Inner {
    sender: Option<Sender<Box<dyn Operation>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    readers: Option<Readers>,
    lanes: SharedLanes,
    seen: watch::Receiver<u64>,
    cancels: watch::Receiver<u64>,
    clock: Arc<dyn Clock>,
}

impl Inner {
    /// Runs `run` on the writer; the answer comes after the commit.
    pub(crate) async fn write<T, F>(&self, run: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&mut Tx<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        submit(self.sender.as_ref().ok_or_else(closed)?, run).await
    }

    /// Runs `read` beside the writer; in memory there is only one connection, so there it takes its turn.
    pub(crate) async fn read<T, F>(self: &Arc<Self>, mut read: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&Connection, &SharedLanes) -> Result<T, StoreError> + Send + 'static,
    {
        if self.readers.is_none() {
            return self.write(move |tx| read(tx.conn, tx.lanes)).await;
        }
        let inner = self.clone();
        let task = tokio::task::spawn_blocking(move || {
            let readers = inner.readers.as_ref().ok_or_else(closed)?;
            readers.with(|conn| read(conn, &inner.lanes))
        });
        task.await.unwrap_or_else(|error| Err(StoreError::Failed(Box::new(error))))
    }

    /// Returns once wake-ups have gone beyond `seen`.
    pub(crate) async fn wait(&self, seen: Wake) {
        // The writer holds the sender for as long as this store lives.
        let _ = self.seen.clone().wait_for(|wakes| *wakes != seen.0).await;
    }

    /// Returns how often the end of a running job was requested, once that differs from `seen`.
    pub(crate) async fn wait_for_cancel(&self, seen: Wake) -> Wake {
        let mut cancels = self.cancels.clone();
        let requests = cancels.wait_for(|requests| *requests != seen.0).await.map(|requests| *requests);
        match requests {
            Ok(requests) => Wake(requests),
            // The writer is gone, and with it everyone who could request anything.
            Err(_) => std::future::pending().await,
        }
    }

    /// The store's time.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

impl Drop for Inner {
    /// Waits until the writer has closed the file, so that it can be opened again at once.
    fn drop(&mut self) {
        self.sender = None;
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("readers", &self.readers).finish_non_exhaustive()
    }
}

/// One process at a time: the single writer is what makes its caches true.
fn lock(path: &Path) -> Result<File, StoreError> {
    let mut name = path.as_os_str().to_owned();
    name.push("-lock");
    let name = PathBuf::from(name);
    let refused = |error: std::io::Error| {
        StoreError::Refused(format!(
            "{} cannot be created ({error}); choose a folder that exists and can be written",
            name.display()
        ))
    };
    let file = File::options().create(true).truncate(false).write(true).open(&name).map_err(refused)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::Refused(format!(
            "{} is open in another process; stop that one, or give this one a file of its own",
            path.display()
        ))),
        Err(TryLockError::Error(error)) => Err(refused(error)),
    }
}

fn prepare(conn: &Connection, options: &Options) -> Result<(), StoreError> {
    conn.busy_timeout(Duration::from_secs(5)).sorted()?;
    conn.set_prepared_statement_cache_capacity(64);
    let set = |name: &str, value: i64| conn.pragma_update(None, name, value).sorted();
    // Takes effect in a new file only. Larger pages halve the work of keeping rows in order in a long queue.
    set("page_size", 8192)?;
    conn.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(())).sorted()?;
    conn.pragma_update(None, "synchronous", "FULL").sorted()?;
    conn.pragma_update(None, "temp_store", "MEMORY").sorted()?;
    set("cache_size", -i64::try_from(options.cache_bytes / 1024).unwrap_or(i64::MAX))?;
    set("wal_autocheckpoint", 0)?;
    // Plans do not depend on bound values; without this, each new LIMIT has its statement parsed again.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).sorted()?;
    Ok(())
}
