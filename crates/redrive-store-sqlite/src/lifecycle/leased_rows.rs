//! The leased rows: a cache of their numbers, so that a settlement needs no lookup, and the ranges that they form.

use std::collections::HashMap;

use redrive_core::{JobId, WorkerId};
use redrive_sql::Statement;
use rusqlite::{Connection, OptionalExtension};

use super::lease_ranges::LeaseRanges;
use crate::error::Result;
use crate::sql::LIFECYCLE;

static FIND_LEASED: Statement = LIFECYCLE.statement("find_leased");

/// The leased rows.
#[derive(Debug, Default)]
pub(crate) struct LeasedRows {
    /// The rows that this process has leased, by job. An entry is only a hint: the statement that uses it checks id,
    /// epoch and state, so that an outdated entry settles nothing.
    by_job: HashMap<JobId, LeasedRow>,
    /// The rows of all running jobs.
    pub(crate) ranges: LeaseRanges,
}

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
    /// Reads the ranges of running jobs from the file.
    pub(crate) fn read(conn: &Connection) -> Result<Self> {
        Ok(Self { by_job: HashMap::new(), ranges: LeaseRanges::read(conn)? })
    }

    /// Adds a row that was just leased.
    pub(crate) fn insert(&mut self, id: JobId, row: LeasedRow) {
        self.by_job.insert(id, row);
    }

    /// Removes a row that was settled.
    pub(crate) fn remove(&mut self, id: JobId) {
        self.by_job.remove(&id);
    }

    /// The row of a job: from memory, or, after a restart, from the file.
    pub(crate) fn find(&self, conn: &Connection, id: JobId) -> Result<Option<LeasedRow>> {
        if let Some(row) = self.by_job.get(&id) {
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
