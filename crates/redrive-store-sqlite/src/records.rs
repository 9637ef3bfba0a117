//! Small versioned documents with compare-and-set, and the queues they pause.

use std::collections::BTreeSet;

use async_trait::async_trait;
use redrive_core::StoreError;
use redrive_core::quota::QUOTA;
use redrive_core::records::{Change, EVERY_QUEUE, PAUSED, Record, Records, Written};
use redrive_core::transfer::SEALED;
use rusqlite::{Connection, OptionalExtension, Row};

use crate::SqliteStore;
use crate::error::Sorted;
use crate::lanes::Lane;
use crate::writer::Tx;

#[async_trait]
impl Records for SqliteStore {
    async fn read(&self, kind: &str, id: &str) -> Result<Option<Record>, StoreError> {
        let (kind, id) = (kind.to_owned(), id.to_owned());
        self.inner.read(move |conn, _| Ok(find(conn, &kind, &id)?.and_then(|found| found.live(&id)))).await
    }

    async fn write(&self, change: Change) -> Result<Written, StoreError> {
        change.check()?;
        self.inner.write(move |tx| write(tx, &change)).await
    }

    async fn scan(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>, StoreError> {
        let (kind, after) = (kind.to_owned(), after.unwrap_or_default().to_owned());
        self.inner.read(move |conn, _| scan(conn, &kind, &after, limit)).await
    }
}

fn write(tx: &mut Tx<'_>, change: &Change) -> Result<Written, StoreError> {
    let current = find(tx.conn, &change.kind, &change.id)?.and_then(|found| found.live(&change.id));
    if !change.expect.holds(current.as_ref().map(|record| record.version)) {
        return Ok(Written::Conflict(current));
    }
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/records_write.sql")).sorted()?;
    let parameters = (&change.kind, &change.id, &change.value);
    let version: i64 = statement.query_row(parameters, |row| row.get(0)).sorted()?;
    if change.kind == PAUSED || change.kind == SEALED {
        tx.paused.reload(tx.conn)?;
    }
    if change.kind == QUOTA {
        tx.quotas.reload(tx.conn)?;
    }
    *tx.wake = true;
    Ok(Written::Done(version.unsigned_abs()))
}

/// A row, removed or not.
struct Found {
    version: u64,
    value: Option<Vec<u8>>,
}

impl Found {
    fn live(self, id: &str) -> Option<Record> {
        self.value.map(|value| Record { id: id.to_owned(), version: self.version, value })
    }
}

fn find(conn: &Connection, kind: &str, id: &str) -> Result<Option<Found>, StoreError> {
    let mut statement = conn.prepare_cached(include_str!("../sql/records_read.sql")).sorted()?;
    let found = statement.query_row((kind, id), |row| {
        Ok(Found { version: row.get::<_, i64>(0)?.unsigned_abs(), value: row.get(1)? })
    });
    found.optional().sorted()
}

/// Whether there is such a record.
pub(crate) fn is_there(conn: &Connection, kind: &str, id: &str) -> Result<bool, StoreError> {
    Ok(find(conn, kind, id)?.is_some_and(|found| found.value.is_some()))
}

/// Records of a kind in the order of their ids.
pub(crate) fn scan(
    conn: &Connection,
    kind: &str,
    after: &str,
    limit: usize,
) -> Result<Vec<Record>, StoreError> {
    let record = |row: &Row<'_>| {
        Ok(Record { id: row.get(0)?, version: row.get::<_, i64>(1)?.unsigned_abs(), value: row.get(2)? })
    };
    let mut statement = conn.prepare_cached(include_str!("../sql/records_scan.sql")).sorted()?;
    let rows = statement.query_map((kind, after, limit as i64), record).sorted()?;
    rows.collect::<rusqlite::Result<_>>().sorted()
}

/// What claims leave alone, as the writer last read it. It is the only writer, so it is current.
#[derive(Debug, Default)]
pub(crate) struct Paused {
    queues: BTreeSet<String>,
    sealed: bool,
}

impl Paused {
    /// Whether claims leave a lane alone.
    pub(crate) fn holds(&self, lane: &Lane) -> bool {
        self.sealed
            || !self.queues.is_empty()
                && (self.queues.contains(lane.queue.as_str()) || self.queues.contains(EVERY_QUEUE))
    }

    /// Whether the store is sealed: nothing is claimed or taken over.
    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed
    }

    /// Reads the paused queues and the seal again.
    pub(crate) fn reload(&mut self, conn: &Connection) -> Result<(), StoreError> {
        let records = scan(conn, PAUSED, "", usize::MAX >> 1)?;
        self.queues = records.into_iter().map(|record| record.id).collect();
        self.sealed = !scan(conn, SEALED, "", 1)?.is_empty();
        Ok(())
    }
}
