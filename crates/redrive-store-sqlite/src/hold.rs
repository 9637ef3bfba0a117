//! Holds jobs and lets them go.

use redrive_core::steps::Hold;
use redrive_core::{JobId, State, StoreError};
use rusqlite::OptionalExtension;

use crate::error::Sorted;
use crate::get;
use crate::resume::resume_one;
use crate::writer::Tx;

pub(crate) fn hold(tx: &mut Tx<'_>, ids: &[JobId]) -> Result<Vec<Hold>, StoreError> {
    ids.iter().map(|id| hold_one(tx, *id)).collect()
}

pub(crate) fn unhold(tx: &mut Tx<'_>, ids: &[JobId]) -> Result<Vec<Hold>, StoreError> {
    ids.iter().map(|id| unhold_one(tx, *id)).collect()
}

fn hold_one(tx: &mut Tx<'_>, id: JobId) -> Result<Hold, StoreError> {
    let (lane, before) = match live(tx, id)? {
        Ok(live) => live,
        Err(answer) => return Ok(answer),
    };
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/hold.sql")).sorted()?;
    let code = statement.query_row([id.0.as_bytes()], |row| row.get(0)).optional().sorted()?;
    let state = code.and_then(State::from_code).unwrap_or(before);
    tx.tally.leave(lane, before, 1);
    tx.tally.enter(lane, state, 1);
    Ok(Hold::Done(state))
}

fn unhold_one(tx: &mut Tx<'_>, id: JobId) -> Result<Hold, StoreError> {
    let before = match live(tx, id)? {
        Ok((_, before)) => before,
        Err(answer) => return Ok(answer),
    };
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/unhold.sql")).sorted()?;
    statement.execute([id.0.as_bytes()]).sorted()?;
    let resumed = resume_one(tx, id)?;
    Ok(Hold::Done(if resumed { State::Pending } else { before }))
}

/// The lane and state of a job that has not ended, or the answer about one that has.
fn live(tx: &Tx<'_>, id: JobId) -> Result<Result<(i64, State), Hold>, StoreError> {
    Ok(match get::state(tx.conn, id)? {
        None => Err(Hold::NotFound),
        Some((_, state)) if state.is_final() => Err(Hold::Ended(state)),
        Some(live) => Ok(live),
    })
}
