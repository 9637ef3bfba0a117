//! Endings in the file that the jobs are in.

use std::marker::PhantomData;
use std::sync::Arc;

use async_trait::async_trait;
use redrive_core::panics::catch;
use redrive_core::store::{Settled, Settlement};
use redrive_core::{Job, StoreError};
use redrive_store_sqlite::SqliteStore;
use redrive_worker::Settler;

use super::{End, ending_of, endings, unwritten};
use crate::{Error, Redrive, SqliteTransaction, Task};

/// Settles jobs of a kind in a transaction of the store's writer, with what a closure writes.
pub(crate) struct InSqlite<T, F> {
    pub(crate) redrive: Redrive,
    pub(crate) store: SqliteStore,
    pub(crate) write: Arc<F>,
    pub(crate) task: PhantomData<fn(T)>,
}

#[async_trait]
impl<T, F> Settler for InSqlite<T, F>
where
    T: Task,
    F: Fn(&mut SqliteTransaction<'_, '_, '_>, &T, &End) -> Result<(), Error> + Send + Sync + 'static,
{
    async fn settle(
        &self,
        jobs: &[Arc<Job>],
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>, StoreError> {
        let endings = endings::<T>(&self.redrive, jobs, settlements).await?;
        let (settlements, write) = (settlements.to_vec(), self.write.clone());
        let settled = self.store.transact(move |tx| {
            let answers = tx.settle(&settlements)?;
            let mut tx = SqliteTransaction::new(tx);
            for (ending, answer) in endings.iter().zip(&answers) {
                if let Some((task, end)) = ending.ended(*answer) {
                    let written = catch(ending_of::<T>(), || write(&mut tx, task, &end));
                    written.unwrap_or_else(|panic| Err(panic.into())).map_err(unwritten)?;
                }
            }
            Ok::<_, StoreError>((answers, tx.into_bodies()))
        });
        let (answers, bodies) = settled.await??;
        self.redrive.confirm(bodies).await;
        Ok(answers)
    }
}
