//! The service as one process: store, API and worker, started together and ended in good order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use redrive_core::store::Backend;
use redrive_core::{Invalid, Kind, StoreError};
use redrive_delivery::{Deliverer, KIND, Parts, Transport};
use redrive_worker::{Handler, KeepLog, Settings, Summary, Worker, WorkerError};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::api::{Access, Api};
use crate::keys;
use crate::listen::{ListenLimits, listen};
use crate::observe::Watch;
use crate::policies::Policies;
use crate::sessions;
use crate::view::View;

/// How long an attempt may take when neither its task nor its policy says so.
pub const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(30);
/// Time from one search for bodies without a task and for ended sessions to the next.
const COLLECT_EVERY: Duration = Duration::from_secs(60 * 60);
/// Bodies looked at in one read.
const COLLECT_ITEMS: usize = 100;

/// What this process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Roles {
    /// Answers requests.
    pub api: bool,
    /// Delivers.
    pub worker: bool,
}

impl Default for Roles {
    /// Both.
    fn default() -> Self {
        Self { api: true, worker: true }
    }
}

/// How the service runs.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where it listens.
    pub listen: SocketAddr,
    /// What it does.
    pub roles: Roles,
    /// How many connections it takes, and how long it waits for their clients.
    pub limits: ListenLimits,
    /// How its worker works. Every attempt is logged, and an attempt takes at most [`ATTEMPT_TIMEOUT`] unless this,
    /// the task or its policy says otherwise.
    pub worker: Settings,
}

impl Default for Config {
    /// `127.0.0.1:7373`, API and worker.
    fn default() -> Self {
        Self {
            listen: ([127, 0, 0, 1], 7373).into(),
            roles: Roles::default(),
            limits: ListenLimits::default(),
            worker: Settings::default(),
        }
    }
}

/// Why the service did not start, or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It would be open to everyone who can reach it.
    #[error(
        "{0} is not a loopback address, and there is no API key: make one with `redrive key create --name NAME --scope admin`, or listen on 127.0.0.1"
    )]
    NoKeys(SocketAddr),
    /// The address cannot be listened on.
    #[error("cannot listen on {0}")]
    Listen(SocketAddr, #[source] std::io::Error),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A setting is not legal.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The worker failed.
    #[error(transparent)]
    Worker(#[from] WorkerError),
}

/// A service that is ready to run; it listens already.
pub struct Service {
    api: Arc<Api>,
    listener: Option<TcpListener>,
    limits: ListenLimits,
    worker: Option<Worker>,
    closing: CancellationToken,
    open: bool,
    dress: Dress,
}

/// Puts something in front of the routes.
type Dress = Box<dyn FnOnce(Router) -> Router + Send>;

impl Service {
    /// Starts on a store; deliveries go by `transport`.
    pub async fn start(
        config: Config,
        store: Arc<dyn Backend>,
        parts: Parts,
        transport: Transport,
    ) -> Result<Self, StartError> {
        let reports = Policies::new(store.clone()).default().await?;
        let deliverer = Deliverer::new(transport, parts.clone(), store.clone(), reports);
        Self::start_with(config, store, parts, deliverer).await
    }

    /// Starts on a store; `handler` makes the deliveries.
    pub async fn start_with(
        config: Config,
        store: Arc<dyn Backend>,
        parts: Parts,
        handler: impl Handler,
    ) -> Result<Self, StartError> {
        let access = access(&config, &*store).await?;
        let open = access == Access::OpenWithoutKeys && !keys::any_ever(&*store).await?;
        let closing = CancellationToken::new();
        let node = config.worker.worker.clone();
        let api = Api::open(store.clone(), parts, access, node, closing.clone()).await?;
        let listener = if config.roles.api {
            let bound = TcpListener::bind(config.listen).await;
            Some(bound.map_err(|error| StartError::Listen(config.listen, error))?)
        } else {
            None
        };
        let worker = config.roles.worker.then(|| worker(config.worker, store, &api, handler)).transpose()?;
        let (limits, dress) = (config.limits, Box::new(|routes| routes));
        Ok(Self { api, listener, limits, worker, closing, open, dress })
    }

    /// Lets the guard of the transport that makes its deliveries follow the API keys: while the service is open, tasks
    /// may call services on this machine.
    pub async fn guarding(self, transport: Transport) -> Self {
        self.api.guard_loopback(transport).await;
        self
    }

    /// Where it listens, if it does: the port that the system chose, when that was asked for.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Whether everyone who reaches it may use it.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// A look at it that outlives it.
    pub fn view(&self) -> View {
        View::new(self.api.clone())
    }

    /// The same with something in front of its routes: pages for people, for instance.
    pub fn dressed(self, dress: impl FnOnce(Router) -> Router + Send + 'static) -> Self {
        Self { dress: Box::new(dress), ..self }
    }

    /// The routes, for a test or for another server.
    pub fn router(&self) -> Router {
        self.api.router()
    }

    /// Works until `shutdown` is ready, then ends in good order: no new requests, what is under way ends, attempts drain
    /// and what is left is released.
    pub async fn run_until(
        self,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<Option<Summary>, StartError> {
        let Self { api, listener, limits, worker, closing, open: _, dress } = self;
        let background = [
            tokio::spawn(api.clone().drive_operations()),
            tokio::spawn(api.clone().watch_itself()),
            tokio::spawn(api.clone().follow_keys(closing.clone())),
            tokio::spawn(collect(api.clone(), closing.clone())),
        ];
        let serving = serve(listener, dress(api.router()), limits, closing.clone());
        let working = work(worker, closing.clone());
        let ending = async {
            tokio::select! {
                () = shutdown => {}
                () = closing.cancelled() => {}
            }
            closing.cancel();
        };
        let ((), worked, ()) = tokio::join!(serving, working, ending);
        for task in background {
            // Each ends with `closing`; one that panicked has said so in the log.
            let _ = task.await;
        }
        worked
    }
}

/// A service that others can reach must not be open.
async fn access(config: &Config, store: &dyn Backend) -> Result<Access, StartError> {
    if config.listen.ip().is_loopback() {
        return Ok(Access::OpenWithoutKeys);
    }
    if config.roles.api && !keys::any_ever(store).await? {
        return Err(StartError::NoKeys(config.listen));
    }
    Ok(Access::KeysOnly)
}

fn worker(
    settings: Settings,
    store: Arc<dyn Backend>,
    api: &Api,
    handler: impl Handler,
) -> Result<Worker, StartError> {
    let attempt_timeout = settings.attempt_timeout.or(Some(ATTEMPT_TIMEOUT));
    let settings = Settings { log: KeepLog::All, attempt_timeout, ..settings };
    let watch = Watch {
        metrics: api.metrics.clone(),
        events: api.events.clone(),
        node_problem: api.node_problem.clone(),
    };
    Ok(Worker::new(store, settings)?.on(Kind::new(KIND)?, handler).observe(Arc::new(watch)))
}

async fn serve(
    listener: Option<TcpListener>,
    router: Router,
    limits: ListenLimits,
    closing: CancellationToken,
) {
    match listener {
        Some(listener) => listen(listener, router, limits, closing).await,
        None => closing.cancelled().await,
    }
}

/// A worker that dies takes the service down with it: nobody would deliver.
async fn work(worker: Option<Worker>, closing: CancellationToken) -> Result<Option<Summary>, StartError> {
    let Some(worker) = worker else {
        closing.cancelled().await;
        return Ok(None);
    };
    let worked = worker.run_until(closing.clone().cancelled_owned()).await;
    closing.cancel();
    Ok(Some(worked?))
}

/// Removes bodies that no task uses any more, and sessions that have ended.
async fn collect(api: Arc<Api>, closing: CancellationToken) {
    loop {
        match sessions::prune(&*api.store, crate::api::now()).await {
            Ok(sessions) => tracing::debug!(sessions, "ended sessions removed"),
            Err(error) => tracing::warn!(%error, "ended sessions could not be removed"),
        }
        tokio::select! {
            () = closing.cancelled() => return,
            () = tokio::time::sleep(COLLECT_EVERY) => {}
        }
        let age = redrive_delivery::bodies::ORPHAN_AGE;
        match api.parts.bodies.collect(&*api.store, crate::api::now(), age, COLLECT_ITEMS).await {
            Ok(bodies) => tracing::debug!(bodies, "bodies without a task removed"),
            Err(error) => tracing::warn!(%error, "bodies could not be looked through"),
        }
    }
}
