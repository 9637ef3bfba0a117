//! Enqueues many tasks in few round trips.

use redrive_core::limits::BATCH_ITEMS_MAX;
use tracing::Instrument as _;

use super::result::all_enqueued;
use crate::{Conflict, Enqueue, EnqueuedJob, Error, Redrive, Task, trace};

/// An item of [`Redrive::enqueue_all`]: a task, or an [`Enqueue`] with its options.
pub trait IntoEnqueue {
    /// Converts it into an enqueue with the handle `redrive`.
    fn into_enqueue(self, redrive: &Redrive) -> Enqueue;
}

impl<T: Task> IntoEnqueue for T {
    fn into_enqueue(self, redrive: &Redrive) -> Enqueue {
        redrive.enqueue(self)
    }
}

impl IntoEnqueue for Enqueue {
    fn into_enqueue(self, redrive: &Redrive) -> Enqueue {
        self.with_handle(redrive)
    }
}

impl Redrive {
    /// Enqueues many tasks in batches of [`BATCH_ITEMS_MAX`], and returns the results in the order of the tasks. Each batch is
    /// enqueued as a whole or not at all.
    ///
    /// If the store fails, the call ends with an error, and the earlier batches stay enqueued. With idempotency keys the call can
    /// be repeated. Each batch has one span, and an event at the level `DEBUG` names each job with its trace.
    ///
    /// A task whose idempotency key belongs to a different task is not enqueued. All others are, and the call returns
    /// [`Error::BatchConflict`] with the result for every task: an id, or a conflict.
    ///
    /// ```
    /// # use redrive::{Redrive, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Remind { user: u32 }
    /// # impl Task for Remind { const KIND: &'static str = "remind"; type Output = (); }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redrive::Error> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// redrive.enqueue_all((0..2500).map(|user| Remind { user })).await?;
    ///
    /// let urgent = (0..10).map(|user| redrive.enqueue(Remind { user }).priority(9));
    /// let jobs = redrive.enqueue_all(urgent).await?;
    /// assert_eq!(jobs.len(), 10);
    ///
    /// let keyed = [(1, "a"), (2, "b"), (3, "a")].map(|(user, key)| redrive.enqueue(Remind { user }).key(key));
    /// let Err(redrive::Error::BatchConflict(batch)) = redrive.enqueue_all(keyed).await else { unreachable!() };
    /// let (position, conflict) = batch.conflicts().next().unwrap();
    /// assert_eq!((position, conflict.key.as_str()), (2, "a"));
    /// assert_eq!(batch.results.iter().filter(|result| result.is_ok()).count(), 2);
    /// # Ok(()) }
    /// ```
    pub async fn enqueue_all<I>(&self, tasks: I) -> Result<Vec<EnqueuedJob>, Error>
    where
        I: IntoIterator<Item: IntoEnqueue, IntoIter: Send>,
    {
        let mut tasks = tasks.into_iter();
        let mut results = Vec::with_capacity(tasks.size_hint().0);
        loop {
            let batch: Vec<Enqueue> =
                tasks.by_ref().take(BATCH_ITEMS_MAX).map(|task| task.into_enqueue(self)).collect();
            if batch.is_empty() {
                return all_enqueued(results);
            }
            results.extend(self.enqueue_batch(batch).await?);
        }
    }

    async fn enqueue_batch(&self, batch: Vec<Enqueue>) -> Result<Vec<Result<EnqueuedJob, Conflict>>, Error> {
        let mut jobs = Vec::with_capacity(batch.len());
        for enqueue in batch {
            let (redrive, job) = enqueue.draft_job().await?;
            jobs.push(redrive.run_enqueue_middleware(job).await?);
        }
        let span = tracing::info_span!("enqueue", count = jobs.len());
        span.in_scope(|| jobs.iter().for_each(trace::log_enqueue));
        self.enqueue_jobs(jobs).instrument(span).await
    }
}
