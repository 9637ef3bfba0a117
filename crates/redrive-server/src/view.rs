//! What can be seen of a running service from within its process.

use std::sync::Arc;

use redrive_core::StoreError;
use redrive_core::store::Stats;
use redrive_delivery::gate::OriginStatus;
use tokio::time::Instant;

use crate::api::Api;

/// A look at a service.
#[derive(Clone)]
pub struct View(Arc<Api>);

impl View {
    pub(crate) fn new(api: Arc<Api>) -> Self {
        Self(api)
    }

    /// Counts by queue and state.
    pub async fn stats(&self) -> Result<Stats, StoreError> {
        self.0.store.stats().await
    }

    /// The gates of this node.
    pub fn gates(&self) -> Vec<OriginStatus> {
        self.0.parts.gates.status(Instant::now())
    }
}
