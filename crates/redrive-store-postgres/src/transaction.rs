//! Enqueues inside a transaction of the caller's: rolled back means never enqueued.

use redrive_core::store::{Enqueued, check_batch};
use redrive_core::{NewJob, StoreError};
use tokio_postgres::types::Type;
use tokio_postgres::{Row, Transaction};

use crate::PostgresStore;
use crate::enqueue::{self, Query};
use crate::error::Sorted;
use crate::pool::Parameter;

/// The notification of a transaction comes with its commit; no node takes it for its own.
const FROM_A_TRANSACTION: &str = "";

impl PostgresStore {
    /// Adds jobs in `transaction`, which must be one on this store's database. They become visible to workers, and wake
    /// them, when it commits; when it is rolled back they were never there.
    ///
    /// ```no_run
    /// # async fn example(store: redrive_store_postgres::PostgresStore, mut client: tokio_postgres::Client,
    /// #     job: redrive_core::NewJob) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut transaction = client.transaction().await?;
    /// transaction.execute("INSERT INTO orders (id) VALUES (7)", &[]).await?;
    /// store.enqueue_in(&mut transaction, vec![job]).await?;
    /// transaction.commit().await?;
    /// # Ok(()) }
    /// ```
    pub async fn enqueue_in(
        &self,
        transaction: &mut Transaction<'_>,
        jobs: Vec<NewJob>,
    ) -> Result<Vec<Enqueued>, StoreError> {
        check_batch(jobs.len())?;
        enqueue::check(&jobs)?;
        // Lanes are made outside the transaction: their numbers stay, and no other caller waits for its end.
        let lanes = self.inner.lanes.with(&self.inner.pool, &jobs).await?;
        self.inner.expect(&jobs);
        let within = Within(transaction);
        let enqueued = enqueue::add_all(&mut &within, &lanes, self.inner.manual_now(), &jobs).await?;
        within.typed(include_str!("../sql/notify.sql"), &[(&FROM_A_TRANSACTION, Type::TEXT)]).await?;
        Ok(enqueued)
    }
}

struct Within<'a, 't>(&'a Transaction<'t>);

impl Query for Within<'_, '_> {
    async fn typed(&self, sql: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, StoreError> {
        self.0.query_typed(sql, parameters).await.sorted()
    }
}
