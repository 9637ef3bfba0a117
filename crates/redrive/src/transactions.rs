//! Enqueues together with the application's own writes, in one transaction of SQLite or Postgres.

#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

use redrive_core::NewJob;

use crate::{Enqueue, Error};

#[cfg(feature = "postgres")]
pub use postgres::PostgresTransaction;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteTransaction;

/// A task that is ready to be enqueued inside a transaction. See [`Enqueue::prepare`].
#[derive(Debug, Clone)]
pub struct PreparedTask(pub(crate) NewJob);

impl PreparedTask {
    /// The id of its job, if the enqueue creates one.
    pub fn id(&self) -> crate::JobId {
        self.0.id
    }

    /// The job as it will be enqueued. If the task has a key, the enqueue may find an existing job instead; its result names the
    /// job.
    pub fn job(&self) -> &NewJob {
        &self.0
    }
}

impl Enqueue {
    /// Prepares the task for a transaction: writes its policy to the store and runs the enqueue middleware, so that the
    /// transaction waits for neither.
    ///
    /// ```
    /// # use redrive::{Redrive, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Ship { order: i64 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let ship = redrive.enqueue(Ship { order: 7 }).prepare().await?;
    /// let enqueued = redrive.transact(move |tx| tx.enqueue(&ship)).await?;
    /// # assert!(enqueued.is_new());
    /// # Ok(()) }
    /// ```
    pub async fn prepare(self) -> Result<PreparedTask, Error> {
        let (redrive, job) = self.job().await?;
        redrive.prepare_store_for(&job).await?;
        Ok(PreparedTask(job))
    }
}
