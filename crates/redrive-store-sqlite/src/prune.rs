//! Removes jobs at the end of their retention.

use redrive_core::store::Retention;
use redrive_core::{JobId, State, StoreError, Timestamp};
use uuid::Uuid;

use crate::discard;
use crate::error::Sorted;
use crate::writer::Tx;

pub(crate) fn prune(tx: &mut Tx<'_>, retention: &Retention, limit: usize) -> Result<usize, StoreError> {
    let mut pruned = 0;
    for (state, keep) in retention.by_state() {
        for (id, lane) in expired(tx, state, tx.now.before(keep), limit - pruned)? {
            discard::remove(tx, include_str!("../sql/prune.sql"), id, lane, state)?;
            pruned += 1;
        }
    }
    let mut uniques = tx.conn.prepare_cached(include_str!("../sql/prune_uniques.sql")).sorted()?;
    uniques.execute((tx.now.as_ms(), limit as i64)).sorted()?;
    Ok(pruned)
}

fn expired(
    tx: &Tx<'_>,
    state: State,
    until: Timestamp,
    limit: usize,
) -> Result<Vec<(JobId, i64)>, StoreError> {
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/prune_expired.sql")).sorted()?;
    let rows = statement.query_map((state.code(), until.as_ms(), limit as i64), |row| {
        Ok((JobId(Uuid::from_bytes(row.get(0)?)), row.get(1)?))
    });
    rows.sorted()?.collect::<rusqlite::Result<_>>().sorted()
}
