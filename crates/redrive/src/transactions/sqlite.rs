//! Enqueues together with an application's own writes to the same SQLite file.

use redrive_store_sqlite::Transaction;
use redrive_store_sqlite::rusqlite::Connection;

use crate::bodies::Confirmations;
use crate::{Cancelled, EnqueuedJob, Error, JobId, Prepared, Redrive};

/// A transaction on the store's file.
pub struct SqliteTransaction<'a, 'b, 'c> {
    tx: &'a mut Transaction<'b, 'c>,
    bodies: Confirmations,
}

impl<'a, 'b, 'c> SqliteTransaction<'a, 'b, 'c> {
    pub(crate) fn new(tx: &'a mut Transaction<'b, 'c>) -> Self {
        Self { tx, bodies: Confirmations::default() }
    }

    /// What is to be confirmed once it is committed.
    pub(crate) fn into_bodies(self) -> Confirmations {
        self.bodies
    }

    /// The connection, for tables of the application's own. It must not be told to begin, commit or roll back.
    pub fn connection(&self) -> &Connection {
        self.tx.connection()
    }

    /// Enqueues a task: with the commit it is there, and rolled back it never was. A key that belongs to a different task is an
    /// [`Error::Conflict`]; `?` on it rolls the transaction back.
    pub fn enqueue(&mut self, task: &Prepared) -> Result<EnqueuedJob, Error> {
        let answer = self.tx.enqueue(std::slice::from_ref(&task.0))?.pop();
        let answer = answer.ok_or_else(|| Error::refused("the store gave no answer to an enqueue"))?;
        self.bodies.note(&task.0, answer);
        Ok(EnqueuedJob::of(answer, &task.0)?)
    }

    /// Cancels a job with everything below it, as [`Redrive::cancel`] does. One that nobody works on has ended with the
    /// commit, and with it whatever the application writes about that; one that runs is ended by its worker.
    ///
    /// ```
    /// # use redrive::{Cancelled, Redrive, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Ship { order: i64 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let id = redrive.enqueue(Ship { order: 7 }).await?.id();
    /// let cancelled = redrive.transact(move |tx| {
    ///     tx.connection().execute_batch("CREATE TABLE refunds AS SELECT 7 AS \"order\"")?;
    ///     tx.cancel(id)
    /// });
    /// assert_eq!(cancelled.await?, Cancelled::Done);
    /// # Ok(()) }
    /// ```
    pub fn cancel(&mut self, id: JobId) -> Result<Cancelled, Error> {
        Ok(self.tx.cancel(&[id])?.pop().unwrap_or(Cancelled::NotFound))
    }
}

impl Redrive {
    /// Runs `body` in a transaction on the store's SQLite file, where the application may keep tables of its own. What it
    /// writes and what it enqueues is there together or not at all: it is committed when `body` returns well.
    ///
    /// It holds up every other write and may, rarely, be called a second time after nothing of the first was kept. If it
    /// panics, nothing is committed, the error is [`Error::Panicked`], and the store continues.
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
        self.confirm(bodies).await;
        Ok(value)
    }
}
