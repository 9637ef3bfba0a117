//! Whether this node can work: its store answers reads and takes writes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive_core::StoreError;
use tokio::time::{Instant, timeout};

use crate::api::Api;
use crate::error::{Answer, Code, Problem};

/// How long the store may take for one read and one write.
const STORE_ANSWER_MAX: Duration = Duration::from_secs(2);
/// How long a node that was ready counts as ready. Nobody needs a key to ask, so this bounds what asking costs.
const READY_TRUSTED: Duration = Duration::from_secs(5);
/// How long a node that was not ready counts as not ready.
const NOT_READY_TRUSTED: Duration = Duration::from_secs(1);

/// The result of the last check.
#[derive(Default)]
pub(crate) struct Readiness {
    /// Held by the one check that is under way.
    checking: tokio::sync::Mutex<()>,
    last: Mutex<Option<Check>>,
}

#[derive(Clone)]
struct Check {
    at: Instant,
    result: Answer<()>,
}

impl Check {
    fn is_recent(&self) -> bool {
        let trusted = if self.result.is_ok() { READY_TRUSTED } else { NOT_READY_TRUSTED };
        self.at.elapsed() < trusted
    }
}

impl Api {
    /// Fails unless this node can work. Callers at the same time share one check.
    pub(crate) async fn check_readiness(self: &Arc<Self>) -> Answer<()> {
        if self.is_closing() {
            return Err(Problem::new(Code::Unavailable, "the service is shutting down"));
        }
        if let Some(check) = self.readiness.recent() {
            return check.result;
        }
        // A task of its own: a caller that hangs up must not end the check, or each call could cost a write.
        let api = self.clone();
        let checked = tokio::spawn(async move { api.readiness_now().await });
        checked.await.unwrap_or_else(|error| Err(Problem::internal(&error)))
    }

    async fn readiness_now(&self) -> Answer<()> {
        let _only = self.readiness.checking.lock().await;
        if let Some(check) = self.readiness.recent() {
            return check.result;
        }
        let result = match timeout(STORE_ANSWER_MAX, self.read_and_write()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(detail)) => Err(Problem::new(Code::Unavailable, detail)),
            Err(_) => {
                let detail =
                    "the store took longer than 2 s for a read and a write; look at the store's load";
                Err(Problem::new(Code::Unavailable, detail))
            }
        };
        *self.readiness.lock() = Some(Check { at: Instant::now(), result: result.clone() });
        result
    }

    /// Reads the store's time and writes this node's sign of life, which it writes now and then anyway.
    async fn read_and_write(&self) -> Result<(), &'static str> {
        let now = self.store.stats().await.map_err(|error| {
            log("read", &error);
            "the store does not answer reads; look at the service's log"
        })?;
        self.beat(now.now).await.map_err(|error| {
            log("write", &error);
            "the store does not take writes; look at the service's log, and whether the store is full or read-only"
        })
    }
}

/// The cause is for the log, not for a caller without a key.
fn log(what: &str, error: &StoreError) {
    tracing::warn!(%error, "not ready: the store failed a {what}");
}

impl Readiness {
    fn recent(&self) -> Option<Check> {
        self.lock().clone().filter(Check::is_recent)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Check>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
