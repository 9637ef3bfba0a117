//! Moves the contents of a store: export and import.

mod export;
mod import;
mod import_columns;

use async_trait::async_trait;
use redrive_core::store::check_batch;
use redrive_core::transfer::{ExportPage, ImportResult, JobSnapshot, RecordSnapshot, ReservedKey};
use redrive_core::{JobId, StoreError, Transfer};

use crate::PostgresStore;

#[async_trait]
impl Transfer for PostgresStore {
    async fn export(&self, after: Option<JobId>, limit: usize) -> Result<ExportPage, StoreError> {
        check_batch(limit)?;
        Ok(export::export(&self.inner, after, limit).await?)
    }

    async fn import(&self, snapshots: Vec<JobSnapshot>) -> Result<Vec<ImportResult>, StoreError> {
        JobSnapshot::check_all(&snapshots)?;
        let imported = import::import(&self.inner, &snapshots).await?;
        // Imported jobs may have been due for a long time.
        self.inner.claim_positions().forget();
        self.inner.wake_if(
            imported.iter().any(|each| matches!(each, ImportResult::Created | ImportResult::Replaced)),
        );
        Ok(imported)
    }

    async fn export_records(
        &self,
        after: Option<(&str, &str)>,
        limit: usize,
    ) -> Result<Vec<RecordSnapshot>, StoreError> {
        Ok(export::export_records(&self.inner, after.unwrap_or_default(), limit).await?)
    }

    async fn import_records(&self, records: Vec<RecordSnapshot>) -> Result<Vec<bool>, StoreError> {
        RecordSnapshot::check_all(&records)?;
        let written = import::import_records(&self.inner, &records).await?;
        self.inner.wake_if(written.contains(&true));
        Ok(written)
    }

    async fn export_reserved_keys(
        &self,
        after: Option<JobId>,
        limit: usize,
    ) -> Result<Vec<ReservedKey>, StoreError> {
        Ok(export::export_reserved_keys(&self.inner, after, limit).await?)
    }

    async fn import_reserved_keys(&self, keys: Vec<ReservedKey>) -> Result<Vec<bool>, StoreError> {
        check_batch(keys.len())?;
        Ok(import::import_reserved_keys(&self.inner, &keys).await?)
    }
}
