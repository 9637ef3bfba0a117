//! Jobs by id.

use std::collections::HashMap;

use redrive_core::{Job, JobId, StoreError};
use tokio_postgres::types::Type;

use crate::found::keys;
use crate::open::Inner;
use crate::row;

pub(crate) async fn get(inner: &Inner, ids: &[JobId]) -> Result<Vec<Option<Job>>, StoreError> {
    let keys = keys(ids);
    let rows = inner.pool.query(include_str!("../sql/get.sql"), &[(&keys, Type::UUID_ARRAY)]).await?;
    let lanes = inner.lanes_of(&rows).await?;
    let mut found: HashMap<JobId, Job> = HashMap::with_capacity(rows.len());
    for read in row::reads(&rows, &lanes)? {
        found.insert(read.id, read.readable()?);
    }
    Ok(ids.iter().map(|id| found.get(id).cloned()).collect())
}
