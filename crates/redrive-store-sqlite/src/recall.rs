//! The steps that a job has remembered.

use redrive_core::steps::{Step, StepKind};
use redrive_core::{JobId, StepName, StoreError};
use rusqlite::{Connection, Row};

use crate::error::Sorted;

pub(crate) fn recall(conn: &Connection, id: JobId, from: u32, limit: usize) -> Result<Vec<Step>, StoreError> {
    let mut statement = conn.prepare_cached(include_str!("../sql/recall.sql")).sorted()?;
    let mut rows = statement.query((id.0.as_bytes(), from, limit as i64)).sorted()?;
    let mut steps = Vec::new();
    while let Some(row) = rows.next().sorted()? {
        steps.push(step(row)?);
    }
    Ok(steps)
}

fn step(row: &Row<'_>) -> Result<Step, StoreError> {
    let code: u8 = row.get(2).sorted()?;
    let kind = StepKind::from_code(code);
    Ok(Step {
        place: row.get(0).sorted()?,
        name: StepName::new(row.get::<_, String>(1).sorted()?)?,
        kind: kind.ok_or_else(|| StoreError::Corrupt(format!("{code} is no kind of step")))?,
        value: row.get(3).sorted()?,
    })
}
