//! Makes jobs due for which what they wait for has come.

use std::collections::HashSet;

use redrive_core::{JobId, StoreError};
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::error::Sorted;
use crate::found::keys;
use crate::open::Inner;
use crate::pool::Parameter;

const RESUME: &str = concat!(include_str!("../sql/resume_asked.sql"), include_str!("../sql/resume.sql"));

pub(crate) async fn resume(inner: &Inner, ids: &[JobId]) -> Result<Vec<bool>, StoreError> {
    let (now, asked) = (inner.manual_now(), keys(ids));
    let looked_at = look(inner, RESUME, &[(&now, Type::INT8), (&asked, Type::UUID_ARRAY)]).await?;
    let resumed = looked_at.into_iter().filter(|(_, resumed)| *resumed);
    // Of several that are the same the first is the one that was resumed.
    let mut resumed: HashSet<JobId> = resumed.map(|(id, _)| id).collect();
    Ok(ids.iter().map(|id| resumed.remove(id)).collect())
}

/// Runs a statement that looks at jobs that wait; says at which, in the order of their ids, and whether each was resumed.
pub(crate) async fn look(
    inner: &Inner,
    sql: &str,
    parameters: &[Parameter<'_>],
) -> Result<Vec<(JobId, bool)>, StoreError> {
    let rows = inner.pool.query(sql, parameters).await?;
    let each = rows.iter().map(|row| {
        let id: Uuid = row.try_get("id").sorted()?;
        Ok((JobId(id), row.try_get("resumed").sorted()?))
    });
    each.collect()
}
