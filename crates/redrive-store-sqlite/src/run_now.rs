//! Makes jobs due that wait for their time.

use redrive_core::store::RunNow;
use redrive_core::{JobId, StoreError};
use rusqlite::params;

use crate::error::Sorted;
use crate::get;
use crate::writer::Tx;

pub(crate) fn run_now(tx: &mut Tx<'_>, ids: &[JobId]) -> Result<Vec<RunNow>, StoreError> {
    ids.iter().map(|id| run_one_now(tx, *id)).collect()
}

fn run_one_now(tx: &mut Tx<'_>, id: JobId) -> Result<RunNow, StoreError> {
    match get::state(tx.conn, id)? {
        None => Ok(RunNow::NotFound),
        Some((_, state)) if state.is_claimable() => {
            let mut statement = tx.conn.prepare_cached(include_str!("../sql/run_now.sql")).sorted()?;
            statement.execute(params![id.0.as_bytes(), tx.now.as_ms()]).sorted()?;
            *tx.wake = true;
            Ok(RunNow::Done)
        }
        Some((_, state)) => Ok(RunNow::NotWaiting(state)),
    }
}
