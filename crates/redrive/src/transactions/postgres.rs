//! Transactions on the Postgres database of the store, on the store's own connections.

use std::sync::{Mutex, PoisonError};

use redrive_store_postgres::tokio_postgres::Client;
use redrive_store_postgres::{OpenTransaction, TransactionFuture};

use crate::bodies::BodyConfirmations;
use crate::{CancelResult, EnqueuedJob, Error, JobId, PreparedTask, Redrive};

/// A transaction on the store's Postgres database. See [`Redrive::transact_postgres`].
pub struct PostgresTransaction<'a> {
    tx: &'a OpenTransaction<'a>,
    bodies: Mutex<BodyConfirmations>,
}

impl<'a> PostgresTransaction<'a> {
    pub(crate) fn new(tx: &'a OpenTransaction<'a>) -> Self {
        Self { tx, bodies: Mutex::default() }
    }

    /// The bodies to confirm after the commit.
    pub(crate) fn into_bodies(self) -> BodyConfirmations {
        self.bodies.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, for the application's own tables. Do not begin, commit or roll back a transaction on it.
    pub fn client(&self) -> &Client {
        self.tx.client()
    }

    /// Enqueues a task. The job exists once the transaction is committed. If the key belongs to a different task, the result is
    /// an [`Error::Conflict`], and `?` on it rolls the transaction back.
    pub async fn enqueue(&self, task: &PreparedTask) -> Result<EnqueuedJob, Error> {
        let result = self.tx.enqueue(std::slice::from_ref(&task.0)).await?.pop();
        let result = result.ok_or_else(|| Error::refused("the store returned no result for an enqueue"))?;
        self.bodies.lock().unwrap_or_else(PoisonError::into_inner).add(&task.0, result);
        Ok(EnqueuedJob::of(result, &task.0)?)
    }

    /// Cancels a job and its children, like [`Redrive::cancel`]. A job that is not running ends with the commit. The
    /// worker of a running job ends it afterwards.
    pub async fn cancel(&self, id: JobId) -> Result<CancelResult, Error> {
        Ok(self.tx.cancel(&[id]).await?.pop().unwrap_or(CancelResult::NotFound))
    }
}

impl Redrive {
    /// Runs `body` in a transaction on one of the store's connections to Postgres. If `body` returns `Ok`, its writes and its
    /// enqueues are committed together. Otherwise everything is rolled back.
    ///
    /// After 15 s the transaction is rolled back with an error. If `body` panics, it is rolled back too, and the error is
    /// [`Error::Panicked`]. To enqueue in a transaction on a connection of your own, see [`crate::Enqueue::enqueue_in`].
    ///
    /// ```no_run
    /// # use redrive::{Error, Redrive, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Ship { order: i64 }
    /// # impl Task for Ship { const KIND: &'static str = "ship"; type Output = (); }
    /// # async fn example(redrive: Redrive) -> Result<(), Error> {
    /// let ship = redrive.enqueue(Ship { order: 7 }).prepare().await?;
    /// redrive
    ///     .transact_postgres(|tx| {
    ///         Box::pin(async move {
    ///             tx.client().execute("INSERT INTO orders (id) VALUES (7)", &[]).await?;
    ///             tx.enqueue(&ship).await
    ///         })
    ///     })
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub async fn transact_postgres<T, F>(&self, body: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a PostgresTransaction<'a>) -> TransactionFuture<'a, T, Error> + Send + 'static,
    {
        let committed = self.postgres()?.transact(move |tx| {
            Box::pin(async move {
                let tx = PostgresTransaction::new(tx);
                let value = body(&tx).await?;
                Ok::<_, Error>((value, tx.into_bodies()))
            })
        });
        let (value, bodies) = committed.await??;
        self.confirm_bodies(bodies).await;
        Ok(value)
    }
}
