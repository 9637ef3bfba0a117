//! What runs around each attempt of a worker.

use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use redrive_core::{CatchPanic, Outcome, Panic};

use crate::Context;

/// Runs around every attempt of a worker. An async closure from [`Context`] and [`Next`] to [`Outcome`] is one.
///
/// It may look at the job before, answer without calling `next`, and look at or change the outcome after. Like a handler
/// it may be dropped at any `await`, and its panic counts as a failed attempt. A panic of the handler unwinds through it.
///
/// ```
/// use redrive::{Context, Next, Outcome};
///
/// # fn example(redrive: redrive::Redrive) {
/// let worker = redrive.worker().around(|cx: Context, next: Next| async move {
///     let (kind, began) = (cx.job.kind.clone(), std::time::Instant::now());
///     let outcome = next.run(cx).await;
///     println!("{kind}: {} after {:?}", outcome.name(), began.elapsed());
///     outcome
/// });
/// # }
/// ```
#[async_trait]
pub trait Middleware: Send + Sync + 'static {
    /// Makes the attempt, usually by way of `next`.
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

/// What lies inside a [`Middleware`]: the next one, or the handler.
#[derive(Clone)]
pub struct Next {
    around: Arc<[Arc<dyn Middleware>]>,
    passed: usize,
    endpoint: Arc<dyn Endpoint>,
}

impl Next {
    pub(crate) fn new(around: Arc<[Arc<dyn Middleware>]>, endpoint: Arc<dyn Endpoint>) -> Self {
        Self { around, passed: 0, endpoint }
    }

    /// Goes on inwards.
    pub async fn run(mut self, cx: Context) -> Outcome {
        match self.around.get(self.passed).cloned() {
            Some(middleware) => {
                self.passed += 1;
                named("middleware", middleware.run(cx, self)).await
            }
            None => named("handler", self.endpoint.call(cx)).await,
        }
    }
}

/// Gives a panic of `run` its name, for the attempt that it fails.
async fn named(what: &'static str, run: impl Future<Output = Outcome>) -> Outcome {
    CatchPanic::new(what, run).await.unwrap_or_else(Panic::resume)
}

/// A handler whose type of task is out of sight.
#[async_trait]
pub(crate) trait Endpoint: Send + Sync + 'static {
    async fn call(&self, cx: Context) -> Outcome;
}
