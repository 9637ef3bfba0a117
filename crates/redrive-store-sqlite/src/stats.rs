//! Counts by queue and state, and the job that has been due for longest.

use redrive_core::store::Stats;
use redrive_core::{Queue, State, StoreError, Timestamp};
use rusqlite::Connection;

use crate::claim;
use crate::error::Sorted;
use crate::lanes::SharedLanes;

pub(crate) fn stats(conn: &Connection, lanes: &SharedLanes, now: Timestamp) -> Result<Stats, StoreError> {
    let mut stats = Stats { now, ..Stats::default() };
    let mut statement = conn.prepare_cached(include_str!("../sql/stats.sql")).sorted()?;
    let mut rows = statement.query(()).sorted()?;
    while let Some(row) = rows.next().sorted()? {
        let (queue, code, jobs): (String, u8, i64) =
            row.try_into().map_err(|_| StoreError::Corrupt("the counts cannot be read".to_owned()))?;
        if let Some(state) = State::from_code(code) {
            stats.counts.insert((Queue::new(queue)?, state), u64::try_from(jobs).unwrap_or(0));
        }
    }
    for lane in lanes.snapshot().iter() {
        let first = claim::first_due(conn, lane.number)?.filter(|at| *at <= now);
        stats.oldest_due = [stats.oldest_due, first].into_iter().flatten().min();
    }
    Ok(stats)
}
