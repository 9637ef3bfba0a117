//! Gives dead jobs a fresh run.

use redrive_core::store::Redriven;
use redrive_core::{JobId, State, StoreError};
use rusqlite::params;

use crate::error::Sorted;
use crate::get;
use crate::writer::Tx;

pub(crate) fn redrive(tx: &mut Tx<'_>, ids: &[JobId]) -> Result<Vec<Redriven>, StoreError> {
    ids.iter().map(|id| redrive_one(tx, *id)).collect()
}

fn redrive_one(tx: &mut Tx<'_>, id: JobId) -> Result<Redriven, StoreError> {
    match get::state(tx.conn, id)? {
        None => Ok(Redriven::NotFound),
        Some((lane, State::Dead)) => {
            let mut statement = tx.conn.prepare_cached(include_str!("../sql/redrive.sql")).sorted()?;
            statement.execute(params![id.0.as_bytes(), tx.now.as_ms()]).sorted()?;
            tx.tally.leave(lane, State::Dead, 1);
            tx.tally.enter(lane, State::Pending, 1);
            *tx.wake = true;
            Ok(Redriven::Done)
        }
        Some((_, state)) => Ok(Redriven::NotDead(state)),
    }
}
