//! Forgets the steps of dead jobs.

use redrive_core::steps::Forgotten;
use redrive_core::{JobId, State, StoreError};

use crate::error::Sorted;
use crate::get;
use crate::writer::Tx;

pub(crate) fn forget(tx: &mut Tx<'_>, ids: &[JobId]) -> Result<Vec<Forgotten>, StoreError> {
    ids.iter().map(|id| forget_one(tx, *id)).collect()
}

fn forget_one(tx: &Tx<'_>, id: JobId) -> Result<Forgotten, StoreError> {
    match get::state(tx.conn, id)? {
        None => Ok(Forgotten::NotFound),
        Some((_, State::Dead)) => {
            let mut statement = tx.conn.prepare_cached(include_str!("../sql/forget.sql")).sorted()?;
            statement.execute([id.0.as_bytes()]).sorted()?;
            Ok(Forgotten::Done)
        }
        Some((_, state)) => Ok(Forgotten::NotDead(state)),
    }
}
