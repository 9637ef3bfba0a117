//! Runs one attempt: reads the payload and the stored steps, runs the middleware and the handler, and writes the output.

use std::collections::BTreeMap;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use redrive_core::{Deferral, Job, Outcome, Panic};
use redrive_worker::{Handler, Settler};
use tracing::Instrument as _;

use super::middleware::{Endpoint, Middleware, Next};
use crate::context::States;
use crate::durable::{Determinism, History};
use crate::trace::handle_span;
use crate::{Context, JobError, Redrive, Task, json};

/// How long an attempt is deferred if the stored steps cannot be read.
const STEPS_RETRY: Duration = Duration::from_secs(1);

/// The parts that all handlers of a worker share.
pub(crate) struct HandlerShared {
    pub(crate) redrive: Redrive,
    pub(crate) states: Arc<States>,
    pub(crate) middleware: Arc<[Arc<dyn Middleware>]>,
    /// The settlers of the kinds with an on_end closure, by kind.
    pub(crate) settlers: BTreeMap<&'static str, Arc<dyn Settler>>,
}

/// Adapts a handler of one task type to the handler trait of the engine.
pub(crate) struct TaskHandler {
    shared: Arc<HandlerShared>,
    endpoint: Arc<dyn Endpoint>,
    determinism: Determinism,
    settler: Option<Arc<dyn Settler>>,
}

impl TaskHandler {
    pub(crate) fn new<T, F, Fut>(shared: Arc<HandlerShared>, handler: F) -> Self
    where
        T: Task,
        F: Fn(T, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T::Output, JobError>> + Send + 'static,
    {
        let endpoint = Arc::new(TypedEndpoint { handler, task: PhantomData::<fn(T)> });
        let settler = shared.settlers.get(T::KIND).cloned();
        Self { shared, endpoint, determinism: T::determinism(), settler }
    }
}

#[async_trait]
impl Handler for TaskHandler {
    async fn run(&self, mut attempt: redrive_worker::Context) -> Outcome {
        let HandlerShared { redrive, states, middleware, .. } = &*self.shared;
        let span = handle_span(&attempt.job);
        match redrive.fetch_payload(&attempt.job).await {
            Ok(None) => {}
            Ok(Some(payload)) => attempt.job = Arc::new(Job { payload, ..Job::clone(&attempt.job) }),
            Err(outcome) => return outcome,
        }
        let history = match History::load(attempt.clone(), self.determinism).await {
            Ok(history) => history,
            Err(error) => {
                tracing::warn!(job = %attempt.job.id, %error, "attempt deferred because its steps could not be read");
                let reason = format!("the stored steps could not be read: {error}");
                return Outcome::Defer(Deferral::of_job(STEPS_RETRY, reason));
            }
        };
        let cx = Context::new(attempt, redrive.clone(), states.clone(), history);
        Next::new(middleware.clone(), self.endpoint.clone()).run(cx).instrument(span).await
    }

    fn settler(&self) -> Option<&dyn Settler> {
        self.settler.as_deref()
    }
}

/// Parses the payload, calls the handler, and writes the output.
struct TypedEndpoint<F, T> {
    handler: F,
    task: PhantomData<fn(T)>,
}

#[async_trait]
impl<T, F, Fut> Endpoint for TypedEndpoint<F, T>
where
    T: Task,
    F: Fn(T, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T::Output, JobError>> + Send + 'static,
{
    async fn call(&self, cx: Context) -> Outcome {
        let read = json::catch_read(T::KIND, &cx.job.payload).unwrap_or_else(Panic::resume);
        let task: T = match read {
            Ok(task) => task,
            Err(error) => {
                return Outcome::reject(format!("the payload cannot be read as a {}: {error}", T::KIND));
            }
        };
        let history = cx.history.clone();
        let ended = tokio::select! {
            biased;
            ended = (self.handler)(task, cx) => ended,
            outcome = history.suspended() => return outcome,
        };
        match ended.and_then(|output| history.check_all_replayed().map(|()| output)) {
            Ok(output) => write_output(&output, T::KIND),
            Err(JobError(outcome)) => outcome,
        }
    }
}

fn write_output<O: serde::Serialize>(output: &O, kind: &str) -> Outcome {
    match json::catch_write(format_args!("{kind} output"), output).unwrap_or_else(Panic::resume) {
        Ok(json) if json == b"null" => Outcome::Done(None),
        Ok(json) => Outcome::Done(Some(json)),
        Err(error) => Outcome::reject(format!("the output of a {kind} cannot be written as JSON: {error}")),
    }
}
