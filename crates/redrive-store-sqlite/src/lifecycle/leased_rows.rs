//! Caches the row numbers of jobs that this process has leased, so that a settlement needs no lookup.

use std::collections::HashMap;

use redrive_core::{JobId, WorkerId};
use redrive_sql::Statement;
use rusqlite::{Connection, OptionalExtension};

use crate::error::Result;
use crate::sql::LIFECYCLE;

static FIND_LEASED: Statement = LIFECYCLE.statement("find_leased");

/// The leased rows by job. An entry is only a hint: the statement that uses it checks id, epoch and state, so that an
/// outdated entry settles nothing.
#[derive(Debug, Default)]
pub(crate) struct LeasedRows(HashMap<JobId, LeasedRow>);

/// The number of a leased row, and the columns that a settlement needs.
#[derive(Debug, Clone)]
pub(crate) struct LeasedRow {
    pub(crate) seq: i64,
    pub(crate) lane: i64,
    pub(crate) worker: Option<WorkerId>,
    /// The scope of its partition: the queue and the partition key.
    pub(crate) partition: Option<String>,
}

impl LeasedRows {
    /// Adds a row that was just leased.
    pub(crate) fn insert(&mut self, id: JobId, row: LeasedRow) {
        self.0.insert(id, row);
    }

    /// Removes a row that was settled.
    pub(crate) fn remove(&mut self, id: JobId) {
        self.0.remove(&id);
    }

    /// The row of a job: from memory, or, after a restart, from the file.
    pub(crate) fn find(&self, conn: &Connection, id: JobId) -> Result<Option<LeasedRow>> {
        if let Some(row) = self.0.get(&id) {
            return Ok(Some(row.clone()));
        }
        let mut statement = conn.prepare_cached(&FIND_LEASED)?;
        let found = statement.query_row([id.0.as_bytes()], |row| {
            let worker: Option<String> = row.get(2)?;
            let worker = worker.and_then(|worker| WorkerId::new(worker).ok());
            Ok(LeasedRow { seq: row.get(0)?, lane: row.get(1)?, worker, partition: row.get(3)? })
        });
        Ok(found.optional()?)
    }
}
