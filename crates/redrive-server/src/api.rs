//! The state that all routes share.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use redrive::Redrive;
use redrive_core::store::Backend;
use redrive_core::{StoreError, Timestamp, WorkerId};
use redrive_delivery::DeliveryParts;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::auth::Keyring;
use crate::auth_limit::FailedLogins;
use crate::events::Events;
use crate::loopback::LoopbackGuard;
use crate::metrics::Metrics;
use crate::node_monitor::LocalProblem;
use crate::policies::Policies;
use crate::readiness::Readiness;
use crate::series::SeriesRecorder;
use crate::{node_monitor, operations, routes};

/// The state that all routes share.
pub struct Api {
    pub(crate) store: Arc<dyn Backend>,
    /// The library's handle on the same store. Operator actions with side effects are implemented there, once.
    pub(crate) redrive: Redrive,
    pub(crate) parts: DeliveryParts,
    pub(crate) keyring: Arc<Keyring>,
    pub(crate) failed_logins: FailedLogins,
    pub(crate) policies: Policies,
    pub(crate) events: Arc<Events>,
    pub(crate) metrics: Arc<Metrics>,
    /// The name of this node, which is also the name of its worker in leases.
    pub(crate) node: WorkerId,
    /// When this node started, by its own clock.
    pub(crate) started_at: Timestamp,
    /// The problem that keeps this node from making attempts, if any.
    pub(crate) node_problem: Arc<LocalProblem>,
    /// Whether tasks may call services on this machine.
    pub(crate) loopback: Arc<LoopbackGuard>,
    /// Counts over time, for charts.
    pub(crate) series_recorder: SeriesRecorder,
    /// The result of the last readiness check.
    pub(crate) readiness: Readiness,
    /// Wakes the runner of operations when this node has created one.
    pub(crate) operation_begun: Notify,
    closing: CancellationToken,
}

/// Who may call a service that never had a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Everyone, with all permissions. For a service that only this machine can reach.
    OpenWithoutKeys,
    /// Nobody.
    KeysOnly,
}

impl Api {
    /// Opens the API on a store and registers the default policy. `node` is the name of this node. Event streams and background
    /// loops end when `closing` is cancelled.
    pub async fn open(
        store: Arc<dyn Backend>,
        parts: DeliveryParts,
        access: Access,
        node: WorkerId,
        closing: CancellationToken,
    ) -> Result<Arc<Self>, StoreError> {
        let api = Self {
            keyring: Arc::new(Keyring::new(store.clone(), access == Access::OpenWithoutKeys)),
            failed_logins: FailedLogins::default(),
            policies: Policies::new(store.clone()),
            events: Arc::new(Events::new(closing.clone())),
            metrics: Arc::new(Metrics::new()),
            node,
            started_at: now(),
            node_problem: Arc::default(),
            loopback: Arc::default(),
            series_recorder: SeriesRecorder::default(),
            readiness: Readiness::default(),
            operation_begun: Notify::new(),
            redrive: Redrive::on(store.clone()),
            parts,
            store,
            closing,
        };
        api.policies.default().await?;
        Ok(Arc::new(api))
    }

    /// The router with every route. `/openapi.json` describes them.
    pub fn router(self: &Arc<Self>) -> Router {
        routes::router(self.clone())
    }

    /// Whether the service is shutting down.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.is_cancelled()
    }

    /// Takes samples and writes heartbeats until the service shuts down. Each node runs this once.
    pub async fn monitor_node(self: Arc<Self>) {
        let closing = self.closing.clone();
        node_monitor::run(self, closing).await;
    }

    /// Runs operations until the service shuts down. Each node of the service runs this once.
    pub async fn run_operations(self: Arc<Self>) {
        let closing = self.closing.clone();
        operations::run(self, closing).await;
    }
}

/// The time of the wall clock, for display. The store's clock decides what is due.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_ms(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
