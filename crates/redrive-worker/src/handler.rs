//! What a user writes: a handler, and what it gets to see of its attempt.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use redrive_core::{Job, Outcome};
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

/// Runs attempts of one kind of job. An async function or closure from [`Context`] to [`Outcome`] is one.
///
/// An attempt may be dropped at any `await`: on a timeout, a cancel, a lost lease or a shutdown. It may also run again
/// although it had succeeded, after a crash before its settlement: what it does outside should bear a repeat.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Makes one attempt. A panic counts as a failure.
    async fn run(&self, cx: Context) -> Outcome;
}

#[async_trait]
impl<F, Fut> Handler for F
where
    F: Fn(Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Outcome> + Send,
{
    async fn run(&self, cx: Context) -> Outcome {
        self(cx).await
    }
}

/// What an attempt gets to see.
#[derive(Clone)]
pub struct Context {
    /// The job as it was claimed.
    pub job: Arc<Job>,
    pub(crate) stop: CancellationToken,
}

impl Context {
    /// A context without a worker, to try a handler by itself.
    pub fn detached(job: Job) -> Self {
        Self { job: Arc::new(job), stop: CancellationToken::new() }
    }

    /// Waits until the attempt is aborted. The handler's own future is dropped then: this is for what it has started
    /// elsewhere, such as a task or a blocking call.
    pub fn cancelled(&self) -> WaitForCancellationFuture<'_> {
        self.stop.cancelled()
    }

    /// Whether the attempt was aborted; for blocking code to look at now and then.
    pub fn is_cancelled(&self) -> bool {
        self.stop.is_cancelled()
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("job", &self.job.id)
            .field("attempt", &self.job.attempt)
            .finish_non_exhaustive()
    }
}
