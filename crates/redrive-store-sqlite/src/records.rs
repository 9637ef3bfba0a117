//! Records: small versioned documents with compare-and-set. Two kinds of them stop claims: paused queues and seals.

use std::collections::BTreeSet;

use redrive_core::queue_limits::QUEUE_LIMITS;
use redrive_core::records::{EVERY_QUEUE, PAUSED, Record, RecordWrite, WriteResult};
use redrive_core::transfer::{RecordSnapshot, SEALED};
use redrive_sql::Statement;
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::error::Result;
use crate::lanes::Lane;
use crate::sql::RECORDS;
use crate::writer::Tx;

static READ: Statement = RECORDS.statement("read");
static WRITE: Statement = RECORDS.statement("write");
static LAST_VERSION: Statement = RECORDS.statement("last_version");
static RAISE_FLOOR: Statement = RECORDS.statement("raise_floor");
static REMOVE: Statement = RECORDS.statement("remove");
static DELETE_TOMBSTONES: Statement = RECORDS.statement("delete_tombstones");
static SCAN: Statement = RECORDS.statement("scan");
static EXPORT: Statement = RECORDS.statement("export");
static IMPORT: Statement = RECORDS.statement("import");

/// One record, or `None` if it does not exist or was removed.
pub(crate) fn read(conn: &Connection, kind: &str, id: &str) -> Result<Option<Record>> {
    let mut statement = conn.prepare_cached(&READ)?;
    let found = statement.query_row((kind, id), |row| {
        Ok((row.get::<_, i64>(0)?.unsigned_abs(), row.get::<_, Option<Vec<u8>>>(1)?))
    });
    let Some((version, Some(value))) = found.optional()? else { return Ok(None) };
    Ok(Some(Record { id: id.to_owned(), version, value }))
}

/// Whether a record exists.
pub(crate) fn exists(conn: &Connection, kind: &str, id: &str) -> Result<bool> {
    Ok(read(conn, kind, id)?.is_some())
}

/// Writes or removes a record if its version is as expected.
pub(crate) fn write(tx: &mut Tx<'_>, change: &RecordWrite) -> Result<WriteResult> {
    let current = read(tx.conn, &change.kind, &change.id)?;
    if !change.expect.holds(current.as_ref().map(|record| record.version)) {
        return Ok(WriteResult::Conflict(current));
    }
    let leaves_tombstone = tx.paused.is_sealed() && change.kind != SEALED;
    let version = match (&change.value, current) {
        (None, None) => return Ok(WriteResult::Done(last_version(tx.conn, change)?)),
        (None, Some(record)) if !leaves_tombstone => remove(tx.conn, change, record.version + 1)?,
        (None, Some(_)) | (Some(_), _) => {
            let mut statement = tx.conn.prepare_cached(&WRITE)?;
            let parameters = (&change.kind, &change.id, &change.value);
            statement.query_row(parameters, |row| row.get::<_, i64>(0))?.unsigned_abs()
        }
    };
    if change.kind == PAUSED || change.kind == SEALED {
        tx.paused.reload(tx.conn)?;
    }
    if change.kind == QUEUE_LIMITS {
        tx.limits.reload(tx.conn)?;
    }
    *tx.wake = true;
    Ok(WriteResult::Done(version))
}

/// Removes a record and raises the floor of its kind to `version`. Also deletes the tombstones of the kind, which were
/// written while the store was sealed.
fn remove(conn: &Connection, change: &RecordWrite, version: u64) -> Result<u64> {
    conn.prepare_cached(&RAISE_FLOOR)?.execute((&change.kind, version as i64))?;
    conn.prepare_cached(&REMOVE)?.execute((&change.kind, &change.id))?;
    conn.prepare_cached(&DELETE_TOMBSTONES)?.execute((&change.kind,))?;
    Ok(version)
}

/// The version that a new record would exceed.
fn last_version(conn: &Connection, change: &RecordWrite) -> Result<u64> {
    let mut statement = conn.prepare_cached(&LAST_VERSION)?;
    let version: i64 = statement.query_row((&change.kind, &change.id), |row| row.get(0))?;
    Ok(version.unsigned_abs())
}

/// The records of a kind, in the order of their ids.
pub(crate) fn scan(conn: &Connection, kind: &str, after: &str, limit: usize) -> Result<Vec<Record>> {
    let record = |row: &Row<'_>| {
        Ok(Record { id: row.get(0)?, version: row.get::<_, i64>(1)?.unsigned_abs(), value: row.get(2)? })
    };
    let mut statement = conn.prepare_cached(&SCAN)?;
    let rows = statement.query_map((kind, after, limit as i64), record)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// The records of every kind, with floors and tombstones, in the order of kind and id.
pub(crate) fn export(
    conn: &Connection,
    after: &(String, String),
    limit: usize,
) -> Result<Vec<RecordSnapshot>> {
    let snapshot = |row: &Row<'_>| {
        let version = row.get::<_, i64>(2)?.unsigned_abs();
        Ok(RecordSnapshot { kind: row.get(0)?, id: row.get(1)?, version, value: row.get(3)? })
    };
    let mut statement = conn.prepare_cached(&EXPORT)?;
    let rows = statement.query_map((&after.0, &after.1, limit as i64), snapshot)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// Writes the records of another store. A record that this store has in the same version or a later one stays.
pub(crate) fn import(tx: &mut Tx<'_>, snapshots: &[RecordSnapshot]) -> Result<Vec<bool>> {
    let mut statement = tx.conn.prepare_cached(&IMPORT)?;
    let mut written = Vec::with_capacity(snapshots.len());
    for RecordSnapshot { kind, id, version, value } in snapshots {
        written.push(statement.execute(params![kind, id, *version as i64, value])? == 1);
    }
    if written.contains(&true) {
        tx.paused.reload(tx.conn)?;
        tx.limits.reload(tx.conn)?;
        *tx.wake = true;
    }
    Ok(written)
}

/// The paused queues and the seal, as the writer last read them. No other process writes, so they are current.
#[derive(Debug, Default)]
pub(crate) struct PausedQueues {
    queues: BTreeSet<String>,
    sealed: bool,
}

impl PausedQueues {
    /// Whether claims leave this lane out.
    pub(crate) fn excludes(&self, lane: &Lane) -> bool {
        self.sealed
            || !self.queues.is_empty()
                && (self.queues.contains(lane.queue.as_str()) || self.queues.contains(EVERY_QUEUE))
    }

    /// Whether the store is sealed: nothing is claimed or reclaimed.
    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed
    }

    /// Reads the paused queues and the seal from the file.
    pub(crate) fn reload(&mut self, conn: &Connection) -> Result<()> {
        let records = scan(conn, PAUSED, "", usize::MAX >> 1)?;
        self.queues = records.into_iter().map(|record| record.id).collect();
        self.sealed = !scan(conn, SEALED, "", 1)?.is_empty();
        Ok(())
    }
}
