//! Whether the store was moved, or is being.

use redrive_core::transfer::Seal;
use redrive_core::{Finding, StoreError};

use super::Patient;
use crate::error::Sorted;

pub(super) async fn seal(patient: &Patient<'_>) -> Result<Vec<Finding>, StoreError> {
    let rows = match patient.pool.query(include_str!("../../sql/doctor_seal.sql"), &[]).await {
        Ok(rows) => rows,
        // That this role sees no tables is said where they are looked at.
        Err(StoreError::Refused(_)) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    rows.iter().map(|row| Ok(Seal::finding(row.try_get(0).sorted()?, row.try_get(1).sorted()?))).collect()
}
