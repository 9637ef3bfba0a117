//! What operators do to jobs by id: cancel, redrive, run now, discard. Each locks the rows, looks at their states and
//! writes, in one statement; what was found decides what to answer.

use std::collections::HashMap;

use redrive_core::store::{Cancelled, Discarded, Redriven, RunNow};
use redrive_core::{JobId, State, StoreError};
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::open::Inner;
use crate::pool::Parameter;
use crate::row;

pub(crate) async fn cancel(inner: &Inner, ids: &[JobId]) -> Result<Vec<Cancelled>, StoreError> {
    let mut found = found(inner, include_str!("../sql/cancel.sql"), ids, true).await?;
    let told = |id: &JobId| match found.get(&id.0).copied() {
        None => Cancelled::NotFound,
        Some(State::Running) => Cancelled::Requested,
        Some(state) if state.is_final() => Cancelled::Ended(state),
        Some(_) => {
            found.insert(id.0, State::Cancelled);
            Cancelled::Done
        }
    };
    Ok(ids.iter().map(told).collect())
}

pub(crate) async fn redrive(inner: &Inner, ids: &[JobId]) -> Result<Vec<Redriven>, StoreError> {
    let mut found = found(inner, include_str!("../sql/redrive.sql"), ids, true).await?;
    let told = |id: &JobId| match found.get(&id.0).copied() {
        None => Redriven::NotFound,
        Some(State::Dead) => {
            found.insert(id.0, State::Pending);
            Redriven::Done
        }
        Some(state) => Redriven::NotDead(state),
    };
    Ok(ids.iter().map(told).collect())
}

pub(crate) async fn run_now(inner: &Inner, ids: &[JobId]) -> Result<Vec<RunNow>, StoreError> {
    let found = found(inner, include_str!("../sql/run_now.sql"), ids, true).await?;
    let told = |id: &JobId| match found.get(&id.0).copied() {
        None => RunNow::NotFound,
        Some(state) if state.is_claimable() => RunNow::Done,
        Some(state) => RunNow::NotWaiting(state),
    };
    Ok(ids.iter().map(told).collect())
}

pub(crate) async fn discard(inner: &Inner, ids: &[JobId]) -> Result<Vec<Discarded>, StoreError> {
    let mut found = found(inner, include_str!("../sql/discard.sql"), ids, false).await?;
    let told = |id: &JobId| match found.get(&id.0).copied() {
        None => Discarded::NotFound,
        Some(State::Dead) => {
            found.remove(&id.0);
            Discarded::Done
        }
        Some(state) => Discarded::NotDead(state),
    };
    Ok(ids.iter().map(told).collect())
}

/// The states in which the statement found the jobs, before it did its work.
async fn found(
    inner: &Inner,
    sql: &str,
    ids: &[JobId],
    timed: bool,
) -> Result<HashMap<Uuid, State>, StoreError> {
    let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
    let now = inner.manual_now();
    let timed: &[Parameter<'_>] = if timed { &[(&now, Type::INT8)] } else { &[] };
    let parameters = [timed, &[(&ids, Type::UUID_ARRAY)]].concat();
    let rows = inner.pool.query(sql, &parameters).await?;
    rows.iter().map(row::id_and_state).collect()
}
