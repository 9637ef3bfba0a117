//! Whether the store was moved, or is being.

use redrive_core::transfer::Seal;
use redrive_core::{Finding, StoreError};

use super::Patient;
use crate::error::Sorted;

pub(super) async fn seal(patient: &Patient<'_>) -> Result<Vec<Finding>, StoreError> {
    let rows = patient.pool.query(include_str!("../../sql/doctor_seal.sql"), &[]).await?;
    rows.iter().map(|row| Ok(Seal::finding(row.try_get(0).sorted()?, row.try_get(1).sorted()?))).collect()
}
