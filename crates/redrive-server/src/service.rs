//! The service as one process: API, worker and background loops, started and shut down together.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use redrive_core::store::{Backend, Stats};
use redrive_core::{Invalid, Kind, StoreError};
use redrive_delivery::gate::OriginStatus;
use redrive_delivery::{Deliverer, DeliveryParts, KIND, Transport};
use redrive_worker::{AttemptLogging, Handler, Settings, Summary, Worker, WorkerError};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::{Access, Api};
use crate::keys;
use crate::listen::{ListenLimits, listen};
use crate::policies::Policies;
use crate::sessions;
use crate::worker_observer::WorkerObserver;

/// The timeout of an attempt if neither its task nor its policy sets one.
pub const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval between removals of unused bodies, unused inline policies and ended sessions.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// Bodies that a cleanup reads at once.
const CLEANUP_PAGE_ITEMS: usize = 100;

/// The roles of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Roles {
    /// It serves the API.
    pub api: bool,
    /// It delivers tasks.
    pub worker: bool,
}

impl Default for Roles {
    /// API and worker.
    fn default() -> Self {
        Self { api: true, worker: true }
    }
}

/// The configuration of the service.
#[derive(Debug, Clone)]
pub struct Config {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// API, worker, or both.
    pub roles: Roles,
    /// The limits of connections, and the timeouts for their clients.
    pub limits: ListenLimits,
    /// The settings of the worker. The service logs every attempt. Without `attempt_timeout`, [`ATTEMPT_TIMEOUT`] applies to
    /// tasks that have no timeout of their own or of their policy.
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

/// Why the service did not start, or stopped with an error.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Other machines can reach the address, and there is no API key.
    #[error(
        "{0} is not a loopback address, and there is no API key: create one with `redrive key create --name NAME --scope admin`, or listen on 127.0.0.1"
    )]
    NoKeys(SocketAddr),
    /// The listener could not be opened.
    #[error("cannot listen on {0}")]
    Listen(SocketAddr, #[source] std::io::Error),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A setting is invalid.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The worker failed.
    #[error(transparent)]
    Worker(#[from] WorkerError),
}

/// A service that is ready to run. With the API role, it is already listening.
pub struct Service {
    api: Arc<Api>,
    listener: Option<TcpListener>,
    limits: ListenLimits,
    worker: Option<Worker>,
    closing: CancellationToken,
    open: bool,
    wrap_router: RouterWrapper,
}

/// Adds routes or layers to the router of the service.
type RouterWrapper = Box<dyn FnOnce(Router) -> Router + Send>;

impl Service {
    /// Starts on a store. `transport` sends the deliveries.
    pub async fn start(
        config: Config,
        store: Arc<dyn Backend>,
        parts: DeliveryParts,
        transport: Transport,
    ) -> Result<Self, StartError> {
        let callback_policy = Policies::new(store.clone()).default().await?;
        let deliverer = Deliverer::new(transport, parts.clone(), store.clone(), callback_policy);
        Self::start_with(config, store, parts, deliverer).await
    }

    /// Starts on a store, with `handler` instead of the usual deliveries.
    pub async fn start_with(
        config: Config,
        store: Arc<dyn Backend>,
        parts: DeliveryParts,
        handler: impl Handler,
    ) -> Result<Self, StartError> {
        let access = access(&config, &*store).await?;
        let open = access == Access::OpenWithoutKeys && !keys::ever_created(&*store).await?;
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
        let (limits, wrap_router) = (config.limits, Box::new(|routes| routes));
        Ok(Self { api, listener, limits, worker, closing, open, wrap_router })
    }

    /// Makes the guard of `transport` follow the API keys: tasks may call loopback addresses only while the service is open.
    pub async fn with_loopback_guard(self, transport: Transport) -> Self {
        self.api.guard_loopback(transport).await;
        self
    }

    /// The address of the listener, with the real port if the configuration asked for port 0. `None` without the API role.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Whether the service accepts calls without a key.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// A handle that reads the state of the service, also while it runs.
    pub fn monitor(&self) -> ServiceMonitor {
        ServiceMonitor(self.api.clone())
    }

    /// Passes the router through `wrap_router` before it is served, for example to add the console.
    pub fn wrap_router(self, wrap_router: impl FnOnce(Router) -> Router + Send + 'static) -> Self {
        Self { wrap_router: Box::new(wrap_router), ..self }
    }

    /// The routes, for a test or for another server.
    pub fn router(&self) -> Router {
        self.api.router()
    }

    /// Runs until `shutdown` is ready, and then shuts down: it accepts no new requests, answers the current ones, waits for
    /// running attempts and releases those that do not end in time.
    pub async fn run_until(
        self,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<Option<Summary>, StartError> {
        let Self { api, listener, limits, worker, closing, open: _, wrap_router } = self;
        let background = [
            tokio::spawn(api.clone().run_operations()),
            tokio::spawn(api.clone().monitor_node()),
            tokio::spawn(api.clone().follow_keys(closing.clone())),
            tokio::spawn(clean_up(api.clone(), closing.clone())),
        ];
        let serving = serve(listener, wrap_router(api.router()), limits, closing.clone());
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
            // Each one ends when `closing` is cancelled. A panic has already been logged.
            let _ = task.await;
        }
        worked
    }
}

/// Reads the state of a service from within its process.
#[derive(Clone)]
pub struct ServiceMonitor(Arc<Api>);

impl ServiceMonitor {
    /// The number of jobs by queue and state.
    pub async fn stats(&self) -> Result<Stats, StoreError> {
        self.0.store.stats().await
    }

    /// The gates of this node.
    pub fn gates(&self) -> Vec<OriginStatus> {
        self.0.parts.gates.status(Instant::now())
    }
}

/// Decides who may call the service without a key. Rejects a service without keys that other machines can reach.
async fn access(config: &Config, store: &dyn Backend) -> Result<Access, StartError> {
    if config.listen.ip().is_loopback() {
        return Ok(Access::OpenWithoutKeys);
    }
    if config.roles.api && !keys::ever_created(store).await? {
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
    let settings = Settings { log: AttemptLogging::All, attempt_timeout, ..settings };
    let observer = WorkerObserver {
        metrics: api.metrics.clone(),
        events: api.events.clone(),
        node_problem: api.node_problem.clone(),
    };
    Ok(Worker::new(store, settings)?.on(Kind::new(KIND)?, handler).observe(Arc::new(observer)))
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

/// Runs the worker. If it fails, the service shuts down, because nothing would deliver its tasks.
async fn work(worker: Option<Worker>, closing: CancellationToken) -> Result<Option<Summary>, StartError> {
    let Some(worker) = worker else {
        closing.cancelled().await;
        return Ok(None);
    };
    let summary = worker.run_until(closing.clone().cancelled_owned()).await;
    closing.cancel();
    Ok(Some(summary?))
}

/// Removes unused bodies, unused inline policies and ended sessions.
async fn clean_up(api: Arc<Api>, closing: CancellationToken) {
    loop {
        match sessions::prune(&*api.store, crate::api::now()).await {
            Ok(sessions) => tracing::debug!(sessions, "removed ended sessions"),
            Err(error) => tracing::warn!(%error, "cannot remove ended sessions"),
        }
        tokio::select! {
            () = closing.cancelled() => return,
            () = tokio::time::sleep(CLEANUP_INTERVAL) => {}
        }
        let age = redrive_delivery::bodies::ORPHAN_AGE;
        match api.parts.bodies.collect(&*api.store, crate::api::now(), age, CLEANUP_PAGE_ITEMS).await {
            Ok(bodies) => tracing::debug!(bodies, "removed bodies without a task"),
            Err(error) => tracing::warn!(%error, "cannot remove bodies without a task"),
        }
        match api.redrive.collect_policies_if_due().await {
            Ok(policies) => tracing::debug!(policies, "removed unused inline policies"),
            Err(error) => tracing::warn!(%error, "cannot remove unused inline policies"),
        }
    }
}
