//! The running jobs as ranges of row numbers. Jobs that are claimed together are usually neighbours and end together, so
//! that a few ranges replace an index with one entry for each lease.

use std::collections::{BTreeMap, BTreeSet};

use redrive_core::Timestamp;
use redrive_sql::Statement;
use rusqlite::Connection;

use crate::error::Result;
use crate::sql::LIFECYCLE;

static READ_LEASE_RANGES: Statement = LIFECYCLE.statement("read_lease_ranges");
static WRITE_LEASE_RANGE: Statement = LIFECYCLE.statement("write_lease_range");
static DELETE_LEASE_RANGE: Statement = LIFECYCLE.statement("delete_lease_range");
static EARLIEST_LEASE_END: Statement = LIFECYCLE.statement("earliest_lease_end");

/// The ranges in memory. A transaction changes them here and writes the changes to the file before its commit.
#[derive(Debug, Default)]
pub(crate) struct LeaseRanges {
    /// The last row of each range by its first row. Ranges do not overlap.
    ranges: BTreeMap<i64, i64>,
    /// The changes of the current transaction, oldest first.
    changes: Vec<RangeChange>,
    /// The first rows of the ranges that the current transaction has changed.
    unwritten: BTreeSet<i64>,
    /// No lease ends before this time. `None` until the first reclaim has read the leases.
    earliest_end: Option<Timestamp>,
}

/// Rows that became running, or that are no longer running.
#[derive(Debug, Clone, Copy)]
enum RangeChange {
    Added(i64, i64),
    Removed(i64, i64),
}

/// A position among the changes of a transaction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RangeSavepoint(usize);

impl LeaseRanges {
    /// Reads the ranges from the file.
    pub(crate) fn read(conn: &Connection) -> Result<Self> {
        let mut statement = conn.prepare_cached(&READ_LEASE_RANGES)?;
        let rows = statement.query_map((), |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(Self { ranges: rows.collect::<rusqlite::Result<_>>()?, ..Self::default() })
    }

    /// Adds the rows from `first` to `last`, none of which was running before.
    pub(crate) fn add(&mut self, first: i64, last: i64) {
        self.insert(first, last);
        self.changes.push(RangeChange::Added(first, last));
    }

    /// Removes the rows from `first` to `last`. They can be parts of several ranges.
    pub(crate) fn remove(&mut self, first: i64, last: i64) {
        while let Some((start, end)) = self.last_range_before(last).filter(|(_, end)| *end >= first) {
            let (from, to) = (start.max(first), end.min(last));
            self.take_out((start, end), from, to);
            self.changes.push(RangeChange::Removed(from, to));
        }
    }

    /// Notes that a lease ends at `end`.
    pub(crate) fn note_lease_end(&mut self, end: Timestamp) {
        self.earliest_end = self.earliest_end.map(|earliest| earliest.min(end));
    }

    /// Whether a lease has expired. Reads the leases only if one that was taken or extended earlier may have expired.
    pub(crate) fn has_expired(&mut self, conn: &Connection, now: Timestamp) -> Result<bool> {
        if self.earliest_end.is_none_or(|earliest| earliest <= now) {
            // The file must also have the rows that an earlier call of this transaction has leased. Otherwise their end is forgotten.
            self.write(conn)?;
            let mut statement = conn.prepare_cached(&EARLIEST_LEASE_END)?;
            let earliest: Option<i64> = statement.query_row((), |row| row.get(0))?;
            self.earliest_end = Some(Timestamp::from_ms(earliest.unwrap_or(i64::MAX)));
        }
        Ok(self.earliest_end.is_none_or(|earliest| earliest <= now))
    }

    /// The current position, to which [`Self::roll_back_to`] can return.
    pub(crate) fn savepoint(&self) -> RangeSavepoint {
        RangeSavepoint(self.changes.len())
    }

    /// Undoes the changes after a savepoint.
    pub(crate) fn roll_back_to(&mut self, savepoint: RangeSavepoint) {
        for change in self.changes.split_off(savepoint.0).into_iter().rev() {
            match change {
                RangeChange::Added(first, last) => {
                    self.remove(first, last);
                    self.changes.truncate(savepoint.0);
                }
                RangeChange::Removed(first, last) => self.insert(first, last),
            }
        }
    }

    /// Undoes all changes of the transaction.
    pub(crate) fn roll_back(&mut self) {
        self.roll_back_to(RangeSavepoint(0));
        self.unwritten.clear();
        // It may have been read after a change that is now undone.
        self.earliest_end = None;
    }

    /// Writes the changes of the transaction to the file.
    pub(crate) fn write(&self, conn: &Connection) -> Result<()> {
        for first in &self.unwritten {
            match self.ranges.get(first) {
                Some(last) => conn.prepare_cached(&WRITE_LEASE_RANGE)?.execute((first, last))?,
                None => conn.prepare_cached(&DELETE_LEASE_RANGE)?.execute([first])?,
            };
        }
        Ok(())
    }

    /// Notes that the transaction has committed.
    pub(crate) fn commit(&mut self) {
        self.changes.clear();
        self.unwritten.clear();
    }

    fn insert(&mut self, first: i64, last: i64) {
        self.ranges.insert(first, last);
        self.unwritten.insert(first);
    }

    /// The range with the largest first row up to `last`.
    fn last_range_before(&self, last: i64) -> Option<(i64, i64)> {
        self.ranges.range(..=last).next_back().map(|(start, end)| (*start, *end))
    }

    /// Removes the rows `from` to `to` from the range that contains them.
    fn take_out(&mut self, (start, end): (i64, i64), from: i64, to: i64) {
        self.ranges.remove(&start);
        self.unwritten.insert(start);
        if start < from {
            self.insert(start, from - 1);
        }
        if to < end {
            self.insert(to + 1, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(ranges: &[(i64, i64)]) -> LeaseRanges {
        LeaseRanges { ranges: ranges.iter().copied().collect(), ..LeaseRanges::default() }
    }

    #[test]
    fn removed_rows_leave_the_rest_of_each_range() {
        for (first, last, rest) in [
            (1, 9, &[(20, 29)][..]),
            (1, 3, &[(4, 9), (20, 29)]),
            (7, 9, &[(1, 6), (20, 29)]),
            (4, 6, &[(1, 3), (7, 9), (20, 29)]),
            (5, 5, &[(1, 4), (6, 9), (20, 29)]),
            (5, 22, &[(1, 4), (23, 29)]),
            (0, 99, &[]),
            (10, 19, &[(1, 9), (20, 29)]),
        ] {
            let mut set = ranges(&[(1, 9), (20, 29)]);
            set.remove(first, last);
            assert_eq!(set.ranges, rest.iter().copied().collect(), "{first} to {last}");
        }
    }

    #[test]
    fn a_rollback_restores_the_same_rows() {
        let mut set = ranges(&[(1, 9), (20, 29)]);
        set.remove(5, 5);
        let savepoint = set.savepoint();
        set.add(10, 15);
        set.remove(8, 22);
        set.remove(1, 2);
        set.roll_back_to(savepoint);
        assert_eq!(rows(&set), (1..=4).chain(6..=9).chain(20..=29).collect::<Vec<_>>());
        set.roll_back();
        assert_eq!(rows(&set), (1..=9).chain(20..=29).collect::<Vec<_>>());
    }

    fn rows(set: &LeaseRanges) -> Vec<i64> {
        set.ranges.iter().flat_map(|(first, last)| *first..=*last).collect()
    }
}
