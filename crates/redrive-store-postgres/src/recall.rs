//! A job's remembered steps.

use redrive_core::steps::{Step, StepKind};
use redrive_core::{JobId, StepName, StoreError};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::error::Sorted;
use crate::open::Inner;

pub(crate) async fn recall(
    inner: &Inner,
    id: JobId,
    from: u32,
    limit: usize,
) -> Result<Vec<Step>, StoreError> {
    let (from, limit) = (i64::from(from), i64::try_from(limit).unwrap_or(i64::MAX));
    let sql = include_str!("../sql/recall.sql");
    let rows =
        inner.pool.query(sql, &[(&id.0, Type::UUID), (&from, Type::INT8), (&limit, Type::INT8)]).await?;
    rows.iter().map(step).collect()
}

/// The step in a row.
pub(crate) fn step(row: &Row) -> Result<Step, StoreError> {
    let (place, code): (i64, i16) = (row.try_get("place").sorted()?, row.try_get("kind").sorted()?);
    let damaged = |problem: &str| StoreError::Corrupt(format!("a step at place {place}: {problem}"));
    Ok(Step {
        place: u32::try_from(place).map_err(|_| damaged("it is no place"))?,
        name: StepName::new(row.try_get::<_, &str>("name").sorted()?)?,
        kind: u8::try_from(code)
            .ok()
            .and_then(StepKind::from_code)
            .ok_or_else(|| damaged(&format!("{code} is no kind")))?,
        value: row.try_get("value").sorted()?,
    })
}
