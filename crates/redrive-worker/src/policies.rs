//! The policies that jobs refer to, loaded once and kept: the content behind a reference never changes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use redrive_core::store::{Backend, StoreError};
use redrive_core::{Policy, PolicyRef, catalog};
use tokio::sync::OnceCell;

use crate::hold::lock;
use crate::remember::Recent;

/// References kept; inline policies may be many.
const POLICIES_MAX: usize = 1024;

/// A bounded cache over the catalog.
pub(crate) struct Policies {
    store: Arc<dyn Backend>,
    known: Mutex<Recent<PolicyRef, Arc<Entry>>>,
}

#[derive(Default)]
struct Entry {
    policy: OnceCell<Arc<Policy>>,
    /// Counts failed reads, so that those who waited for one do not each fail anew, one after the other.
    failures: AtomicU64,
}

/// Why there is no policy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unresolved {
    /// No attempt can ever be decided: the job is beyond help.
    #[error("policy {0} is not in the store")]
    Missing(PolicyRef),
    /// The same, with what is wrong with it.
    #[error("policy {0} cannot be read: {1}")]
    Unreadable(PolicyRef, String),
    /// It may be there: another time.
    #[error("policy {0} could not be loaded")]
    NotNow(PolicyRef, #[source] StoreError),
}

impl Policies {
    pub(crate) fn new(store: Arc<dyn Backend>) -> Self {
        Self { store, known: Mutex::new(Recent::new(POLICIES_MAX)) }
    }

    /// The policy behind `reference`.
    pub(crate) async fn get(&self, reference: &PolicyRef) -> Result<Arc<Policy>, Unresolved> {
        let entry = self.entry(reference);
        match entry.policy.get() {
            Some(policy) => Ok(policy.clone()),
            // Boxed, so that the future of every attempt need not have room for a read that is rare.
            None => Box::pin(self.share(reference, &entry)).await,
        }
    }

    /// Those who ask at the same time share one read.
    async fn share(&self, reference: &PolicyRef, entry: &Entry) -> Result<Arc<Policy>, Unresolved> {
        let seen = entry.failures.load(Ordering::Acquire);
        let load = || async {
            if entry.failures.load(Ordering::Acquire) != seen {
                let error = StoreError::Unavailable("the same read failed a moment ago".into());
                return Err(Unresolved::NotNow(reference.clone(), error));
            }
            self.load(reference, entry).await
        };
        entry.policy.get_or_try_init(load).await.cloned()
    }

    fn entry(&self, reference: &PolicyRef) -> Arc<Entry> {
        let mut known = lock(&self.known);
        if let Some(entry) = known.get(reference) {
            return entry.clone();
        }
        let entry = Arc::<Entry>::default();
        known.insert(reference.clone(), entry.clone());
        entry
    }

    async fn load(&self, reference: &PolicyRef, entry: &Entry) -> Result<Arc<Policy>, Unresolved> {
        let problem = match catalog::content(&*self.store, reference).await {
            Ok(Some(policy)) => return Ok(Arc::new(policy)),
            Ok(None) => return Err(Unresolved::Missing(reference.clone())),
            Err(problem) => problem,
        };
        match problem {
            StoreError::Corrupt(problem) => Err(Unresolved::Unreadable(reference.clone(), problem)),
            StoreError::Unavailable(_)
            | StoreError::Busy(_)
            | StoreError::Full(_)
            | StoreError::Refused(_)
            | StoreError::Invalid(_)
            | StoreError::Failed(_) => {
                entry.failures.fetch_add(1, Ordering::Release);
                Err(Unresolved::NotNow(reference.clone(), problem))
            }
        }
    }
}
