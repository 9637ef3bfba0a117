//! How counts by lane and state change in one transaction.

use std::collections::BTreeMap;

use redrive_core::{State, StoreError};
use rusqlite::Connection;

use crate::error::Sorted;

/// Changes that are summed up and written once, before the commit.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    changes: BTreeMap<(i64, u8), i64>,
}

impl Tally {
    /// `jobs` jobs appeared in `state`.
    pub(crate) fn enter(&mut self, lane: i64, state: State, jobs: i64) {
        *self.changes.entry((lane, state.code())).or_default() += jobs;
    }

    /// `jobs` jobs left `state`.
    pub(crate) fn leave(&mut self, lane: i64, state: State, jobs: i64) {
        self.enter(lane, state, -jobs);
    }

    /// Writes what has changed.
    pub(crate) fn write(&self, conn: &Connection) -> Result<(), StoreError> {
        let mut statement = conn.prepare_cached(include_str!("../sql/tally.sql")).sorted()?;
        for ((lane, state), jobs) in self.changes.iter().filter(|(_, jobs)| **jobs != 0) {
            statement.execute((lane, state, jobs)).sorted()?;
        }
        Ok(())
    }
}
