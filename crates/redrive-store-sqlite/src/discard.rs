//! Removes dead jobs with their logs.

use redrive_core::store::Discarded;
use redrive_core::{JobId, State, StoreError};

use crate::error::Sorted;
use crate::get;
use crate::writer::Tx;

pub(crate) fn discard(tx: &mut Tx<'_>, ids: &[JobId]) -> Result<Vec<Discarded>, StoreError> {
    ids.iter().map(|id| discard_one(tx, *id)).collect()
}

fn discard_one(tx: &mut Tx<'_>, id: JobId) -> Result<Discarded, StoreError> {
    match get::state(tx.conn, id)? {
        None => Ok(Discarded::NotFound),
        Some((lane, State::Dead)) => {
            remove(tx, include_str!("../sql/discard.sql"), id, lane, State::Dead)?;
            Ok(Discarded::Done)
        }
        Some((_, state)) => Ok(Discarded::NotDead(state)),
    }
}

/// Removes a job by `sql`, with its log, its steps, its signals and its unique keys.
pub(crate) fn remove(
    tx: &mut Tx<'_>,
    sql: &str,
    id: JobId,
    lane: i64,
    state: State,
) -> Result<(), StoreError> {
    let mut job = tx.conn.prepare_cached(sql).sorted()?;
    let mut log = tx.conn.prepare_cached(include_str!("../sql/discard_attempts.sql")).sorted()?;
    job.execute([id.0.as_bytes()]).sorted()?;
    log.execute([id.0.as_bytes()]).sorted()?;
    for sql in [include_str!("../sql/forget.sql"), include_str!("../sql/discard_signals.sql")] {
        tx.conn.prepare_cached(sql).sorted()?.execute([id.0.as_bytes()]).sorted()?;
    }
    let mut uniques = tx.conn.prepare_cached(include_str!("../sql/discard_uniques.sql")).sorted()?;
    uniques.execute((id.0.as_bytes(), tx.now.as_ms())).sorted()?;
    tx.tally.leave(lane, state, 1);
    Ok(())
}
