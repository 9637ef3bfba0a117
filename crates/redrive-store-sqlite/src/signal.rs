//! Leaves signals for jobs that have not ended.

use redrive_core::StoreError;
use redrive_core::steps::{Signal, Signalled};

use crate::error::Sorted;
use crate::get;
use crate::writer::Tx;

pub(crate) fn signal(tx: &mut Tx<'_>, signals: &[Signal]) -> Result<Vec<Signalled>, StoreError> {
    signals.iter().map(|signal| signal_one(tx, signal)).collect()
}

fn signal_one(tx: &Tx<'_>, signal: &Signal) -> Result<Signalled, StoreError> {
    match get::state(tx.conn, signal.job)? {
        None => Ok(Signalled::NotFound),
        Some((_, state)) if state.is_final() => Ok(Signalled::Ended(state)),
        Some(_) => {
            let mut statement = tx.conn.prepare_cached(include_str!("../sql/signal.sql")).sorted()?;
            let (job, id) = (signal.job.0.as_bytes(), signal.id.as_bytes());
            statement.execute((job, id, signal.name.as_str(), &signal.value)).sorted()?;
            Ok(Signalled::Kept)
        }
    }
}
