//! Enqueue middleware, and the steps from a new job to its row in the store.

use std::sync::Arc;

use async_trait::async_trait;
use redrive_core::{CatchPanic, NewJob, store};

use super::result::key_of;
use crate::bodies::UnconfirmedBody;
use crate::{Conflict, EnqueuedJob, Error, Redrive};

/// Changes or refuses each job before it is enqueued. A closure from [`NewJob`] to `Result<NewJob, Error>` implements it. Add it
/// with [`Redrive::with_enqueue_middleware`].
///
/// If it panics, the job is not enqueued and the error is [`Error::Panicked`].
///
/// Idempotency keys compare what the caller enqueued, so a change that the middleware makes never turns a repeat into a conflict.
///
/// ```
/// use redrive::{Error, NewJob};
///
/// # async fn example(redrive: redrive::Redrive) {
/// let redrive = redrive.with_enqueue_middleware(|job: NewJob| {
///     if job.tenant.as_str().is_empty() {
///         return Err(Error::refused("every job of this program needs a tenant"));
///     }
///     Ok(job)
/// });
/// # }
/// ```
#[async_trait]
pub trait EnqueueMiddleware: Send + Sync + 'static {
    /// Returns the job to enqueue, or an error that refuses it.
    async fn before_enqueue(&self, job: NewJob) -> Result<NewJob, Error>;
}

#[async_trait]
impl<F> EnqueueMiddleware for F
where
    F: Fn(NewJob) -> Result<NewJob, Error> + Send + Sync + 'static,
{
    async fn before_enqueue(&self, job: NewJob) -> Result<NewJob, Error> {
        self(job)
    }
}

impl Redrive {
    /// A handle that runs `middleware` for each job that it enqueues, after the middleware that was added before. This includes
    /// batches, enqueues in transactions, and enqueues by the handlers of its workers. Other handles on the same store are not
    /// affected.
    ///
    /// ```
    /// use redrive::{NewJob, Redrive, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Welcome;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// // Puts every job of this handle into one queue.
    /// let redrive = redrive.with_enqueue_middleware(|job: NewJob| Ok(NewJob { queue: "mail".parse()?, ..job }));
    /// let id = redrive.enqueue(Welcome).await?.id();
    /// assert_eq!(redrive.get(id).await?.unwrap().queue.as_str(), "mail");
    /// # Ok(()) }
    /// ```
    pub fn with_enqueue_middleware(mut self, middleware: impl EnqueueMiddleware) -> Self {
        let added: Arc<dyn EnqueueMiddleware> = Arc::new(middleware);
        self.enqueue_middleware = self.enqueue_middleware.iter().cloned().chain([added]).collect();
        self
    }

    /// Runs the middleware for a job, and puts a large payload into the object store.
    pub(crate) async fn prepare_job(&self, job: NewJob) -> Result<NewJob, Error> {
        self.store_large_payload(self.run_enqueue_middleware(job).await?).await
    }

    /// Runs the middleware for a job.
    pub(crate) async fn run_enqueue_middleware(&self, mut job: NewJob) -> Result<NewJob, Error> {
        for middleware in &*self.enqueue_middleware {
            let changed = async { middleware.before_enqueue(job).await };
            job = CatchPanic::new("enqueue middleware", changed).await??;
        }
        Ok(job)
    }

    /// Enqueues jobs after the middleware, and returns the results in their order. Stores a large payload first, unless its job
    /// repeats an earlier enqueue.
    pub(crate) async fn enqueue_jobs(
        &self,
        mut jobs: Vec<NewJob>,
    ) -> Result<Vec<Result<EnqueuedJob, Conflict>>, Error> {
        let keys: Vec<Option<String>> = jobs.iter().map(key_of).collect();
        let mut results = self.find_repeats(&mut jobs).await?;
        let mut new = Vec::with_capacity(jobs.len());
        for (job, repeat) in jobs.into_iter().zip(&results) {
            if repeat.is_none() {
                new.push(self.store_large_payload(job).await?);
            }
        }
        let mut added = self.enqueue_prepared(new).await?.into_iter();
        results.iter_mut().filter(|result| result.is_none()).for_each(|result| *result = added.next());
        let results = results.into_iter().flatten().zip(keys);
        Ok(results.map(|(result, key)| EnqueuedJob::with_key(result, key)).collect())
    }

    /// Enqueues jobs whose large payloads are stored, and records which job uses each.
    async fn enqueue_prepared(&self, jobs: Vec<NewJob>) -> Result<Vec<store::EnqueueResult>, Error> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let bodies: Vec<Option<UnconfirmedBody>> = jobs.iter().map(UnconfirmedBody::of).collect();
        let results = self.backend().enqueue(jobs).await?;
        let with_job =
            |(body, result): (Option<_>, &store::EnqueueResult)| body.map(|body| (body, result.id()));
        self.confirm_bodies(bodies.into_iter().zip(&results).filter_map(with_job).collect()).await;
        Ok(results)
    }
}
