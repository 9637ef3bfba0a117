//! What the routes share, and the router made of them.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use redrive::Redrive;
use redrive_core::store::Backend;
use redrive_core::{StoreError, Timestamp, WorkerId};
use redrive_delivery::Parts;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::auth::Keyring;
use crate::auth_limit::FailedLogins;
use crate::events::Events;
use crate::loopback::LoopbackGuard;
use crate::metrics::Metrics;
use crate::node_problem::CurrentProblem;
use crate::policies::Policies;
use crate::readiness::Readiness;
use crate::series::Recent;
use crate::{operations, routes, sample};

/// What the routes share.
pub struct Api {
    pub(crate) store: Arc<dyn Backend>,
    /// The library's handle on the same store: what an operator's verb entails is written there, once.
    pub(crate) redrive: Redrive,
    pub(crate) parts: Parts,
    pub(crate) keyring: Arc<Keyring>,
    pub(crate) failed_logins: FailedLogins,
    pub(crate) policies: Policies,
    pub(crate) events: Arc<Events>,
    pub(crate) metrics: Arc<Metrics>,
    /// The name of this node, which is on the leases that its worker holds.
    pub(crate) node: WorkerId,
    /// When this node was started, by its own clock.
    pub(crate) started_at: Timestamp,
    /// What keeps this node from making attempts.
    pub(crate) node_problem: Arc<CurrentProblem>,
    /// Whether tasks may call services on this machine.
    pub(crate) loopback: Arc<LoopbackGuard>,
    /// What was seen of late.
    pub(crate) recent: Recent,
    /// Whether this node could work when someone last asked.
    pub(crate) readiness: Readiness,
    /// Tells the driver of operations that one has begun here.
    pub(crate) begun: Notify,
    closing: CancellationToken,
}

/// Who may call as long as there has been no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Everyone, as an admin: for a service that only this machine reaches.
    OpenWithoutKeys,
    /// Nobody.
    KeysOnly,
}

impl Api {
    /// The API on a store, with the default policy registered, as `node`. It ends what has no end when `closing` is cancelled.
    pub async fn open(
        store: Arc<dyn Backend>,
        parts: Parts,
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
            recent: Recent::default(),
            readiness: Readiness::default(),
            begun: Notify::new(),
            redrive: Redrive::on(store.clone()),
            parts,
            store,
            closing,
        };
        api.policies.default().await?;
        Ok(Arc::new(api))
    }

    /// Every route, with what each may answer described at `/openapi.json`.
    pub fn router(self: &Arc<Self>) -> Router {
        routes::router(self.clone())
    }

    /// Whether the API was told to close.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.is_cancelled()
    }

    /// Samples what this node does and gives signs of life until the API closes; each node runs this once.
    pub async fn watch_itself(self: Arc<Self>) {
        let closing = self.closing.clone();
        sample::watch(self, closing).await;
    }

    /// Drives long operations until the API closes; each node that serves it runs this once.
    pub async fn drive_operations(self: Arc<Self>) {
        let closing = self.closing.clone();
        operations::drive(self, closing).await;
    }
}

/// The wall clock, for what only people read; what is due goes by the store's.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_ms(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
