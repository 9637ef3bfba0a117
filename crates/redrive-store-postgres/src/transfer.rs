//! What moving from one store to another asks of this one.

use async_trait::async_trait;
use redrive_core::store::check_batch;
use redrive_core::transfer::{Exported, Imported, Parcel, Promise, Slot};
use redrive_core::{JobId, StoreError, Transfer};

use crate::{PostgresStore, export, import};

#[async_trait]
impl Transfer for PostgresStore {
    async fn export(&self, after: Option<JobId>, limit: usize) -> Result<Exported, StoreError> {
        check_batch(limit)?;
        export::export(&self.inner, after, limit).await
    }

    async fn import(&self, parcels: Vec<Parcel>) -> Result<Vec<Imported>, StoreError> {
        Parcel::check_all(&parcels)?;
        let imported = import::import(&self.inner, &parcels).await?;
        // What came may be due since long ago.
        self.inner.floors().forget();
        self.inner
            .wake_if(imported.iter().any(|each| matches!(each, Imported::Created | Imported::Replaced)));
        Ok(imported)
    }

    async fn export_records(
        &self,
        after: Option<(&str, &str)>,
        limit: usize,
    ) -> Result<Vec<Slot>, StoreError> {
        export::export_records(&self.inner, after.unwrap_or_default(), limit).await
    }

    async fn import_records(&self, slots: Vec<Slot>) -> Result<Vec<bool>, StoreError> {
        Slot::check_all(&slots)?;
        let written = import::import_records(&self.inner, &slots).await?;
        self.inner.wake_if(written.contains(&true));
        Ok(written)
    }

    async fn export_promises(&self, after: Option<JobId>, limit: usize) -> Result<Vec<Promise>, StoreError> {
        export::export_promises(&self.inner, after, limit).await
    }

    async fn import_promises(&self, promises: Vec<Promise>) -> Result<Vec<bool>, StoreError> {
        check_batch(promises.len())?;
        import::import_promises(&self.inner, &promises).await
    }
}
