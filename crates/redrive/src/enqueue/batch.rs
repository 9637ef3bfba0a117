//! Many enqueues in few round trips.

use redrive_core::limits::BATCH_ITEMS_MAX;
use tracing::Instrument as _;

use crate::answer::all_enqueued;
use crate::{Conflict, Enqueue, EnqueuedJob, Error, Redrive, Task, trace};

/// What can be enqueued in a batch: a task, or an [`Enqueue`] with its options.
pub trait IntoEnqueue {
    /// As an enqueue through `redrive`.
    fn into_enqueue(self, redrive: &Redrive) -> Enqueue;
}

impl<T: Task> IntoEnqueue for T {
    fn into_enqueue(self, redrive: &Redrive) -> Enqueue {
        redrive.enqueue(self)
    }
}

impl IntoEnqueue for Enqueue {
    fn into_enqueue(self, redrive: &Redrive) -> Enqueue {
        self.through(redrive)
    }
}

impl Redrive {
    /// Enqueues many, with answers in their order: [`BATCH_ITEMS_MAX`] at a time, each batch as a whole or not at all.
    ///
    /// An error of the store ends it; the batches before are enqueued then. With keys it may simply be repeated. One span is
    /// around each batch, and an event at the level `DEBUG` names each job with its trace.
    ///
    /// A task whose idempotency key belongs to a different task is not enqueued. All others are, and the call returns
    /// [`Error::BatchConflict`], which has the answer to every task: the ids of the jobs that were enqueued, and each conflict
    /// at its position.
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
    /// let answers = redrive.enqueue_all(urgent).await?;
    /// assert_eq!(answers.len(), 10);
    ///
    /// let keyed = [(1, "a"), (2, "b"), (3, "a")].map(|(user, key)| redrive.enqueue(Remind { user }).key(key));
    /// let Err(redrive::Error::BatchConflict(batch)) = redrive.enqueue_all(keyed).await else { unreachable!() };
    /// let (position, conflict) = batch.conflicts().next().unwrap();
    /// assert_eq!((position, conflict.key.as_str()), (2, "a"));
    /// assert_eq!(batch.answers.iter().filter(|answer| answer.is_ok()).count(), 2);
    /// # Ok(()) }
    /// ```
    pub async fn enqueue_all<I>(&self, tasks: I) -> Result<Vec<EnqueuedJob>, Error>
    where
        I: IntoIterator<Item: IntoEnqueue, IntoIter: Send>,
    {
        let mut tasks = tasks.into_iter();
        let mut answers = Vec::with_capacity(tasks.size_hint().0);
        loop {
            let batch: Vec<Enqueue> =
                tasks.by_ref().take(BATCH_ITEMS_MAX).map(|task| task.into_enqueue(self)).collect();
            if batch.is_empty() {
                return all_enqueued(answers);
            }
            answers.extend(self.enqueue_batch(batch).await?);
        }
    }

    async fn enqueue_batch(&self, batch: Vec<Enqueue>) -> Result<Vec<Result<EnqueuedJob, Conflict>>, Error> {
        let mut jobs = Vec::with_capacity(batch.len());
        for enqueue in batch {
            let (redrive, job) = enqueue.draft_job().await?;
            jobs.push(redrive.pass_middleware(job).await?);
        }
        let span = tracing::info_span!("enqueue", count = jobs.len());
        span.in_scope(|| jobs.iter().for_each(trace::tell_of));
        self.add(jobs).instrument(span).await
    }
}
