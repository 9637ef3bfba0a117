//! A worker whose handlers take tasks instead of bytes.

use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use redrive_core::store::Backend;
use redrive_core::{Invalid, Kind, Outcome, catalog};
use redrive_worker::{Context, Handler, Settings, Summary, Worker};

use crate::{Error, JobError, Task};

/// A worker under construction.
pub struct TaskWorker {
    backend: Arc<dyn Backend>,
    settings: Settings,
    register: Vec<Register>,
}

type Register = Box<dyn FnOnce(Worker) -> Result<Worker, Invalid> + Send>;

impl TaskWorker {
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Self {
        Self { backend, settings: Settings::default(), register: Vec::new() }
    }

    /// Works under `settings`.
    pub fn settings(self, settings: Settings) -> Self {
        Self { settings, ..self }
    }

    /// Runs tasks of a type with `handler`. A payload that does not parse is dead at once: no retry would mend it.
    pub fn on<T, F, Fut>(mut self, handler: F) -> Self
    where
        T: Task,
        F: Fn(T, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T::Output, JobError>> + Send + 'static,
    {
        let handler = Typed { handler, task: std::marker::PhantomData::<fn(T)> };
        self.register.push(Box::new(|worker| Ok(worker.on(Kind::new(T::KIND)?, handler))));
        self
    }

    /// Works until `shutdown` is ready, then drains and releases.
    pub async fn run_until(self, shutdown: impl Future<Output = ()> + Send) -> Result<Summary, Error> {
        // For those who enqueue by other means than this crate and name no policy.
        if let Err(error) = catalog::default(&*self.backend).await {
            tracing::warn!(%error, "the default policy could not be registered");
        }
        let mut worker = Worker::new(self.backend, self.settings)?;
        for register in self.register {
            worker = register(worker)?;
        }
        Ok(worker.run_until(shutdown).await?)
    }
}

struct Typed<F, T> {
    handler: F,
    task: std::marker::PhantomData<fn(T)>,
}

#[async_trait]
impl<T, F, Fut> Handler for Typed<F, T>
where
    T: Task,
    F: Fn(T, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T::Output, JobError>> + Send + 'static,
{
    async fn run(&self, cx: Context) -> Outcome {
        let task: T = match serde_json::from_slice(&cx.job.payload) {
            Ok(task) => task,
            Err(error) => return Outcome::reject(format!("the payload is no {}: {error}", T::KIND)),
        };
        match (self.handler)(task, cx).await {
            Ok(output) => done(&output, T::KIND),
            Err(JobError(outcome)) => outcome,
        }
    }
}

fn done<O: serde::Serialize>(output: &O, kind: &str) -> Outcome {
    match serde_json::to_vec(output) {
        Ok(json) if json == b"null" => Outcome::Done(None),
        Ok(json) => Outcome::Done(Some(json)),
        Err(error) => Outcome::reject(format!("the output of a {kind} cannot be written as JSON: {error}")),
    }
}
