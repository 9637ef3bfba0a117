//! Leaves signals for jobs that have not ended.

use redrive_core::steps::{Signal, Signalled};
use redrive_core::{JobId, SignalName, StoreError};
use rusqlite::Connection;
use uuid::Uuid;

use crate::error::Sorted;
use crate::get;
use crate::writer::Tx;

pub(crate) fn signal(tx: &mut Tx<'_>, signals: &[Signal]) -> Result<Vec<Signalled>, StoreError> {
    signals.iter().map(|signal| signal_one(tx, signal)).collect()
}

/// The signals by any of these names that no step has taken, in the order in which they came.
pub(crate) fn pending(
    conn: &Connection,
    job: JobId,
    names: &[SignalName],
    limit: usize,
) -> Result<Vec<Signal>, StoreError> {
    let listed: Vec<&str> = names.iter().map(SignalName::as_str).collect();
    let listed = serde_json::Value::from(listed).to_string();
    let mut statement = conn.prepare_cached(include_str!("../sql/pending_signals.sql")).sorted()?;
    let rows = statement.query_map((job.0.as_bytes(), listed, limit as i64), |row| {
        Ok((Uuid::from_bytes(row.get(0)?), row.get::<_, String>(1)?, row.get(2)?))
    });
    let read = |row: rusqlite::Result<(Uuid, String, Vec<u8>)>| {
        let (id, name, value) = row.sorted()?;
        Ok(Signal { job, id, name: SignalName::new(name)?, value })
    };
    rows.sorted()?.map(read).collect()
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
