//! The worker: a store, settings, handlers, and one future that does everything.

use std::future::Future;
use std::sync::Arc;

use redrive_core::panics::catch;
use redrive_core::store::Backend;
use redrive_core::{Invalid, Kind};

use crate::count::Summary;
use crate::crew::Crew;
use crate::engine::{Engine, Handlers};
use crate::handler::Handler;
use crate::observe::{Observer, Observers};
use crate::settings::Settings;
use crate::settle::Results;
use crate::shutdown::shut_down;

/// Claims jobs from a store, runs their handlers and settles what comes of them.
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
/// let policy = catalog::put_inline(&*store, &Policy::default()).await?;
/// let greet = Kind::new("greet")?;
/// let job = NewJob::new(JobId(uuid::Uuid::from_u128(1)), greet.clone(), policy, b"world".to_vec());
/// store.enqueue(vec![job]).await?;
///
/// let (tell, told) = tokio::sync::oneshot::channel();
/// let tell = std::sync::Mutex::new(Some(tell));
/// let worker = Worker::new(store, Settings::default())?.on(greet, move |cx: Context| {
///     let tell = tell.lock().unwrap().take();
///     async move {
///         let text = format!("hello {}", String::from_utf8_lossy(&cx.job.payload));
///         tell.map(|tell| tell.send(text));
///         Outcome::Done(None)
///     }
/// });
/// let summary = worker.run_until(async { assert_eq!(told.await.unwrap(), "hello world") }).await?;
/// assert_eq!(summary.succeeded, 1);
/// # Ok(())
/// # }
/// ```
pub struct Worker {
    backend: Arc<dyn Backend>,
    settings: Settings,
    handlers: Handlers,
    twice: Option<Kind>,
    observers: Observers,
}

impl Worker {
    /// A worker on `backend`; refuses settings it could not work under.
    ///
    /// Several workers of one process on one store should share the `Arc`: they then never take over each other's jobs,
    /// whatever the clock does.
    pub fn new(backend: Arc<dyn Backend>, settings: Settings) -> Result<Self, Invalid> {
        settings.check()?;
        let (handlers, observers) = (Handlers::new(), Observers::default());
        Ok(Self { backend, settings, handlers, twice: None, observers })
    }

    /// Runs jobs of `kind` with `handler`. A second handler for the same kind makes [`Worker::run_until`] refuse.
    ///
    /// Jobs of other kinds are left to other workers; a worker without handlers only reclaims and prunes.
    pub fn on(mut self, kind: Kind, handler: impl Handler) -> Self {
        if self.handlers.insert(kind.clone(), Arc::new(handler)).is_some() {
            self.twice.get_or_insert(kind);
        }
        self
    }

    /// Tells `observer` what happens, after the observers that were added before.
    pub fn observe(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observers.add(observer);
        self
    }

    /// Works until `shutdown` is ready, then ends in good order: running handlers get [`Settings::drain`] to finish,
    /// what is left is released at no cost of an attempt, and every result is settled.
    ///
    /// Dropping this future is a crash instead: everything stops where it is, and leases run out.
    pub async fn run_until(self, shutdown: impl Future<Output = ()> + Send) -> Result<Summary, WorkerError> {
        if let Some(kind) = self.twice {
            return Err(WorkerError::TwoHandlers(kind));
        }
        let (results, lanes) = Results::new(&self.handlers);
        let observer = Arc::new(self.observers);
        let engine = Arc::new(Engine::new(self.backend, self.settings, self.handlers, observer, results));
        let mut crew = Crew::start(engine.clone(), lanes)?;
        tokio::select! {
            biased;
            died = crew.died() => return Err(died),
            () = shutdown => {}
        }
        shut_down(&mut crew).await?;
        let summary = engine.counts.summary();
        if let Err(panic) = catch("the destructor of a handler or an observer", || drop((crew, engine))) {
            tracing::error!(%panic, "the worker has ended in good order");
        }
        Ok(summary)
    }
}

/// Why a worker did not work, or did not end in good order.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// Each kind has one handler.
    #[error("two handlers for jobs of kind {0}")]
    TwoHandlers(Kind),
    /// The system refused a thread for heartbeats.
    #[error("the heartbeat thread could not be started")]
    Heartbeat(#[source] std::io::Error),
    /// A part of the worker panicked, most likely in the store; its leases run out.
    #[error("the worker's part for {0} has panicked")]
    Died(&'static str),
}
