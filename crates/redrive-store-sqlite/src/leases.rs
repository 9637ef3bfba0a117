//! Where the rows are that this process has leased, so that settling one needs no look-up.

use std::collections::HashMap;

use redrive_core::{JobId, StoreError, WorkerId};
use rusqlite::{Connection, OptionalExtension};

use crate::error::Sorted;

/// Places of leased rows. Only a hint: the statement that uses one checks id, epoch and state, so that a place that has
/// become wrong settles nothing.
#[derive(Debug, Default)]
pub(crate) struct Leases(HashMap<JobId, Place>);

/// Where a row is, and whose lease it is under.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) seq: i64,
    pub(crate) lane: i64,
    pub(crate) worker: Option<WorkerId>,
    /// What its partition is called, if it is in one.
    pub(crate) partition: Option<String>,
}

impl Leases {
    /// Remembers a row that was just leased.
    pub(crate) fn took(&mut self, id: JobId, place: Place) {
        self.0.insert(id, place);
    }

    /// Forgets a row that was settled.
    pub(crate) fn gave_back(&mut self, id: JobId) {
        self.0.remove(&id);
    }

    /// The place of a row, from memory or, after a restart, from the file.
    pub(crate) fn find(&self, conn: &Connection, id: JobId) -> Result<Option<Place>, StoreError> {
        if let Some(place) = self.0.get(&id) {
            return Ok(Some(place.clone()));
        }
        let mut statement = conn.prepare_cached(include_str!("../sql/settle_find.sql")).sorted()?;
        let found = statement.query_row([id.0.as_bytes()], |row| {
            let worker: Option<String> = row.get(2)?;
            let worker = worker.and_then(|worker| WorkerId::new(worker).ok());
            Ok(Place { seq: row.get(0)?, lane: row.get(1)?, worker, partition: row.get(3)? })
        });
        found.optional().sorted()
    }
}
