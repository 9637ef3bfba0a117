//! Settles jobs and runs on_end closures in a transaction on Postgres.

use std::marker::PhantomData;
use std::sync::Arc;

use async_trait::async_trait;
use redrive_core::store::{SettleResult, Settlement};
use redrive_core::{CatchPanic, Job, Lease, StoreError};
use redrive_store_postgres::{OpenTransaction, PostgresStore, TransactionFuture};
use redrive_worker::Settler;

use super::{EndedJob, TaskSettlement, closure_name, settle_error, with_tasks};
use crate::bodies::BodyConfirmations;
use crate::{Error, PostgresTransaction, Redrive, Task};

/// Settles the jobs of a kind and calls the closure for each that has ended, in a transaction on one of the store's connections.
pub(crate) struct PostgresSettler<T, F> {
    pub(crate) redrive: Redrive,
    pub(crate) store: PostgresStore,
    pub(crate) write: Arc<F>,
    pub(crate) task: PhantomData<fn(T)>,
}

#[async_trait]
impl<T, F> Settler for PostgresSettler<T, F>
where
    T: Task + Sync,
    F: for<'a> Fn(&'a PostgresTransaction<'a>, &'a T, &'a EndedJob) -> TransactionFuture<'a, (), Error>
        + Send
        + Sync
        + 'static,
{
    async fn settle(
        &self,
        jobs: &[Arc<Job>],
        settlements: &[Settlement],
    ) -> Result<Vec<SettleResult>, StoreError> {
        let mut with_tasks = with_tasks::<T>(&self.redrive, jobs, settlements).await?;
        // Two transactions that write the same rows of the application lock them in the same order, which prevents deadlocks.
        with_tasks.sort_by_key(|task| task.settlement.lease);
        let leases: Vec<Lease> = with_tasks.iter().map(|task| task.settlement.lease).collect();
        let write = self.write.clone();
        let (results, bodies) =
            self.store.transact(move |tx| Box::pin(settle(tx, with_tasks, write))).await??;
        self.redrive.confirm_bodies(bodies).await;
        let result_of = |settlement: &Settlement| {
            let position = leases.iter().position(|lease| *lease == settlement.lease);
            position.map_or(SettleResult::LeaseLost, |position| results[position])
        };
        Ok(settlements.iter().map(result_of).collect())
    }
}

async fn settle<T, F>(
    tx: &OpenTransaction<'_>,
    with_tasks: Vec<TaskSettlement<T>>,
    write: Arc<F>,
) -> Result<(Vec<SettleResult>, BodyConfirmations), StoreError>
where
    T: Task + Sync,
    F: for<'b> Fn(&'b PostgresTransaction<'b>, &'b T, &'b EndedJob) -> TransactionFuture<'b, (), Error>
        + Send
        + Sync
        + 'static,
{
    let settlements: Vec<Settlement> = with_tasks.iter().map(|task| task.settlement.clone()).collect();
    let results = tx.settle(&settlements).await?;
    let tx = PostgresTransaction::new(tx);
    for (settlement, result) in with_tasks.iter().zip(&results) {
        if let Some((task, ended)) = settlement.ended_job(*result) {
            let written =
                CatchPanic::new(closure_name::<T>(), async { write(&tx, task, &ended).await }).await;
            written.unwrap_or_else(|panic| Err(panic.into())).map_err(settle_error)?;
        }
    }
    Ok((results, tx.into_bodies()))
}
