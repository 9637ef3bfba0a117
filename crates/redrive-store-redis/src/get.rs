//! Jobs by id.

use redrive_core::{Job, JobId, StoreError};

use crate::open::{Inner, Spread};
use crate::{answer, row, script};

pub(crate) async fn get(inner: &Inner, ids: &[JobId]) -> Result<Vec<Option<Job>>, StoreError> {
    let read = |_, value| answer::items(value)?.into_iter().map(answer::items).collect();
    let rows: Vec<Vec<redis::Value>> =
        inner.run_by_home(ids, Spread::of(&script::GET, |arguments, n| arguments.id(ids[n])), read).await?;
    let jobs = ids
        .iter()
        .zip(rows)
        .map(|(id, row)| if row.is_empty() { Ok(None) } else { row::read(*id, row).map(Some) });
    jobs.collect()
}
