//! The worker: a store, settings and handlers, and the tasks that run them.

use std::future::Future;
use std::sync::{Arc, Mutex};

use redrive_core::panics::catch;
use redrive_core::store::Backend;
use redrive_core::{Invalid, Kind};
use tokio::task::JoinSet;

use crate::claim::RunningAttempts;
use crate::engine::{Engine, Handlers, lock};
use crate::handler::Handler;
use crate::heartbeat::Heartbeat;
use crate::observe::{Observer, Observers};
use crate::settings::Settings;
use crate::settle::{SettlementQueues, SettlementWriter};
use crate::shutdown::shut_down;
use crate::summary::Summary;
use crate::{claim, prune, reclaim, seal};

/// Claims jobs from a store, runs their handlers and settles the outcomes.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
///
/// use redrive_core::{JobId, Kind, NewJob, Outcome, Policy, Store, catalog};
/// use redrive_testkit::{ManualClock, ModelStore};
/// use redrive_worker::{Context, Settings, Worker};
///
/// let store = Arc::new(ModelStore::new(ManualClock::new()));
/// let policy = catalog::put_inline(&*store, &Policy::default(), redrive_core::Timestamp::default()).await?;
/// let greet = Kind::new("greet")?;
/// let job = NewJob::new(JobId(uuid::Uuid::from_u128(1)), greet.clone(), policy, b"world".to_vec());
/// store.enqueue(vec![job]).await?;
///
/// let (sender, receiver) = tokio::sync::oneshot::channel();
/// let sender = std::sync::Mutex::new(Some(sender));
/// let worker = Worker::new(store, Settings::default())?.on(greet, move |cx: Context| {
///     let sender = sender.lock().unwrap().take();
///     async move {
///         let text = format!("hello {}", String::from_utf8_lossy(&cx.job.payload));
///         sender.map(|sender| sender.send(text));
///         Outcome::Done(None)
///     }
/// });
/// let summary = worker.run_until(async { assert_eq!(receiver.await.unwrap(), "hello world") }).await?;
/// assert_eq!(summary.succeeded, 1);
/// # Ok(())
/// # }
/// ```
pub struct Worker {
    backend: Arc<dyn Backend>,
    settings: Settings,
    handlers: Handlers,
    /// The first kind that got a second handler.
    duplicate: Option<Kind>,
    observers: Observers,
}

impl Worker {
    /// Creates a worker on `backend`. Fails if the settings are invalid.
    ///
    /// Several workers of one process on one store should share the `Arc`. Then they never reclaim each other's jobs, even if
    /// the store's clock jumps.
    pub fn new(backend: Arc<dyn Backend>, settings: Settings) -> Result<Self, Invalid> {
        settings.check()?;
        let (handlers, observers) = (Handlers::new(), Observers::default());
        Ok(Self { backend, settings, handlers, duplicate: None, observers })
    }

    /// Runs jobs of `kind` with `handler`. With two handlers for one kind, [`Worker::run_until`] returns an error.
    ///
    /// The worker does not claim jobs of other kinds. Without any handler it only reclaims and prunes.
    pub fn on(mut self, kind: Kind, handler: impl Handler) -> Self {
        if self.handlers.insert(kind.clone(), Arc::new(handler)).is_some() {
            self.duplicate.get_or_insert(kind);
        }
        self
    }

    /// Adds an observer. Observers are called in the order in which they were added.
    pub fn observe(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observers.add(observer);
        self
    }

    /// Works until `shutdown` completes, then shuts down: running handlers get [`Settings::drain`] to finish, attempts that
    /// still run are released without being charged, and every outcome is settled.
    ///
    /// Dropping this future has the effect of a crash: everything stops at once, and the leases run out.
    pub async fn run_until(self, shutdown: impl Future<Output = ()> + Send) -> Result<Summary, WorkerError> {
        if let Some(kind) = self.duplicate {
            return Err(WorkerError::DuplicateHandler(kind));
        }
        let (settlements, writers) = SettlementQueues::new(&self.handlers);
        let observer = Arc::new(self.observers);
        let engine = Arc::new(Engine::new(self.backend, self.settings, self.handlers, observer, settlements));
        let mut tasks = WorkerTasks::start(engine.clone(), writers)?;
        tokio::select! {
            biased;
            error = tasks.panicked() => return Err(error),
            () = shutdown => {}
        }
        shut_down(&mut tasks).await?;
        let summary = engine.counts.summary();
        if let Err(panic) = catch("the destructor of a handler or an observer", || drop((tasks, engine))) {
            tracing::error!(%panic, "a destructor panicked after the worker had shut down");
        }
        Ok(summary)
    }
}

/// Why a worker did not start, or stopped without a shutdown.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// A kind has more than one handler.
    #[error("two handlers for jobs of kind {0}: register one")]
    DuplicateHandler(Kind),
    /// The operating system did not start the heartbeat thread.
    #[error("the heartbeat thread could not be started")]
    Heartbeat(#[source] std::io::Error),
    /// A task of the worker panicked, most likely in the store. The worker's leases run out.
    #[error("the worker's task for {0} has panicked")]
    TaskPanicked(&'static str),
}

/// The tasks of one run of a worker. Dropping this value stops all of them at once, like a crash.
pub(crate) struct WorkerTasks {
    pub(crate) engine: Arc<Engine>,
    /// Claim, reclaim, prune and the seal check. They end when the shutdown begins.
    pub(crate) intake: JoinSet<()>,
    /// The settlement writers. They end when everything is settled.
    pub(crate) writers: JoinSet<()>,
    pub(crate) heartbeat: Heartbeat,
    attempts: Arc<RunningAttempts>,
}

impl WorkerTasks {
    pub(crate) fn start(engine: Arc<Engine>, writers: Vec<SettlementWriter>) -> Result<Self, WorkerError> {
        let heartbeat = Heartbeat::start(&engine).map_err(WorkerError::Heartbeat)?;
        let attempts = Arc::new(Mutex::new(Some(JoinSet::new())));
        let mut writer_tasks = JoinSet::new();
        for writer in writers {
            writer_tasks.spawn(writer.run(engine.clone()));
        }
        let mut intake = JoinSet::new();
        intake.spawn(reclaim::run(engine.clone()));
        let backlog = Arc::new(claim::DueBacklog::default());
        intake.spawn(claim::run(engine.clone(), attempts.clone(), backlog.clone()));
        for _ in 0..claim::BACKLOG_CLAIMS {
            intake.spawn(claim::run_during_backlog(engine.clone(), attempts.clone(), backlog.clone()));
        }
        intake.spawn(prune::run(engine.clone()));
        intake.spawn(seal::run(engine.clone()));
        Ok(Self { engine, intake, writers: writer_tasks, heartbeat, attempts })
    }

    /// Waits until a task ends. Before a shutdown, a task ends only by a panic.
    pub(crate) async fn panicked(&mut self) -> WorkerError {
        tokio::select! {
            biased;
            _ = self.intake.join_next() => WorkerError::TaskPanicked("claim, reclaim or prune"),
            _ = self.writers.join_next() => WorkerError::TaskPanicked("settle"),
            () = self.heartbeat.ended() => WorkerError::TaskPanicked("heartbeat"),
        }
    }
}

impl Drop for WorkerTasks {
    /// Takes the set of attempts out of the mutex, because the claim task may run on another thread and must not add to it.
    fn drop(&mut self) {
        drop(lock(&self.attempts).take());
        self.engine.leases.remove_ended();
    }
}
