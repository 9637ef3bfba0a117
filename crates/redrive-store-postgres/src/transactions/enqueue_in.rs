//! Enqueues in a transaction of the caller. The jobs exist if and only if it commits.

use redrive_core::store::{EnqueueResult, check_batch};
use redrive_core::{NewJob, StoreError};
use redrive_sql::Statement;
use tokio_postgres::types::Type;
use tokio_postgres::{Row, Transaction};

use crate::PostgresStore;
use crate::lifecycle::enqueue;
use crate::pool::Executor;
use crate::pool::Parameter;
use crate::sql;

static NOTIFY: Statement = sql::WAKE.statement("notify");

/// The sender of the notification, which the server sends with the commit. Empty, so that every node treats it as a message of another node.
const FROM_A_TRANSACTION: &str = "";

impl PostgresStore {
    /// Adds jobs in `transaction`, which must be on this store's database. They become visible to workers, and wake them, when the
    /// transaction commits. If it is rolled back, the jobs never existed.
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
    ) -> Result<Vec<EnqueueResult>, StoreError> {
        check_batch(jobs.len())?;
        enqueue::check(&jobs)?;
        // Adds new lanes outside the transaction, so that other callers need not wait for its end.
        let lanes = self.inner.use_lanes(&jobs).await?;
        self.inner.lower_positions(&jobs);
        let caller = CallerTransaction(transaction);
        let enqueued = enqueue::add_all(&mut &caller, &lanes, self.inner.manual_now(), &jobs).await?;
        caller.run(&NOTIFY, &[(&FROM_A_TRANSACTION, Type::TEXT)]).await?;
        Ok(enqueued)
    }
}

struct CallerTransaction<'a, 't>(&'a Transaction<'t>);

impl Executor for CallerTransaction<'_, '_> {
    async fn run(&self, sql: &str, parameters: &[Parameter<'_>]) -> crate::error::Result<Vec<Row>> {
        Ok(self.0.query_typed(sql, parameters).await?)
    }
}
