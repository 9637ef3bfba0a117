//! From a claimed job to its handler and back: the middleware, the payload, the call, the output.

use std::collections::BTreeMap;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use redrive_core::{Deferral, Job, Outcome, Panic};
use redrive_worker::{Handler, Settler};
use tracing::Instrument as _;

use crate::context::States;
use crate::durable::{Determinism, History};
use crate::middleware::{Endpoint, Middleware, Next};
use crate::trace::handle_span;
use crate::{Context, JobError, Redrive, Task, json};

/// How long an attempt is put off whose steps cannot be read.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// What the handlers of one worker have in common.
pub(crate) struct Shared {
    pub(crate) redrive: Redrive,
    pub(crate) states: Arc<States>,
    pub(crate) around: Arc<[Arc<dyn Middleware>]>,
    /// What settles jobs of some kinds in the store's place.
    pub(crate) endings: BTreeMap<&'static str, Arc<dyn Settler>>,
}

/// A typed handler as the engine sees it.
pub(crate) struct Handle {
    shared: Arc<Shared>,
    endpoint: Arc<dyn Endpoint>,
    determinism: Determinism,
    settler: Option<Arc<dyn Settler>>,
}

impl Handle {
    pub(crate) fn new<T, F, Fut>(shared: Arc<Shared>, handler: F) -> Self
    where
        T: Task,
        F: Fn(T, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T::Output, JobError>> + Send + 'static,
    {
        let endpoint = Arc::new(Typed { handler, task: PhantomData::<fn(T)> });
        let settler = shared.endings.get(T::KIND).cloned();
        Self { shared, endpoint, determinism: T::determinism(), settler }
    }
}

#[async_trait]
impl Handler for Handle {
    async fn run(&self, mut attempt: redrive_worker::Context) -> Outcome {
        let Shared { redrive, states, around, .. } = &*self.shared;
        let span = handle_span(&attempt.job);
        match redrive.fetch(&attempt.job).await {
            Ok(None) => {}
            Ok(Some(payload)) => attempt.job = Arc::new(Job { payload, ..Job::clone(&attempt.job) }),
            Err(outcome) => return outcome,
        }
        let history = match History::load(attempt.clone(), self.determinism).await {
            Ok(history) => history,
            Err(error) => {
                tracing::warn!(job = %attempt.job.id, %error, "attempt put off: its steps could not be read");
                let reason = format!("its steps could not be read: {error}");
                return Outcome::Defer(Deferral::of_job(READ_AGAIN, reason));
            }
        };
        let cx = Context::new(attempt, redrive.clone(), states.clone(), history);
        Next::new(around.clone(), self.endpoint.clone()).run(cx).instrument(span).await
    }

    fn settler(&self) -> Option<&dyn Settler> {
        self.settler.as_deref()
    }
}

struct Typed<F, T> {
    handler: F,
    task: PhantomData<fn(T)>,
}

#[async_trait]
impl<T, F, Fut> Endpoint for Typed<F, T>
where
    T: Task,
    F: Fn(T, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T::Output, JobError>> + Send + 'static,
{
    async fn call(&self, cx: Context) -> Outcome {
        let read = json::catch_read(T::KIND, &cx.job.payload).unwrap_or_else(Panic::resume);
        let task: T = match read {
            Ok(task) => task,
            Err(error) => return Outcome::reject(format!("the payload is no {}: {error}", T::KIND)),
        };
        let history = cx.history.clone();
        let ended = tokio::select! {
            biased;
            ended = (self.handler)(task, cx) => ended,
            pause = history.paused() => return pause,
        };
        match ended.and_then(|output| history.left_over().map_or(Ok(output), Err)) {
            Ok(output) => done(&output, T::KIND),
            Err(JobError(outcome)) => outcome,
        }
    }
}

fn done<O: serde::Serialize>(output: &O, kind: &str) -> Outcome {
    match json::catch_write(format_args!("{kind} output"), output).unwrap_or_else(Panic::resume) {
        Ok(json) if json == b"null" => Outcome::Done(None),
        Ok(json) => Outcome::Done(Some(json)),
        Err(error) => Outcome::reject(format!("the output of a {kind} cannot be written as JSON: {error}")),
    }
}
