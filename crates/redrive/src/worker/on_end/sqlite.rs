//! Settles jobs and runs on_end closures in a transaction on SQLite.

use std::marker::PhantomData;
use std::sync::Arc;

use async_trait::async_trait;
use redrive_core::panics::catch;
use redrive_core::store::{SettleResult, Settlement};
use redrive_core::{Job, StoreError};
use redrive_store_sqlite::SqliteStore;
use redrive_worker::Settler;

use super::{EndedJob, closure_name, settle_error, with_tasks};
use crate::{Error, Redrive, SqliteTransaction, Task};

/// Settles the jobs of a kind and calls the closure for each that has ended, in a transaction of the store's writer.
pub(crate) struct SqliteSettler<T, F> {
    pub(crate) redrive: Redrive,
    pub(crate) store: SqliteStore,
    pub(crate) write: Arc<F>,
    pub(crate) task: PhantomData<fn(T)>,
}

#[async_trait]
impl<T, F> Settler for SqliteSettler<T, F>
where
    T: Task,
    F: Fn(&mut SqliteTransaction<'_, '_, '_>, &T, &EndedJob) -> Result<(), Error> + Send + Sync + 'static,
{
    async fn settle(
        &self,
        jobs: &[Arc<Job>],
        settlements: &[Settlement],
    ) -> Result<Vec<SettleResult>, StoreError> {
        let with_tasks = with_tasks::<T>(&self.redrive, jobs, settlements).await?;
        let (settlements, write) = (settlements.to_vec(), self.write.clone());
        let settled = self.store.transact(move |tx| {
            let results = tx.settle(&settlements)?;
            let mut tx = SqliteTransaction::new(tx);
            for (settlement, result) in with_tasks.iter().zip(&results) {
                if let Some((task, ended)) = settlement.ended_job(*result) {
                    let written = catch(closure_name::<T>(), || write(&mut tx, task, &ended));
                    written.unwrap_or_else(|panic| Err(panic.into())).map_err(settle_error)?;
                }
            }
            Ok::<_, StoreError>((results, tx.into_bodies()))
        });
        let (results, bodies) = settled.await??;
        self.redrive.confirm_bodies(bodies).await;
        Ok(results)
    }
}
