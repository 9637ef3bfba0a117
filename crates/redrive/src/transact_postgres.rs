//! Enqueues together with an application's own writes to the same Postgres database, on the store's connections.

use std::sync::{Mutex, PoisonError};

use redrive_store_postgres::tokio_postgres::Client;
use redrive_store_postgres::{OpenTransaction, Work};

use crate::bodies::Confirmations;
use crate::{Cancelled, EnqueuedJob, Error, JobId, Prepared, Redrive};

/// A transaction on the store's database.
pub struct PostgresTransaction<'a> {
    tx: &'a OpenTransaction<'a>,
    bodies: Mutex<Confirmations>,
}

impl<'a> PostgresTransaction<'a> {
    pub(crate) fn new(tx: &'a OpenTransaction<'a>) -> Self {
        Self { tx, bodies: Mutex::default() }
    }

    /// What is to be confirmed once it is committed.
    pub(crate) fn into_bodies(self) -> Confirmations {
        self.bodies.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, for tables of the application's own. It must not be told to begin, commit or roll back.
    pub fn client(&self) -> &Client {
        self.tx.client()
    }

    /// Enqueues a task: with the commit it is there, and rolled back it never was. A key that belongs to a different task is an
    /// [`Error::Conflict`]; `?` on it rolls the transaction back.
    pub async fn enqueue(&self, task: &Prepared) -> Result<EnqueuedJob, Error> {
        let answer = self.tx.enqueue(std::slice::from_ref(&task.0)).await?.pop();
        let answer = answer.ok_or_else(|| Error::refused("the store gave no answer to an enqueue"))?;
        self.bodies.lock().unwrap_or_else(PoisonError::into_inner).note(&task.0, answer);
        Ok(EnqueuedJob::of(answer, &task.0)?)
    }

    /// Cancels a job with everything below it, as [`Redrive::cancel`] does. One that nobody works on has ended with the
    /// commit, and with it whatever the application writes about that; one that runs is ended by its worker.
    pub async fn cancel(&self, id: JobId) -> Result<Cancelled, Error> {
        Ok(self.tx.cancel(&[id]).await?.pop().unwrap_or(Cancelled::NotFound))
    }
}

impl Redrive {
    /// Runs `body` in a transaction on one of the store's connections to Postgres. What it writes and what it enqueues is
    /// there together or not at all: it is committed when `body` returns well.
    ///
    /// It is given up on after 15 s. If it panics, nothing is committed and the error is [`Error::Panicked`]. To enqueue in a transaction on a connection of your own, see
    /// [`crate::Enqueue::enqueue_in`].
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
        F: for<'a> FnOnce(&'a PostgresTransaction<'a>) -> Work<'a, T, Error> + Send + 'static,
    {
        let committed = self.postgres()?.transact(move |tx| {
            Box::pin(async move {
                let tx = PostgresTransaction::new(tx);
                let value = body(&tx).await?;
                Ok::<_, Error>((value, tx.into_bodies()))
            })
        });
        let (value, bodies) = committed.await??;
        self.confirm(bodies).await;
        Ok(value)
    }
}
