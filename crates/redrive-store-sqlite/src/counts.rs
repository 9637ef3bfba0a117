//! The number of jobs by lane and state, which every transaction keeps exact.

use redrive_core::State;
use redrive_sql::Statement;
use rusqlite::Connection;

use crate::error::Result;
use crate::sql::LIFECYCLE;

static CHANGE_COUNT: Statement = LIFECYCLE.statement("change_count");

/// The changes of one transaction. They are added up and written once, before the commit.
#[derive(Debug, Clone, Default)]
pub(crate) struct CountChanges {
    /// A transaction touches a few lanes and states only, so that a linear search is faster than a map.
    changes: Vec<(i64, State, i64)>,
}

impl CountChanges {
    /// Counts a new job.
    pub(crate) fn add(&mut self, lane: i64, state: State) {
        self.change(lane, state, 1);
    }

    /// Counts a job that was deleted.
    pub(crate) fn remove(&mut self, lane: i64, state: State) {
        self.change(lane, state, -1);
    }

    /// Counts a job whose state changed.
    pub(crate) fn transition(&mut self, lane: i64, from: State, to: State) {
        self.change(lane, from, -1);
        self.change(lane, to, 1);
    }

    /// By how much this transaction has changed a count.
    pub(crate) fn difference(&self, lane: i64, state: State) -> i64 {
        let change = self.changes.iter().find(|change| change.0 == lane && change.1 == state);
        change.map_or(0, |change| change.2)
    }

    /// Writes the changes.
    pub(crate) fn write(&self, conn: &Connection) -> Result<()> {
        let mut statement = conn.prepare_cached(&CHANGE_COUNT)?;
        for (lane, state, jobs) in self.changes.iter().filter(|change| change.2 != 0) {
            statement.execute((lane, state.code(), jobs))?;
        }
        Ok(())
    }

    fn change(&mut self, lane: i64, state: State, jobs: i64) {
        match self.changes.iter_mut().find(|change| change.0 == lane && change.1 == state) {
            Some(change) => change.2 += jobs,
            None => self.changes.push((lane, state, jobs)),
        }
    }
}
