//! Caches the policies that jobs refer to. Entries never go stale: the content behind a reference never changes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use redrive_core::store::{Backend, StoreError};
use redrive_core::{Policy, PolicyRef, catalog};
use tokio::sync::OnceCell;

use crate::engine::lock;
use crate::recent_cache::RecentCache;

/// Entries in one generation of the cache. It is bounded because there may be many inline policies.
const POLICIES_MAX: usize = 1024;

/// A bounded cache over the catalog.
pub(crate) struct PolicyCache {
    store: Arc<dyn Backend>,
    entries: Mutex<RecentCache<PolicyRef, Arc<Entry>>>,
}

#[derive(Default)]
struct Entry {
    policy: OnceCell<Arc<Policy>>,
    /// Counts failed reads, so that callers who waited for a read that failed do not repeat it one after the other.
    failures: AtomicU64,
}

/// Why a policy could not be loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PolicyError {
    /// The policy does not exist, so no attempt of the job can ever be decided.
    #[error("policy {0} is not in the store")]
    Missing(PolicyRef),
    /// The stored policy is damaged, so no attempt of the job can ever be decided.
    #[error("policy {0} cannot be read: {1}")]
    Damaged(PolicyRef, String),
    /// The store failed. A later read may succeed.
    #[error("policy {0} could not be loaded")]
    Unavailable(PolicyRef, #[source] StoreError),
}

impl PolicyCache {
    pub(crate) fn new(store: Arc<dyn Backend>) -> Self {
        Self { store, entries: Mutex::new(RecentCache::new(POLICIES_MAX)) }
    }

    /// Returns the policy behind `reference`.
    pub(crate) async fn get(&self, reference: &PolicyRef) -> Result<Arc<Policy>, PolicyError> {
        let entry = self.entry(reference);
        match entry.policy.get() {
            Some(policy) => Ok(policy.clone()),
            // Boxed, because reads are rare and the future of every attempt would otherwise reserve space for one.
            None => Box::pin(self.load_once(reference, &entry)).await,
        }
    }

    /// Loads the policy. Concurrent callers share one read, and its failure.
    async fn load_once(&self, reference: &PolicyRef, entry: &Entry) -> Result<Arc<Policy>, PolicyError> {
        let failures_before = entry.failures.load(Ordering::Acquire);
        let load = || async {
            if entry.failures.load(Ordering::Acquire) != failures_before {
                let error = StoreError::Unavailable("the same read failed a moment ago".into());
                return Err(PolicyError::Unavailable(reference.clone(), error));
            }
            self.load(reference, entry).await
        };
        entry.policy.get_or_try_init(load).await.cloned()
    }

    fn entry(&self, reference: &PolicyRef) -> Arc<Entry> {
        let mut entries = lock(&self.entries);
        if let Some(entry) = entries.get(reference) {
            return entry.clone();
        }
        let entry = Arc::<Entry>::default();
        entries.insert(reference.clone(), entry.clone());
        entry
    }

    async fn load(&self, reference: &PolicyRef, entry: &Entry) -> Result<Arc<Policy>, PolicyError> {
        let error = match catalog::content(&*self.store, reference).await {
            Ok(Some(policy)) => return Ok(Arc::new(policy)),
            Ok(None) => return Err(PolicyError::Missing(reference.clone())),
            Err(error) => error,
        };
        match error {
            StoreError::Corrupt(problem) => Err(PolicyError::Damaged(reference.clone(), problem)),
            StoreError::Unavailable(_)
            | StoreError::Busy(_)
            | StoreError::Full(_)
            | StoreError::Refused(_)
            | StoreError::Invalid(_)
            | StoreError::Failed(_) => {
                entry.failures.fetch_add(1, Ordering::Release);
                Err(PolicyError::Unavailable(reference.clone(), error))
            }
        }
    }
}
