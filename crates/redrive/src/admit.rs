//! What a job passes on its way into the store.

use std::sync::Arc;

use async_trait::async_trait;
use redrive_core::{CatchPanic, NewJob, store};

use crate::answer::key_of;
use crate::bodies::UnconfirmedBody;
use crate::{Conflict, EnqueuedJob, Error, Redrive};

/// Sees every job before it is enqueued through a handle, and may change or refuse it. A closure from [`NewJob`] to
/// `Result<NewJob, Error>` is one.
///
/// If it panics, the job is not enqueued and the error is [`Error::Panicked`].
///
/// The key that makes an enqueue repeatable goes by what the caller asked for, so that a change made here does not turn
/// a repeat into a conflict.
///
/// ```
/// use redrive::{Error, NewJob};
///
/// # async fn example(redrive: redrive::Redrive) {
/// let redrive = redrive.with_enqueue(|job: NewJob| {
///     if job.tenant.as_str().is_empty() {
///         return Err(Error::refused("every job of this program needs a tenant"));
///     }
///     Ok(job)
/// });
/// # }
/// ```
#[async_trait]
pub trait EnqueueMiddleware: Send + Sync + 'static {
    /// The job as it shall be, or why it must not be.
    async fn admit(&self, job: NewJob) -> Result<NewJob, Error>;
}

#[async_trait]
impl<F> EnqueueMiddleware for F
where
    F: Fn(NewJob) -> Result<NewJob, Error> + Send + Sync + 'static,
{
    async fn admit(&self, job: NewJob) -> Result<NewJob, Error> {
        self(job)
    }
}

impl Redrive {
    /// A handle whose enqueues pass `middleware`, after those that were added before: single ones, batches, those in
    /// transactions of others and those of its workers' contexts. Other handles on the same store are not affected.
    ///
    /// ```
    /// use redrive::{NewJob, Redrive, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Welcome;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// // Every job of this handle goes to one queue.
    /// let redrive = redrive.with_enqueue(|job: NewJob| Ok(NewJob { queue: "mail".parse()?, ..job }));
    /// let id = redrive.enqueue(Welcome).await?.id();
    /// assert_eq!(redrive.get(id).await?.unwrap().queue.as_str(), "mail");
    /// # Ok(()) }
    /// ```
    pub fn with_enqueue(mut self, middleware: impl EnqueueMiddleware) -> Self {
        let more: Arc<dyn EnqueueMiddleware> = Arc::new(middleware);
        self.gates = self.gates.iter().cloned().chain([more]).collect();
        self
    }

    /// Leads a job past everything that may change or refuse it, and sets a payload aside that is too large for a row.
    pub(crate) async fn admit(&self, job: NewJob) -> Result<NewJob, Error> {
        self.set_aside(self.pass_middleware(job).await?).await
    }

    /// Leads a job past everything that may change or refuse it.
    pub(crate) async fn pass_middleware(&self, mut job: NewJob) -> Result<NewJob, Error> {
        for gate in &*self.gates {
            job = CatchPanic::new("enqueue middleware", async { gate.admit(job).await }).await??;
        }
        Ok(job)
    }

    /// Enqueues jobs that have passed the middleware, with answers in their order. A large payload is set aside first, unless
    /// its job repeats an earlier one.
    pub(crate) async fn add(
        &self,
        mut jobs: Vec<NewJob>,
    ) -> Result<Vec<Result<EnqueuedJob, Conflict>>, Error> {
        let keys: Vec<Option<String>> = jobs.iter().map(key_of).collect();
        let mut answers = self.find_repeats(&mut jobs).await?;
        let mut new = Vec::with_capacity(jobs.len());
        for (job, known) in jobs.into_iter().zip(&answers) {
            if known.is_none() {
                new.push(self.set_aside(job).await?);
            }
        }
        let mut added = self.add_prepared(new).await?.into_iter();
        answers.iter_mut().filter(|answer| answer.is_none()).for_each(|answer| *answer = added.next());
        let answers = answers.into_iter().flatten().zip(keys);
        Ok(answers.map(|(answer, key)| EnqueuedJob::under_key(answer, key)).collect())
    }

    /// Enqueues jobs whose large payloads are set aside, and notes which job has each.
    async fn add_prepared(&self, jobs: Vec<NewJob>) -> Result<Vec<store::Enqueued>, Error> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let bodies: Vec<Option<UnconfirmedBody>> = jobs.iter().map(UnconfirmedBody::of).collect();
        let answers = self.backend().enqueue(jobs).await?;
        let led_to = |(body, answer): (Option<_>, &store::Enqueued)| body.map(|body| (body, answer.id()));
        self.confirm(bodies.into_iter().zip(&answers).filter_map(led_to).collect()).await;
        Ok(answers)
    }
}
