//! Ends jobs that no worker holds; asks for the end of those that are running.

use redrive_core::store::Cancelled;
use redrive_core::{JobId, State, StoreError};
use rusqlite::params;
use uuid::Uuid;

use crate::error::Sorted;
use crate::get;
use crate::turns::{partition_of, pass_on};
use crate::writer::Tx;

pub(crate) fn cancel(tx: &mut Tx<'_>, ids: &[JobId]) -> Result<Vec<Cancelled>, StoreError> {
    ids.iter().map(|id| cancel_tree(tx, *id)).collect()
}

/// Cancels a job and, unless it had ended, everything below it.
fn cancel_tree(tx: &mut Tx<'_>, id: JobId) -> Result<Cancelled, StoreError> {
    let answer = cancel_one(tx, id)?;
    if matches!(answer, Cancelled::Done | Cancelled::Requested) {
        for below in below(tx, id)? {
            cancel_one(tx, below)?;
        }
    }
    Ok(answer)
}

fn below(tx: &Tx<'_>, id: JobId) -> Result<Vec<JobId>, StoreError> {
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/cancel_below.sql")).sorted()?;
    let ids =
        statement.query_map([id.0.as_bytes()], |row| Ok(JobId(Uuid::from_bytes(row.get(0)?)))).sorted()?;
    ids.collect::<rusqlite::Result<_>>().sorted()
}

fn cancel_one(tx: &mut Tx<'_>, id: JobId) -> Result<Cancelled, StoreError> {
    let Some((lane, state)) = get::state(tx.conn, id)? else {
        return Ok(Cancelled::NotFound);
    };
    if state.is_final() {
        return Ok(Cancelled::Ended(state));
    }
    if state == State::Running {
        let mut request = tx.conn.prepare_cached(include_str!("../sql/cancel_running.sql")).sorted()?;
        request.execute([id.0.as_bytes()]).sorted()?;
        return Ok(Cancelled::Requested);
    }
    let mut end = tx.conn.prepare_cached(include_str!("../sql/cancel.sql")).sorted()?;
    end.execute(params![id.0.as_bytes(), tx.now.as_ms()]).sorted()?;
    tx.tally.leave(lane, state, 1);
    tx.tally.enter(lane, State::Cancelled, 1);
    let partition = partition_of(tx, id)?;
    pass_on(tx, lane, partition.as_deref())?;
    Ok(Cancelled::Done)
}
