//! Leaves signals for jobs that have not ended.

use std::collections::HashMap;

use redrive_core::steps::{Signal, Signalled};
use redrive_core::{State, StoreError};
use tokio_postgres::types::Type;
use uuid::Uuid;

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
