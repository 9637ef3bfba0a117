//! How counts by lane and state change in one transaction.

use redrive_core::{State, StoreError};
use rusqlite::Connection;

use crate::error::Sorted;

/// Changes that are summed up and written once, before the commit.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    /// A handful of lanes and states at most, so that looking through them beats any map.
    changes: Vec<(i64, State, i64)>,
}

impl Tally {
    /// `jobs` jobs appeared in `state`.
    pub(crate) fn enter(&mut self, lane: i64, state: State, jobs: i64) {
        match self.changes.iter_mut().find(|change| change.0 == lane && change.1 == state) {
            Some(change) => change.2 += jobs,
            None => self.changes.push((lane, state, jobs)),
        }
    }

    /// How many jobs more or fewer are in `state` than were counted.
    pub(crate) fn change(&self, lane: i64, state: State) -> i64 {
        self.changes
            .iter()
            .filter(|change| change.0 == lane && change.1 == state)
            .map(|change| change.2)
            .sum()
    }

    /// `jobs` jobs left `state`.
    pub(crate) fn leave(&mut self, lane: i64, state: State, jobs: i64) {
        self.enter(lane, state, -jobs);
    }

    /// Writes what has changed.
    pub(crate) fn write(&self, conn: &Connection) -> Result<(), StoreError> {
        let mut statement = conn.prepare_cached(include_str!("../sql/tally.sql")).sorted()?;
        for (lane, state, jobs) in self.changes.iter().filter(|change| change.2 != 0) {
            statement.execute((lane, state.code(), jobs)).sorted()?;
        }
        Ok(())
    }
}
