//! Moves the write-ahead log into the database file, beside the writer instead of inside its commits.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use redrive_core::StoreError;
use rusqlite::Connection;

use crate::error::Sorted;

/// From this many pages in the log a background pass starts.
const START_PAGES: i32 = 500;
/// From here the writer finishes the pass, which lets the log start over. A log that only the background pass works on
/// never starts over while writes go on.
const FINISH_PAGES: i32 = 4_000;
/// From here the writer does it even if no background pass has ended.
const OVERDUE_PAGES: i32 = 4 * FINISH_PAGES;

/// The writer's side of checkpointing.
pub(crate) struct Checkpointer {
    /// Rings the background thread; absent once closing has begun.
    bell: Option<SyncSender<()>>,
    /// Pages in the log after the last commit, as SQLite's hook tells them.
    pages: Arc<AtomicI32>,
    /// Whether a background pass has ended since the writer last finished one.
    passed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpointer {
    /// Watches the log of the writer's connection and starts the background thread with one of its own.
    pub(crate) fn new(path: &Path, writer: &mut Connection) -> Result<Self, StoreError> {
        let pages = Arc::new(AtomicI32::new(0));
        let told = pages.clone();
        let hook = move |_: &mut rusqlite::hooks::Wal, pages: i32| {
            told.store(pages, Ordering::Relaxed);
            Ok(())
        };
        writer.wal_hook(Some(hook)).sorted()?;
        let conn = Connection::open(path).sorted()?;
        let (bell, rings) = sync_channel(1);
        let passed = Arc::new(AtomicBool::new(false));
        let shared = passed.clone();
        let thread = std::thread::Builder::new()
            .name("redrive-checkpoint".to_owned())
            .spawn(move || serve(&conn, &rings, &shared))
            .map_err(|error| StoreError::Unavailable(Box::new(error)))?;
        Ok(Self { bell: Some(bell), pages, passed, thread: Some(thread) })
    }

    /// Decides, after a commit, whether the log needs work.
    pub(crate) fn after_commit(&mut self, conn: &Connection) {
        let pages = self.pages.load(Ordering::Relaxed);
        if pages >= OVERDUE_PAGES || (pages >= FINISH_PAGES && self.passed.swap(false, Ordering::AcqRel)) {
            pass(conn);
            self.pages.store(0, Ordering::Relaxed);
        } else if pages >= START_PAGES
            && let Some(bell) = &self.bell
        {
            // A full bell means that a pass is under way already.
            let _ = bell.try_send(());
        }
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.bell = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(conn: &Connection, rings: &Receiver<()>, passed: &AtomicBool) {
    while rings.recv().is_ok() {
        pass(conn);
        passed.store(true, Ordering::Release);
    }
}

/// Moves what it can without making anyone wait.
fn pass(conn: &Connection) {
    if let Err(error) = conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", (), |_| Ok(())) {
        // Nothing is lost: the log keeps what could not be moved, and the next pass tries again.
        tracing::warn!(%error, "checkpoint failed");
    }
}
