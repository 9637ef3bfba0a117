//! Policies as the routes need them: content kept for ever, the current version of a name for a second.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive_core::catalog::{self, Registered};
use redrive_core::store::{Backend, Filter, PageRequest};
use redrive_core::{Policy, PolicyName, PolicyRef, State, StoreError};
use tokio::time::Instant;

/// How long the current version of a name is trusted: another node's edit holds after this.
pub(crate) const CURRENT_TRUSTED: Duration = Duration::from_secs(1);
/// Entries of each kind kept in memory.
const CACHED_MAX: usize = 1024;

/// A policy with its reference.
#[derive(Debug, Clone)]
pub(crate) struct Resolved {
    pub(crate) reference: PolicyRef,
    pub(crate) policy: Arc<Policy>,
}

/// A cache over the catalog.
pub(crate) struct Policies {
    store: Arc<dyn Backend>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    content: HashMap<PolicyRef, Arc<Policy>>,
    current: HashMap<Box<str>, (Option<Resolved>, Instant)>,
    inline: HashSet<PolicyRef>,
    /// Counts this node's edits, so that a read from before one is not remembered after it.
    edits: u64,
}

impl Policies {
    pub(crate) fn new(store: Arc<dyn Backend>) -> Self {
        Self { store, known: Mutex::default() }
    }

    /// The default policy, registered unless there is one; what an operator has put there stays.
    pub(crate) async fn default(&self) -> Result<PolicyRef, StoreError> {
        catalog::default(&*self.store).await
    }

    /// The current version of `name`.
    pub(crate) async fn current(&self, name: &str) -> Result<Option<Resolved>, StoreError> {
        let (now, edits) = (Instant::now(), self.lock().edits);
        if let Some((resolved, read_at)) = self.lock().current.get(name)
            && now - *read_at < CURRENT_TRUSTED
        {
            return Ok(resolved.clone());
        }
        let resolved = self.read_current(name).await?;
        let mut known = self.lock();
        if known.current.len() >= CACHED_MAX {
            known.current.clear();
        }
        if known.edits == edits {
            known.current.insert(name.into(), (resolved.clone(), now));
        }
        Ok(resolved)
    }

    /// The content behind a reference.
    pub(crate) async fn content(&self, reference: &PolicyRef) -> Result<Option<Arc<Policy>>, StoreError> {
        if let Some(policy) = self.lock().content.get(reference) {
            return Ok(Some(policy.clone()));
        }
        let Some(policy) = catalog::content(&*self.store, reference).await? else { return Ok(None) };
        let policy = Arc::new(policy);
        self.keep(reference, &policy);
        Ok(Some(policy))
    }

    /// Stores a policy without a name, once.
    pub(crate) async fn inline(&self, policy: Policy) -> Result<Resolved, StoreError> {
        let reference = PolicyRef::inline(&policy);
        if !self.lock().inline.contains(&reference) {
            catalog::put_inline(&*self.store, &policy).await?;
            let mut known = self.lock();
            if known.inline.len() >= CACHED_MAX {
                known.inline.clear();
            }
            known.inline.insert(reference.clone());
        }
        Ok(Resolved { reference, policy: Arc::new(policy) })
    }

    /// Registers a policy under a new name.
    pub(crate) async fn register(
        &self,
        name: &PolicyName,
        policy: &Policy,
    ) -> Result<Registered, StoreError> {
        let registered = catalog::register(&*self.store, name, policy).await;
        self.forget();
        registered
    }

    /// Makes `policy` the current version of `name`.
    pub(crate) async fn put(&self, name: &PolicyName, policy: &Policy) -> Result<PolicyRef, StoreError> {
        let reference = catalog::put(&*self.store, name, policy).await;
        self.forget();
        reference
    }

    /// Takes a name out of use; says whether it was in use.
    pub(crate) async fn remove(&self, name: &PolicyName) -> Result<bool, StoreError> {
        let removed = catalog::remove(&*self.store, name).await;
        self.forget();
        removed
    }

    /// Whether a task that has not ended uses any version of `name`.
    pub(crate) async fn is_in_use(&self, name: &PolicyName) -> Result<bool, StoreError> {
        let states = State::ALL.into_iter().filter(|state| !state.is_final()).collect();
        let filter = Filter { policy_name: Some(name.clone()), states, ..Filter::default() };
        Ok(!self.store.list(filter, PageRequest::first(1)).await?.items.is_empty())
    }

    async fn read_current(&self, name: &str) -> Result<Option<Resolved>, StoreError> {
        let Ok(name) = PolicyName::new(name) else { return Ok(None) };
        let Some(reference) = catalog::latest(&*self.store, &name).await? else { return Ok(None) };
        let Some(policy) = self.content(&reference).await? else { return Ok(None) };
        Ok(Some(Resolved { reference, policy }))
    }

    fn keep(&self, reference: &PolicyRef, policy: &Arc<Policy>) {
        let mut known = self.lock();
        if known.content.len() >= CACHED_MAX {
            known.content.clear();
        }
        known.content.insert(reference.clone(), policy.clone());
    }

    /// Forgets which versions are current, after this node has changed one.
    fn forget(&self) {
        let mut known = self.lock();
        known.current.clear();
        known.edits += 1;
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
