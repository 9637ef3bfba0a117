//! Leaves signals for jobs that have not ended, and finds those that wait to be taken.

use std::collections::HashMap;

use redrive_core::steps::{Signal, Signalled};
use redrive_core::{JobId, Lease, SignalName, State, StoreError};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::error::Sorted;
use crate::open::Inner;
use crate::pool::Parameter;
use crate::row;

pub(crate) async fn signal(inner: &Inner, signals: &[Signal]) -> Result<Vec<Signalled>, StoreError> {
    let jobs: Vec<Uuid> = signals.iter().map(|signal| signal.job.0).collect();
    let ids: Vec<Uuid> = signals.iter().map(|signal| signal.id).collect();
    let names: Vec<&str> = signals.iter().map(|signal| signal.name.as_str()).collect();
    let values: Vec<&[u8]> = signals.iter().map(|signal| signal.value.as_slice()).collect();
    let parameters: [Parameter<'_>; 4] = [
        (&jobs, Type::UUID_ARRAY),
        (&ids, Type::UUID_ARRAY),
        (&names, Type::TEXT_ARRAY),
        (&values, Type::BYTEA_ARRAY),
    ];
    let rows = inner.pool.query(include_str!("../sql/signal.sql"), &parameters).await?;
    let found: HashMap<Uuid, State> = rows.iter().map(row::id_and_state).collect::<Result<_, _>>()?;
    let told = |signal: &Signal| match found.get(&signal.job.0).copied() {
        None => Signalled::NotFound,
        Some(state) if state.is_final() => Signalled::Ended(state),
        Some(_) => Signalled::Kept,
    };
    Ok(signals.iter().map(told).collect())
}

/// The signals by any of these names that no step has taken, in the order of their arrival.
pub(crate) async fn pending(
    inner: &Inner,
    job: JobId,
    names: &[SignalName],
    limit: usize,
) -> Result<Vec<Signal>, StoreError> {
    let names: Vec<&str> = names.iter().map(SignalName::as_str).collect();
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let parameters: [Parameter<'_>; 3] =
        [(&job.0, Type::UUID), (&names, Type::TEXT_ARRAY), (&limit, Type::INT8)];
    let rows = inner.pool.query(include_str!("../sql/pending_signals.sql"), &parameters).await?;
    let read = |row: &Row| {
        let name = SignalName::new(row.try_get::<_, String>("name").sorted()?)?;
        Ok(Signal { job, id: row.try_get("id").sorted()?, name, value: row.try_get("value").sorted()? })
    };
    rows.iter().map(read).collect()
}

/// Marks signals as taken; false, with nothing changed, if the lease is lost.
pub(crate) async fn set_aside(inner: &Inner, lease: Lease, signals: &[Uuid]) -> Result<bool, StoreError> {
    let epoch = lease.epoch as i64;
    let parameters: [Parameter<'_>; 3] =
        [(&lease.id.0, Type::UUID), (&epoch, Type::INT8), (&signals, Type::UUID_ARRAY)];
    let rows = inner.pool.query(include_str!("../sql/set_aside.sql"), &parameters).await?;
    Ok(!rows.is_empty())
}
