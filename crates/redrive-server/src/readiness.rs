//! Checks whether this node is ready: its store answers reads and accepts writes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive_core::StoreError;
use tokio::time::{Instant, timeout};

use crate::api::Api;
use crate::error::{Answer, Problem};
use redrive_wire::Code;

/// How long the store may take for one read and one write.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a successful check is cached. Callers need no key, so this bounds their cost.
const READY_CACHE_TTL: Duration = Duration::from_secs(5);
/// How long a failed check is cached.
const NOT_READY_CACHE_TTL: Duration = Duration::from_secs(1);

/// The result of the last check.
#[derive(Default)]
pub(crate) struct Readiness {
    /// Held while a check runs.
    checking: tokio::sync::Mutex<()>,
    last: Mutex<Option<ReadinessCheck>>,
}

#[derive(Clone)]
struct ReadinessCheck {
    at: Instant,
    result: Answer<()>,
}

impl ReadinessCheck {
    fn is_recent(&self) -> bool {
        let ttl = if self.result.is_ok() { READY_CACHE_TTL } else { NOT_READY_CACHE_TTL };
        self.at.elapsed() < ttl
    }
}

impl Api {
    /// Fails unless this node is ready. Concurrent callers share one check.
    pub(crate) async fn check_readiness(self: &Arc<Self>) -> Answer<()> {
        if self.is_closing() {
            return Err(Problem::new(Code::Unavailable, "the service is shutting down"));
        }
        if let Some(check) = self.readiness.recent() {
            return check.result;
        }
        // The check runs in its own task: if a caller that hangs up could cancel it, each call could cost a write.
        let api = self.clone();
        let checked = tokio::spawn(async move { api.readiness_now().await });
        checked.await.unwrap_or_else(|error| Err(Problem::internal(&error)))
    }

    async fn readiness_now(&self) -> Answer<()> {
        let _only = self.readiness.checking.lock().await;
        if let Some(check) = self.readiness.recent() {
            return check.result;
        }
        let result = match timeout(STORE_TIMEOUT, self.read_and_write()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(detail)) => Err(Problem::new(Code::Unavailable, detail)),
            Err(_) => {
                let detail =
                    "the store took longer than 2 s for a read and a write; check the load of the store";
                Err(Problem::new(Code::Unavailable, detail))
            }
        };
        *self.readiness.lock() = Some(ReadinessCheck { at: Instant::now(), result: result.clone() });
        result
    }

    /// Reads the store's time and writes the heartbeat of this node.
    async fn read_and_write(&self) -> Result<(), &'static str> {
        let now = self.store.stats().await.map_err(|error| {
            log("read", &error);
            "the store does not answer reads; see the log of the service"
        })?;
        self.write_heartbeat(now.now).await.map_err(|error| {
            log("write", &error);
            "the store does not accept writes; see the log of the service, and check whether the store is full or read-only"
        })
    }
}

/// Logs the cause. Callers without a key must not see it.
fn log(operation: &str, error: &StoreError) {
    tracing::warn!(%error, "not ready: a {operation} of the store failed");
}

impl Readiness {
    fn recent(&self) -> Option<ReadinessCheck> {
        self.lock().clone().filter(ReadinessCheck::is_recent)
    }

    fn lock(&self) -> MutexGuard<'_, Option<ReadinessCheck>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
