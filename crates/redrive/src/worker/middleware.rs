//! Middleware, which runs around each attempt of a worker.

use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use redrive_core::{CatchPanic, Outcome, Panic};

use crate::Context;

/// Runs around every attempt of a worker. An async closure from [`Context`] and [`Next`] to [`Outcome`] implements it. Add it with
/// [`crate::TaskWorker::middleware`].
///
/// A middleware can inspect the job, return an outcome without calling `next`, and change the outcome of the handler. Like a
/// handler it may be dropped at any `await`, and a panic in it fails the attempt. A panic in the handler unwinds through it.
///
/// ```
/// use redrive::{Context, Next, Outcome};
///
/// # fn example(redrive: redrive::Redrive) {
/// let worker = redrive.worker().middleware(|cx: Context, next: Next| async move {
///     let (kind, began) = (cx.job.kind.clone(), std::time::Instant::now());
///     let outcome = next.run(cx).await;
///     println!("{kind}: {} after {:?}", outcome.name(), began.elapsed());
///     outcome
/// });
/// # }
/// ```
#[async_trait]
pub trait Middleware: Send + Sync + 'static {
    /// Runs the attempt, usually by calling `next`.
    async fn run(&self, cx: Context, next: Next) -> Outcome;
}

#[async_trait]
impl<F, Fut> Middleware for F
where
    F: Fn(Context, Next) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Outcome> + Send,
{
    async fn run(&self, cx: Context, next: Next) -> Outcome {
        self(cx, next).await
    }
}

/// The rest of an attempt inside a [`Middleware`]: the next middleware, or the handler.
#[derive(Clone)]
pub struct Next {
    middleware: Arc<[Arc<dyn Middleware>]>,
    /// The index of the next middleware.
    index: usize,
    endpoint: Arc<dyn Endpoint>,
}

impl Next {
    pub(crate) fn new(middleware: Arc<[Arc<dyn Middleware>]>, endpoint: Arc<dyn Endpoint>) -> Self {
        Self { middleware, index: 0, endpoint }
    }

    /// Runs the next middleware or the handler.
    pub async fn run(mut self, cx: Context) -> Outcome {
        match self.middleware.get(self.index).cloned() {
            Some(middleware) => {
                self.index += 1;
                name_panic("middleware", middleware.run(cx, self)).await
            }
            None => name_panic("handler", self.endpoint.call(cx)).await,
        }
    }
}

/// Adds the name of the code to a panic in `run`, for the error of the attempt.
async fn name_panic(name: &'static str, run: impl Future<Output = Outcome>) -> Outcome {
    CatchPanic::new(name, run).await.unwrap_or_else(Panic::resume)
}

/// A handler, independent of its type of task.
#[async_trait]
pub(crate) trait Endpoint: Send + Sync + 'static {
    async fn call(&self, cx: Context) -> Outcome;
}
