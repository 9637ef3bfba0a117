//! Opens and closes a store: its options, the lock, the settings of the connection, the writer.

use std::fmt;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redrive_core::store::{ClaimedJobs, WakeToken};
use redrive_core::{Clock, StoreError, Timestamp};
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use tokio::sync::watch;

use crate::SqliteStore;
use crate::checkpoint::Checkpointer;
use crate::error::{Result, closed};
use crate::lanes::SharedLanes;
use crate::lifecycle::claim::{Claim, ClaimedRow, add_jobs, read_rows};
use crate::lifecycle::leased_rows::LeasedRows;
use crate::limits::CachedLimits;
use crate::readers::ReaderPool;
use crate::records::PausedQueues;
use crate::schema::{SCHEMA, migrate};
use crate::writer::{Tx, WriteCall, Writer, submit};

/// The options of a store.
#[derive(Debug, Clone)]
pub struct Options {
    /// The clock of the store; the system's by default.
    pub clock: Arc<dyn Clock>,
    /// The maximum size of the database, in bytes. An enqueue that would exceed it fails; other writes are accepted.
    /// `None`, the default, means no limit.
    pub db_bytes_max: Option<u64>,
    /// The size of the writer's page cache, in bytes; 32 MiB by default.
    pub cache_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { clock: Arc::new(SystemClock), db_bytes_max: None, cache_bytes: 32 * 1024 * 1024 }
    }
}

impl Options {
    /// Uses `clock` instead of the system's clock.
    pub fn with_clock(self, clock: impl Clock + 'static) -> Self {
        Self { clock: Arc::new(clock), ..self }
    }

    /// Rejects enqueues that would make the database larger than `bytes`.
    pub fn with_db_bytes_max(self, bytes: u64) -> Self {
        Self { db_bytes_max: Some(bytes), ..self }
    }
}

/// The system's clock, in milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_ms(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }
}

impl SqliteStore {
    /// Opens or creates a file. Fails if another process has the file open.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self, StoreError> {
        let path = path.as_ref();
        let lock = lock(path)?;
        let conn = Connection::open(path).map_err(crate::store_error)?;
        Ok(Self::start(conn, Some(path), Some(lock), options)?)
    }

    /// Creates or updates the tables of a file, as [`open`](Self::open) does, and returns their schema version.
    pub fn migrate(path: impl AsRef<Path>) -> Result<u32, StoreError> {
        Self::open(path, Options::default())?;
        // A file with a newer schema does not open.
        Ok(SCHEMA)
    }

    /// Opens a store in memory. Its content is lost when the last clone is dropped.
    pub fn open_in_memory() -> Result<Self, StoreError> {
        Self::open_in_memory_with(Options::default())
    }

    /// Opens a store in memory, with options.
    pub fn open_in_memory_with(options: Options) -> Result<Self, StoreError> {
        let conn = Connection::open_in_memory().map_err(crate::store_error)?;
        Ok(Self::start(conn, None, None, options)?)
    }

    fn start(
        mut conn: Connection,
        path: Option<&Path>,
        lock: Option<File>,
        options: Options,
    ) -> Result<Self> {
        configure(&conn, &options)?;
        migrate(&conn)?;
        let checkpointer = path.map(|path| Checkpointer::new(path, &mut conn)).transpose()?;
        let lanes = SharedLanes::default();
        lanes.reload(&conn)?;
        let mut paused = PausedQueues::default();
        paused.reload(&conn)?;
        let mut limits = CachedLimits::default();
        limits.reload(&conn)?;
        let leased = LeasedRows::read(&conn)?;
        let (wake_sender, wakes) = watch::channel(0);
        let (cancel_sender, cancels) = watch::channel(0);
        let (sender, calls) = mpsc::channel();
        let clock = options.clock;
        let writer = Writer {
            conn,
            clock: clock.clone(),
            db_bytes_max: options.db_bytes_max,
            lanes: lanes.clone(),
            leased,
            paused,
            limits,
            wakes: wake_sender,
            cancels: cancel_sender,
            checkpointer,
        };
        let thread = std::thread::Builder::new()
            .name("redrive-writer".to_owned())
            .spawn(move || {
                writer.run(&calls);
                drop(lock); // only now may another process open the file
            })
            .map_err(|error| StoreError::Unavailable(Box::new(error)))?;
        let inner = Inner {
            sender: Some(sender),
            thread: Mutex::new(Some(thread)),
            readers: path.map(ReaderPool::new),
            lanes,
            wakes,
            cancels,
            clock,
        };
        Ok(Self { inner: Arc::new(inner) })
    }
}

/// The state that the clones of a store share.
pub(crate) struct Inner {
    sender: Option<Sender<Box<dyn WriteCall>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    readers: Option<ReaderPool>,
    lanes: SharedLanes,
    wakes: watch::Receiver<u64>,
    cancels: watch::Receiver<u64>,
    clock: Arc<dyn Clock>,
}

impl Inner {
    /// Runs `run` on the writer, and returns after the commit.
    pub(crate) async fn write<T, F>(&self, run: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&mut Tx<'_>) -> Result<T> + Send + 'static,
    {
        submit(self.sender.as_ref().ok_or_else(closed)?, run).await
    }

    /// Runs `read` in parallel with the writer. A store in memory has one connection only, so there it runs on the
    /// writer.
    pub(crate) async fn read<T, F>(self: &Arc<Self>, mut read: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&Connection, &SharedLanes) -> Result<T> + Send + 'static,
    {
        if self.readers.is_none() {
            return self.write(move |tx| read(tx.conn, tx.lanes)).await;
        }
        let inner = self.clone();
        let task = tokio::task::spawn_blocking(move || {
            let readers = inner.readers.as_ref().ok_or_else(closed)?;
            Ok(readers.with(|conn| read(conn, &inner.lanes))?)
        });
        task.await.unwrap_or_else(|error| Err(StoreError::Failed(Box::new(error))))
    }

    /// Completes a claim: reads the jobs that the writer has not read, in parallel with it. If that fails, the writer
    /// reads them after all, because they are leased already and would otherwise wait until their leases expire.
    pub(crate) async fn read_claimed(self: &Arc<Self>, claim: Claim) -> Result<ClaimedJobs, StoreError> {
        let Claim { mut claimed, unread } = claim;
        if !unread.is_empty() {
            let unread: Arc<[ClaimedRow]> = unread.into();
            let rows = unread.clone();
            let jobs = match self.read(move |conn, lanes| read_rows(conn, lanes, &rows)).await {
                Ok(jobs) => jobs,
                Err(error) => {
                    tracing::warn!(%error, "claimed jobs could not be read; the writer tries again");
                    self.write(move |tx| read_rows(tx.conn, tx.lanes, &unread)).await?
                }
            };
            add_jobs(&mut claimed, jobs);
        }
        Ok(claimed)
    }

    /// Returns once there has been a wake-up after `seen`.
    pub(crate) async fn wait(&self, seen: WakeToken) {
        // The writer holds the sender for as long as this store lives.
        let _ = self.wakes.clone().wait_for(|wakes| *wakes != seen.0).await;
    }

    /// Returns once a cancel of a running job was requested after `seen`.
    pub(crate) async fn wait_for_cancel(&self, seen: WakeToken) -> WakeToken {
        let mut cancels = self.cancels.clone();
        let requests = cancels.wait_for(|requests| *requests != seen.0).await.map(|requests| *requests);
        match requests {
            Ok(requests) => WakeToken(requests),
            // The writer has ended, so nothing can request a cancel any more.
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

/// Locks the file for this process. The caches of the writer are correct only because no other process writes.
fn lock(path: &Path) -> Result<File, StoreError> {
    let name = with_suffix(path, "-lock");
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
            "{} is open in another process; stop that process, or use another file for this one",
            path.display()
        ))),
        Err(TryLockError::Error(error)) => Err(refused(error)),
    }
}

/// A file next to `path`, with a suffix added to its name.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn configure(conn: &Connection, options: &Options) -> Result<()> {
    conn.busy_timeout(Duration::from_secs(5))?;
    conn.set_prepared_statement_cache_capacity(64);
    let set = |name: &str, value: i64| conn.pragma_update(None, name, value);
    // Takes effect in a new file only. Larger pages halve the cost of keeping the rows of a long queue in order.
    set("page_size", 8192)?;
    conn.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.pragma_update(None, "temp_store", "MEMORY")?;
    set("cache_size", -i64::try_from(options.cache_bytes / 1024).unwrap_or(i64::MAX))?;
    set("wal_autocheckpoint", 0)?;
    // Makes plans independent of bound values. Without it, SQLite parses a statement again for each new LIMIT.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}
