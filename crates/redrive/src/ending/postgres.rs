//! Endings in the database that the jobs are in.

use std::marker::PhantomData;
use std::sync::Arc;

use async_trait::async_trait;
use redrive_core::store::{Settled, Settlement};
use redrive_core::{CatchPanic, Job, Lease, StoreError};
use redrive_store_postgres::{OpenTransaction, PostgresStore, Work};
use redrive_worker::Settler;

use super::{End, Ending, ending_of, endings, unwritten};
use crate::bodies::Confirmations;
use crate::{Error, PostgresTransaction, Redrive, Task};

/// Settles jobs of a kind in a transaction on one of the store's connections, with what a closure writes.
pub(crate) struct InPostgres<T, F> {
    pub(crate) redrive: Redrive,
    pub(crate) store: PostgresStore,
    pub(crate) write: Arc<F>,
    pub(crate) task: PhantomData<fn(T)>,
}

#[async_trait]
impl<T, F> Settler for InPostgres<T, F>
where
    T: Task + Sync,
    F: for<'a> Fn(&'a PostgresTransaction<'a>, &'a T, &'a End) -> Work<'a, (), Error> + Send + Sync + 'static,
{
    async fn settle(
        &self,
        jobs: &[Arc<Job>],
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>, StoreError> {
        let mut endings = endings::<T>(&self.redrive, jobs, settlements).await?;
        // Those who settle the same rows of the application's wait for each other in one order.
        endings.sort_by_key(|ending| ending.settlement.lease);
        let leases: Vec<Lease> = endings.iter().map(|ending| ending.settlement.lease).collect();
        let write = self.write.clone();
        let (answers, bodies) = self.store.transact(move |tx| Box::pin(settle(tx, endings, write))).await??;
        self.redrive.confirm(bodies).await;
        let answer_of = |settlement: &Settlement| {
            let place = leases.iter().position(|lease| *lease == settlement.lease);
            place.map_or(Settled::LeaseLost, |place| answers[place])
        };
        Ok(settlements.iter().map(answer_of).collect())
    }
}

async fn settle<T, F>(
    tx: &OpenTransaction<'_>,
    endings: Vec<Ending<T>>,
    write: Arc<F>,
) -> Result<(Vec<Settled>, Confirmations), StoreError>
where
    T: Task + Sync,
    F: for<'b> Fn(&'b PostgresTransaction<'b>, &'b T, &'b End) -> Work<'b, (), Error> + Send + Sync + 'static,
{
    let settlements: Vec<Settlement> = endings.iter().map(|ending| ending.settlement.clone()).collect();
    let answers = tx.settle(&settlements).await?;
    let tx = PostgresTransaction::new(tx);
    for (ending, answer) in endings.iter().zip(&answers) {
        if let Some((task, end)) = ending.ended(*answer) {
            let written = CatchPanic::new(ending_of::<T>(), async { write(&tx, task, &end).await }).await;
            written.unwrap_or_else(|panic| Err(panic.into())).map_err(unwritten)?;
        }
    }
    Ok((answers, tx.into_bodies()))
}
