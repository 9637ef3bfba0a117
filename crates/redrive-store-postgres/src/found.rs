//! What most operations on jobs by id have in common: one statement locks the rows, looks at their states and writes; what it
//! found decides what to answer.

use std::collections::HashMap;

use redrive_core::{JobId, State, StoreError};
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::open::Inner;
use crate::row;

/// The states in which the statement found the jobs, before it did its work.
pub(crate) async fn found(
    inner: &Inner,
    sql: &str,
    ids: &[JobId],
) -> Result<HashMap<Uuid, State>, StoreError> {
    let ids = keys(ids);
    let rows = inner.pool.query(sql, &[(&ids, Type::UUID_ARRAY)]).await?;
    rows.iter().map(row::id_and_state).collect()
}

/// The same for a statement whose first parameter is the time.
pub(crate) async fn found_now(
    inner: &Inner,
    sql: &str,
    ids: &[JobId],
) -> Result<HashMap<Uuid, State>, StoreError> {
    let (now, ids) = (inner.manual_now(), keys(ids));
    let rows = inner.pool.query(sql, &[(&now, Type::INT8), (&ids, Type::UUID_ARRAY)]).await?;
    rows.iter().map(row::id_and_state).collect()
}

/// Ids as a parameter.
pub(crate) fn keys(ids: &[JobId]) -> Vec<Uuid> {
    ids.iter().map(|id| id.0).collect()
}
