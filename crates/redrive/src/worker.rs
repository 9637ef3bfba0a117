//! A worker whose handlers take tasks instead of bytes.

use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;

use async_trait::async_trait;
use redrive_core::{Invalid, Kind, Outcome, catalog};
use redrive_worker::{Handler, Settings, Summary, Worker};

use crate::context::States;
use crate::{Context, Error, JobError, Redrive, Task};

/// A worker under construction.
pub struct TaskWorker {
    redrive: Redrive,
    settings: Settings,
    states: States,
    register: Vec<Register>,
}

type Register = Box<dyn FnOnce(Worker, &Arc<Shared>) -> Result<Worker, Invalid> + Send>;

/// What the handlers of one worker have in common.
struct Shared {
    redrive: Redrive,
    states: Arc<States>,
}

impl TaskWorker {
    pub(crate) fn new(redrive: Redrive) -> Self {
        Self { redrive, settings: Settings::default(), states: States::default(), register: Vec::new() }
    }

    /// Works under `settings`.
    pub fn settings(self, settings: Settings) -> Self {
        Self { settings, ..self }
    }

    /// Gives handlers a value of any type: [`Context::state`] finds it by that. The last one of a type counts.
    pub fn state<S: Send + Sync + 'static>(mut self, value: S) -> Self {
        self.states.put(value);
        self
    }

    /// Runs tasks of a type with `handler`. A payload that does not parse is dead at once: no retry would mend it.
    pub fn on<T, F, Fut>(mut self, handler: F) -> Self
    where
        T: Task,
        F: Fn(T, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T::Output, JobError>> + Send + 'static,
    {
        self.register.push(Box::new(|worker, shared| {
            let typed = Typed { handler, shared: shared.clone(), task: PhantomData::<fn(T)> };
            Ok(worker.on(Kind::new(T::KIND)?, typed))
        }));
        self
    }

    /// Works until `shutdown` is ready, then drains and releases.
    pub async fn run_until(self, shutdown: impl Future<Output = ()> + Send) -> Result<Summary, Error> {
        // For those who enqueue by other means than this crate and name no policy.
        if let Err(error) = catalog::default(&**self.redrive.backend()).await {
            tracing::warn!(%error, "the default policy could not be registered");
        }
        let mut worker = Worker::new(self.redrive.backend().clone(), self.settings)?;
        let shared = Arc::new(Shared { redrive: self.redrive, states: Arc::new(self.states) });
        for register in self.register {
            worker = register(worker, &shared)?;
        }
        Ok(worker.run_until(shutdown).await?)
    }
}

struct Typed<F, T> {
    handler: F,
    shared: Arc<Shared>,
    task: PhantomData<fn(T)>,
}

#[async_trait]
impl<T, F, Fut> Handler for Typed<F, T>
where
    T: Task,
    F: Fn(T, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T::Output, JobError>> + Send + 'static,
{
    async fn run(&self, attempt: redrive_worker::Context) -> Outcome {
        let Shared { redrive, states } = &*self.shared;
        let cx = Context::new(attempt, redrive.clone(), states.clone());
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
