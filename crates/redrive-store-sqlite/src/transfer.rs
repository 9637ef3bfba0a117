//! What moving from one store to another asks of this one.

use async_trait::async_trait;
use redrive_core::store::check_batch;
use redrive_core::transfer::{Exported, Imported, Parcel, Promise, Slot};
use redrive_core::{JobId, StoreError, Transfer};

use crate::SqliteStore;
use crate::{export, import};

#[async_trait]
impl Transfer for SqliteStore {
    async fn export(&self, after: Option<JobId>, limit: usize) -> Result<Exported, StoreError> {
        check_batch(limit)?;
        self.inner.read(move |conn, lanes| export::export(conn, lanes, after, limit)).await
    }

    async fn import(&self, parcels: Vec<Parcel>) -> Result<Vec<Imported>, StoreError> {
        Parcel::check_all(&parcels)?;
        self.inner.write(move |tx| import::import(tx, &parcels)).await
    }

    async fn export_records(
        &self,
        after: Option<(&str, &str)>,
        limit: usize,
    ) -> Result<Vec<Slot>, StoreError> {
        let (kind, id) = after.unwrap_or_default();
        let after = (kind.to_owned(), id.to_owned());
        self.inner.read(move |conn, _| export::export_records(conn, &after, limit)).await
    }

    async fn import_records(&self, slots: Vec<Slot>) -> Result<Vec<bool>, StoreError> {
        Slot::check_all(&slots)?;
        self.inner.write(move |tx| import::import_records(tx, &slots)).await
    }

    async fn export_promises(&self, after: Option<JobId>, limit: usize) -> Result<Vec<Promise>, StoreError> {
        let now = self.inner.now();
        self.inner.read(move |conn, _| export::export_promises(conn, now, after, limit)).await
    }

    async fn import_promises(&self, promises: Vec<Promise>) -> Result<Vec<bool>, StoreError> {
        check_batch(promises.len())?;
        self.inner.write(move |tx| import::import_promises(tx, &promises)).await
    }
}
