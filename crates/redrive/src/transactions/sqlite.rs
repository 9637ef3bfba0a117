//! Transactions on the SQLite file of the store.

use redrive_store_sqlite::Transaction;
use redrive_store_sqlite::rusqlite::Connection;

use crate::bodies::BodyConfirmations;
use crate::{CancelResult, EnqueuedJob, Error, JobId, PreparedTask, Redrive};

/// A transaction on the store's SQLite file. See [`Redrive::transact`].
pub struct SqliteTransaction<'a, 'b, 'c> {
    tx: &'a mut Transaction<'b, 'c>,
    bodies: BodyConfirmations,
}

impl<'a, 'b, 'c> SqliteTransaction<'a, 'b, 'c> {
    pub(crate) fn new(tx: &'a mut Transaction<'b, 'c>) -> Self {
        Self { tx, bodies: BodyConfirmations::default() }
    }

    /// The bodies to confirm after the commit.
    pub(crate) fn into_bodies(self) -> BodyConfirmations {
        self.bodies
    }

    /// The connection, for the application's own tables. Do not begin, commit or roll back a transaction on it.
    pub fn connection(&self) -> &Connection {
        self.tx.connection()
    }

    /// Enqueues a task. The job exists once the transaction is committed. If the key belongs to a different task, the result is
    /// an [`Error::Conflict`], and `?` on it rolls the transaction back.
    pub fn enqueue(&mut self, task: &PreparedTask) -> Result<EnqueuedJob, Error> {
        let result = self.tx.enqueue(std::slice::from_ref(&task.0))?.pop();
        let result = result.ok_or_else(|| Error::refused("the store returned no result for an enqueue"))?;
        self.bodies.add(&task.0, result);
        Ok(EnqueuedJob::of(result, &task.0)?)
    }

    /// Cancels a job and its children, like [`Redrive::cancel`]. A job that is not running ends with the commit. The
    /// worker of a running job ends it afterwards.
    ///
    /// ```
    /// # use redrive::{CancelResult, Redrive, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Ship { order: i64 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let id = redrive.enqueue(Ship { order: 7 }).await?.id();
    /// let cancelled = redrive.transact(move |tx| {
    ///     tx.connection().execute_batch("CREATE TABLE refunds AS SELECT 7 AS \"order\"")?;
    ///     tx.cancel(id)
    /// });
    /// assert_eq!(cancelled.await?, CancelResult::Done);
    /// # Ok(()) }
    /// ```
    pub fn cancel(&mut self, id: JobId) -> Result<CancelResult, Error> {
        Ok(self.tx.cancel(&[id])?.pop().unwrap_or(CancelResult::NotFound))
    }
}

impl Redrive {
    /// Runs `body` in a transaction on the store's SQLite file, in which the application can keep its own tables. If `body`
    /// returns `Ok`, its writes and its enqueues are committed together. Otherwise everything is rolled back.
    ///
    /// All other writes to the file wait meanwhile, so keep `body` short. In rare cases it is called a second time, after the
    /// first call was rolled back. If it panics, the transaction is rolled back and the error is [`Error::Panicked`].
    ///
    /// ```
    /// # use redrive::{Error, Redrive, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Ship { order: i64 }
    /// # impl Task for Ship { const KIND: &'static str = "ship"; type Output = (); }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// redrive
    ///     .transact(|tx| {
    ///         tx.connection().execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY)").map_err(Error::refused)
    ///     })
    ///     .await?;
    /// let ship = redrive.enqueue(Ship { order: 7 }).prepare().await?;
    /// redrive
    ///     .transact(move |tx| {
    ///         tx.connection().execute("INSERT INTO orders (id) VALUES (7)", ()).map_err(Error::refused)?;
    ///         tx.enqueue(&ship)
    ///     })
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub async fn transact<T, F>(&self, mut body: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnMut(&mut SqliteTransaction<'_, '_, '_>) -> Result<T, Error> + Send + 'static,
    {
        let work = move |tx: &mut Transaction<'_, '_>| {
            let mut tx = SqliteTransaction::new(tx);
            let value = body(&mut tx)?;
            Ok::<_, Error>((value, tx.into_bodies()))
        };
        let (value, bodies) = self.sqlite()?.transact(work).await??;
        self.confirm_bodies(bodies).await;
        Ok(value)
    }
}
