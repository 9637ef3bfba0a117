//! Makes a task ready to be enqueued inside a transaction that must not wait for anything else.

use redrive_core::NewJob;

use crate::{Enqueue, Error};

/// A task that is ready to be enqueued inside a transaction.
#[derive(Debug, Clone)]
pub struct Prepared(pub(crate) NewJob);

impl Prepared {
    /// The id that its job will have.
    pub fn id(&self) -> crate::JobId {
        self.0.id
    }

    /// The job as it will be enqueued. One under a unique key may find another job in its place, which the answer to its
    /// enqueue names.
    pub fn job(&self) -> &NewJob {
        &self.0
    }
}

impl Enqueue {
    /// Makes it ready for a transaction: its policy is in the store, and it has passed what may refuse it.
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
    pub async fn prepare(self) -> Result<Prepared, Error> {
        let (redrive, job) = self.job().await?;
        redrive.expect(&job).await?;
        Ok(Prepared(job))
    }
}
