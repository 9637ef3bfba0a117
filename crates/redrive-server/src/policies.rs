//! Caches policies for the routes: contents without a time limit, because they never change, and the current version of a name for
//! one second.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive_core::catalog::{self, InlinePolicyCache, RegisterResult, RemoveResult};
use redrive_core::store::{Backend, Filter, PageRequest};
use redrive_core::{Policy, PolicyName, PolicyRef, State, StoreError};
use redrive_delivery::Target;
use redrive_delivery::call::check_callback_target;
use redrive_delivery::secrets::SECRET_NAME_BYTES_MAX;
use redrive_wire::policy::{ON_FAILURE_URL, ON_SUCCESS_URL, RetryPolicy, SIGNING_SECRET};
use tokio::time::Instant;

use crate::api;
use crate::error::{Answer, Problem};

/// How long the current version of a name is cached: an edit on another node takes effect after this.
pub(crate) const CURRENT_CACHE_TTL: Duration = Duration::from_secs(1);
/// Entries of each kind in the cache.
const CACHED_MAX: usize = 1024;

/// A policy with its reference.
#[derive(Debug, Clone)]
pub(crate) struct ResolvedPolicy {
    pub(crate) reference: PolicyRef,
    pub(crate) policy: Arc<Policy>,
}

/// The policy of a request, with the addresses of its callbacks checked and normalised.
pub(crate) fn parse_policy(request: &RetryPolicy) -> Answer<Policy> {
    let mut policy = request.to_policy()?;
    for field in [ON_SUCCESS_URL, ON_FAILURE_URL] {
        if let Some(url) = policy.annotations.get(field) {
            let target = Target::parse_as(field, url)?;
            check_callback_target(field, &target)?;
            policy = policy.with_annotation(field, target.to_string())?;
        }
    }
    let secret = policy.annotations.get(SIGNING_SECRET);
    if secret.is_some_and(|name| name.is_empty() || name.len() > SECRET_NAME_BYTES_MAX) {
        let detail = format!("must be from 1 to {SECRET_NAME_BYTES_MAX} bytes long");
        return Err(Problem::invalid(SIGNING_SECRET, detail));
    }
    Ok(policy)
}

/// A cache over the catalog.
pub(crate) struct Policies {
    store: Arc<dyn Backend>,
    cache: Mutex<PolicyCache>,
    inline: InlinePolicyCache,
}

#[derive(Default)]
struct PolicyCache {
    content: HashMap<PolicyRef, Arc<Policy>>,
    current: HashMap<Box<str>, (Option<ResolvedPolicy>, Instant)>,
    /// Counts this node's edits, so that a value read before an edit is not cached after it.
    edits: u64,
}

impl Policies {
    pub(crate) fn new(store: Arc<dyn Backend>) -> Self {
        Self { store, cache: Mutex::default(), inline: InlinePolicyCache::default() }
    }

    /// Returns the default policy, and registers it if it does not exist. A version that an operator has registered is kept.
    pub(crate) async fn default(&self) -> Result<PolicyRef, StoreError> {
        catalog::default(&*self.store).await
    }

    /// The current version of `name`.
    pub(crate) async fn current(&self, name: &str) -> Result<Option<ResolvedPolicy>, StoreError> {
        let (now, edits) = (Instant::now(), self.lock().edits);
        if let Some((resolved, read_at)) = self.lock().current.get(name)
            && now - *read_at < CURRENT_CACHE_TTL
        {
            return Ok(resolved.clone());
        }
        let resolved = self.read_current(name).await?;
        let mut cache = self.lock();
        if cache.current.len() >= CACHED_MAX {
            cache.current.clear();
        }
        if cache.edits == edits {
            cache.current.insert(name.into(), (resolved.clone(), now));
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

    /// Stores a policy without a name.
    pub(crate) async fn inline(&self, policy: Policy) -> Result<ResolvedPolicy, StoreError> {
        let reference = self.inline.put(&*self.store, &policy, api::now()).await?;
        Ok(ResolvedPolicy { reference, policy: Arc::new(policy) })
    }

    /// Registers a policy under a new name.
    pub(crate) async fn register(
        &self,
        name: &PolicyName,
        policy: &Policy,
    ) -> Result<RegisterResult, StoreError> {
        let registered = catalog::register(&*self.store, name, policy).await;
        self.forget();
        registered
    }

    /// Makes `policy` the current version of `name`, if `may_replace` accepts the version before it.
    pub(crate) async fn put_if(
        &self,
        name: &PolicyName,
        policy: &Policy,
        may_replace: impl Fn(Option<&PolicyRef>) -> bool + Send,
    ) -> Result<Option<PolicyRef>, StoreError> {
        let reference = catalog::put_if(&*self.store, name, policy, may_replace).await;
        self.forget();
        reference
    }

    /// Removes a name, if `may_remove` accepts its current version.
    pub(crate) async fn remove_if(
        &self,
        name: &PolicyName,
        may_remove: impl Fn(&PolicyRef) -> bool + Send,
    ) -> Result<RemoveResult, StoreError> {
        let removed = catalog::remove_if(&*self.store, name, may_remove).await;
        self.forget();
        removed
    }

    /// Whether a job that has not ended uses any version of `name`.
    pub(crate) async fn is_in_use(&self, name: &PolicyName) -> Result<bool, StoreError> {
        let states = State::ALL.into_iter().filter(|state| !state.is_final()).collect();
        let filter = Filter { policy_name: Some(name.clone()), states, ..Filter::default() };
        Ok(!self.store.list(filter, PageRequest::first(1)).await?.items.is_empty())
    }

    async fn read_current(&self, name: &str) -> Result<Option<ResolvedPolicy>, StoreError> {
        let Ok(name) = PolicyName::new(name) else { return Ok(None) };
        let Some(reference) = catalog::latest(&*self.store, &name).await? else { return Ok(None) };
        let Some(policy) = self.content(&reference).await? else { return Ok(None) };
        Ok(Some(ResolvedPolicy { reference, policy }))
    }

    fn keep(&self, reference: &PolicyRef, policy: &Arc<Policy>) {
        let mut cache = self.lock();
        if cache.content.len() >= CACHED_MAX {
            cache.content.clear();
        }
        cache.content.insert(reference.clone(), policy.clone());
    }

    /// Clears the cached current versions, after this node has changed one.
    fn forget(&self) {
        let mut cache = self.lock();
        cache.current.clear();
        cache.edits += 1;
    }

    fn lock(&self) -> MutexGuard<'_, PolicyCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_callback_or_secret_is_rejected_with_its_field_name() {
        for (json, field) in [
            (r#"{"onSuccessUrl":"x"}"#, "onSuccessUrl"),
            (r#"{"onFailureUrl":"ftp://a/"}"#, "onFailureUrl"),
            (r#"{"onSuccessUrl":"grpc://a.example/b.C/D"}"#, "onSuccessUrl"),
            (r#"{"onFailureUrl":"grpcs://a.example/b.C/D"}"#, "onFailureUrl"),
            (r#"{"signingSecret":""}"#, "signingSecret"),
        ] {
            let problem = parse_policy(&serde_json::from_str(json).unwrap()).unwrap_err();
            assert_eq!(problem.field.as_deref(), Some(field), "{json}: {problem:?}");
        }
    }
}
