//! What a job passes on its way into the store.

use std::sync::Arc;

use async_trait::async_trait;
use redrive_core::NewJob;

use crate::{Error, Redrive};

/// Sees every job before it is enqueued through a handle, and may change or refuse it. A closure from [`NewJob`] to
/// `Result<NewJob, Error>` is one.
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
    pub fn with_enqueue(mut self, middleware: impl EnqueueMiddleware) -> Self {
        let more: Arc<dyn EnqueueMiddleware> = Arc::new(middleware);
        self.gates = self.gates.iter().cloned().chain([more]).collect();
        self
    }

    /// Leads a job past everything that may change or refuse it, and sets a payload aside that is too large for a row.
    pub(crate) async fn admit(&self, mut job: NewJob) -> Result<NewJob, Error> {
        for gate in &*self.gates {
            job = gate.admit(job).await?;
        }
        self.set_aside(job).await
    }
}
