//! Many enqueues in few round trips.

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::Enqueued;
use tracing::Instrument as _;

use crate::{Enqueue, Error, Redrive, Task, trace};

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
    /// An error ends it; the batches before are enqueued then. With keys it may simply be repeated. One span is around each
    /// batch, and an event at the level `DEBUG` names each job with its trace.
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
    /// # Ok(()) }
    /// ```
    pub async fn enqueue_all<I>(&self, tasks: I) -> Result<Vec<Enqueued>, Error>
    where
        I: IntoIterator<Item: IntoEnqueue, IntoIter: Send>,
    {
        let mut tasks = tasks.into_iter();
        let mut answers = Vec::with_capacity(tasks.size_hint().0);
        loop {
            let batch: Vec<Enqueue> =
                tasks.by_ref().take(BATCH_ITEMS_MAX).map(|task| task.into_enqueue(self)).collect();
            if batch.is_empty() {
                return Ok(answers);
            }
            answers.extend(self.enqueue_batch(batch).await?);
        }
    }

    async fn enqueue_batch(&self, batch: Vec<Enqueue>) -> Result<Vec<Enqueued>, Error> {
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
