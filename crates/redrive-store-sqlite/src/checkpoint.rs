//! Moves the write-ahead log into the database file. A background thread does most of it, so that commits do not wait
//! for it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use redrive_core::StoreError;
use rusqlite::Connection;

use crate::error::Result;

/// A log of this many pages starts a background checkpoint.
const START_PAGES: i32 = 500;
/// At this size the writer itself completes the checkpoint, after which SQLite reuses the log from its start.
/// Background checkpoints alone never get that far while writes continue.
const FINISH_PAGES: i32 = 4_000;
/// At this size the writer completes the checkpoint even if no background checkpoint has ended.
const OVERDUE_PAGES: i32 = 4 * FINISH_PAGES;

/// The writer's handle on checkpoints.
pub(crate) struct Checkpointer {
    /// Starts a background checkpoint; `None` once the store is closing.
    requests: Option<SyncSender<()>>,
    /// The pages in the log after the last commit, as SQLite's hook reports them.
    log_pages: Arc<AtomicI32>,
    /// Whether a background checkpoint has ended since the writer last completed one.
    background_done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpointer {
    /// Watches the log of the writer's connection, and starts the background thread with a connection of its own.
    pub(crate) fn new(path: &Path, writer: &mut Connection) -> Result<Self> {
        let log_pages = Arc::new(AtomicI32::new(0));
        let reported = log_pages.clone();
        let hook = move |_: &mut rusqlite::hooks::Wal, pages: i32| {
            reported.store(pages, Ordering::Relaxed);
            Ok(())
        };
        writer.wal_hook(Some(hook))?;
        let conn = Connection::open(path)?;
        let (requests, received) = sync_channel(1);
        let background_done = Arc::new(AtomicBool::new(false));
        let done = background_done.clone();
        let thread = std::thread::Builder::new()
            .name("redrive-checkpoint".to_owned())
            .spawn(move || run_background(&conn, &received, &done))
            .map_err(|error| StoreError::Unavailable(Box::new(error)))?;
        Ok(Self { requests: Some(requests), log_pages, background_done, thread: Some(thread) })
    }

    /// Starts or completes a checkpoint if the log has grown enough.
    pub(crate) fn after_commit(&mut self, conn: &Connection) {
        let pages = self.log_pages.load(Ordering::Relaxed);
        if pages >= OVERDUE_PAGES
            || (pages >= FINISH_PAGES && self.background_done.swap(false, Ordering::AcqRel))
        {
            checkpoint(conn);
            self.log_pages.store(0, Ordering::Relaxed);
        } else if pages >= START_PAGES
            && let Some(requests) = &self.requests
        {
            // If the channel is full, a checkpoint has been requested already.
            let _ = requests.try_send(());
        }
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run_background(conn: &Connection, requests: &Receiver<()>, done: &AtomicBool) {
    while requests.recv().is_ok() {
        checkpoint(conn);
        done.store(true, Ordering::Release);
    }
}

/// Moves the pages that no reader still needs. It blocks neither readers nor the writer.
fn checkpoint(conn: &Connection) {
    if let Err(error) = conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", (), |_| Ok(())) {
        // No data is lost: the pages stay in the log, and the next checkpoint tries again.
        tracing::warn!(%error, "checkpoint failed");
    }
}
