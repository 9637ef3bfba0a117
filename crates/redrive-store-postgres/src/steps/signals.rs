//! Stores signals for jobs, and reads those that no step has taken.

use std::collections::HashMap;

use redrive_core::steps::{Signal, SignalResult};
use redrive_core::{JobId, Lease, SignalName, State};
use redrive_sql::Statement;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::error::Result;
use crate::open::Inner;
use crate::pool::Parameter;
use crate::row;
use crate::sql;

static SIGNAL: Statement = sql::STEPS.statement("signal");
static PENDING_SIGNALS: Statement = sql::STEPS.statement("pending_signals");
static SKIP_SIGNALS: Statement = sql::STEPS.statement("skip_signals");

pub(crate) async fn signal(inner: &Inner, signals: &[Signal]) -> Result<Vec<SignalResult>> {
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
    let rows = inner.pool.query(&SIGNAL, &parameters).await?;
    let found: HashMap<Uuid, State> = rows.iter().map(row::id_and_state).collect::<Result<_, _>>()?;
    let result = |signal: &Signal| match found.get(&signal.job.0).copied() {
        None => SignalResult::NotFound,
        Some(state) if state.is_final() => SignalResult::Ended(state),
        Some(_) => SignalResult::Stored,
    };
    Ok(signals.iter().map(result).collect())
}

/// The signals with these names that no step has taken, in the order of their arrival.
pub(crate) async fn pending(
    inner: &Inner,
    job: JobId,
    names: &[SignalName],
    limit: usize,
) -> Result<Vec<Signal>> {
    let names: Vec<&str> = names.iter().map(SignalName::as_str).collect();
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let parameters: [Parameter<'_>; 3] =
        [(&job.0, Type::UUID), (&names, Type::TEXT_ARRAY), (&limit, Type::INT8)];
    let rows = inner.pool.query(&PENDING_SIGNALS, &parameters).await?;
    let read = |row: &Row| {
        let name = SignalName::new(row.try_get::<_, String>("name")?)?;
        Ok(Signal { job, id: row.try_get("id")?, name, value: row.try_get("value")? })
    };
    rows.iter().map(read).collect()
}

/// Marks signals as taken. Returns false, and changes nothing, if the lease is lost.
pub(crate) async fn skip_signals(inner: &Inner, lease: Lease, signals: &[Uuid]) -> Result<bool> {
    let epoch = lease.epoch as i64;
    let parameters: [Parameter<'_>; 3] =
        [(&lease.id.0, Type::UUID), (&epoch, Type::INT8), (&signals, Type::UUID_ARRAY)];
    let rows = inner.pool.query(&SKIP_SIGNALS, &parameters).await?;
    Ok(!rows.is_empty())
}
