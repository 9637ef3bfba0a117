//! Policies by name and version, kept as records so that any node can decide for any job.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::names::PolicyName;
use crate::policy::{Policy, PolicyRef};
use crate::records::{Record, RecordEdit, RecordStore, RecordValue, Records};
use crate::store::StoreError;
use crate::time::Timestamp;

/// The name of the policy that applies when a job names none.
pub const DEFAULT: &str = "default";

/// How long a node may use an inline policy that it has stored before it must store the policy again.
pub const INLINE_CACHE_TTL: Duration = Duration::from_secs(60 * 60);
/// A use of an inline policy is recorded only if the last recorded use is at least this old.
const TOUCH_AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// An inline policy whose last recorded use is this old is removed, unless a job or a schedule refers to it.
///
/// A use is recorded at most once a day, and a node caches a policy for [`INLINE_CACHE_TTL`]. So up to 25 hours may
/// pass between the last recorded use and the commit of a job that refers to the policy. Two days leave a safe margin.
pub const INLINE_UNUSED_AGE: Duration = Duration::from_secs(2 * 24 * 60 * 60);
/// The most policies in an [`InlinePolicyCache`].
const CACHED_MAX: usize = 1024;

/// The content of a policy in one version; the id is `name@version`. The policy in it never changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PolicyContent {
    /// The policy.
    #[serde(flatten)]
    pub policy: Policy,
    /// When an inline policy was last stored for a job, to within a day. Absent for named policies, and on records of earlier
    /// releases.
    #[serde(rename = "lastUsedAt", default, skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<Timestamp>,
}

impl RecordValue for PolicyContent {
    const KIND: &'static str = "policy";
}

/// The record of a policy's current version; the id is the policy's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct CurrentVersion {
    version: NonZeroU32,
}

impl RecordValue for CurrentVersion {
    const KIND: &'static str = "policy.current";
}

/// The result of registering a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegisterResult {
    /// The name was new.
    Created(PolicyRef),
    /// The name already has this content, in this version.
    Existing(PolicyRef),
    /// The name has different content, in this version.
    Conflict(PolicyRef),
}

/// Registers a policy under a new name; a name that has other content is not changed.
pub async fn register(
    records: &dyn RecordStore,
    name: &PolicyName,
    policy: &Policy,
) -> Result<RegisterResult, StoreError> {
    match current(records, name).await? {
        Some(head) if content(records, &head.policy).await?.as_ref() == Some(policy) => {
            Ok(RegisterResult::Existing(head.policy))
        }
        Some(head) => Ok(RegisterResult::Conflict(head.policy)),
        None => match publish(records, name, policy, None).await? {
            Some(created) => Ok(RegisterResult::Created(created)),
            None => Box::pin(register(records, name, policy)).await,
        },
    }
}

/// Returns the policy named [`DEFAULT`], and registers it first if there is none. A policy that an operator stored is not changed.
pub async fn default(records: &dyn RecordStore) -> Result<PolicyRef, StoreError> {
    let name = PolicyName::new(DEFAULT)?;
    match register(records, &name, &Policy::default()).await? {
        RegisterResult::Created(policy)
        | RegisterResult::Existing(policy)
        | RegisterResult::Conflict(policy) => Ok(policy),
    }
}

/// Makes `policy` the current version of `name`. Jobs that exist keep the version they were created with.
pub async fn put(
    records: &dyn RecordStore,
    name: &PolicyName,
    policy: &Policy,
) -> Result<PolicyRef, StoreError> {
    loop {
        if let Some(current) = put_if(records, name, policy, |_| true).await? {
            return Ok(current);
        }
    }
}

/// Like [`put`], but returns none if `may_replace` rejects the current version. The check and the change are one step:
/// no other edit comes between them.
pub async fn put_if(
    records: &dyn RecordStore,
    name: &PolicyName,
    policy: &Policy,
    may_replace: impl Fn(Option<&PolicyRef>) -> bool + Send,
) -> Result<Option<PolicyRef>, StoreError> {
    loop {
        let head = current(records, name).await?;
        if !may_replace(head.as_ref().map(|head| &head.policy)) {
            return Ok(None);
        }
        if let Some(head) = &head
            && content(records, &head.policy).await?.as_ref() == Some(policy)
        {
            return Ok(Some(head.policy.clone()));
        }
        if let Some(published) = publish(records, name, policy, head).await? {
            return Ok(Some(published));
        }
    }
}

/// Stores a policy without a name, by its content, and records that it is in use. Call it before each enqueue that refers to
/// the policy, or at least once per [`INLINE_CACHE_TTL`]: otherwise the policy may be removed as unused.
pub async fn put_inline(
    records: &dyn RecordStore,
    policy: &Policy,
    now: Timestamp,
) -> Result<PolicyRef, StoreError> {
    let reference = PolicyRef::inline(policy);
    let touched = PolicyContent { policy: policy.clone(), last_used_at: Some(now) };
    let touch = |stored: Option<PolicyContent>| match stored.and_then(|stored| stored.last_used_at) {
        Some(used_at) if now.since(used_at) < TOUCH_AGE => Ok(RecordEdit::Keep(())),
        Some(_) | None => Ok(RecordEdit::Put(touched.clone(), ())),
    };
    contents(records).update(&reference.to_string(), touch).await.map(|()| reference)
}

/// Stores inline policies, and remembers for [`INLINE_CACHE_TTL`] which ones this process has stored.
#[derive(Debug, Default)]
pub struct InlinePolicyCache {
    stored_at: Mutex<HashMap<PolicyRef, Timestamp>>,
}

impl InlinePolicyCache {
    /// Calls [`put_inline`], unless this cache has stored the same policy within [`INLINE_CACHE_TTL`].
    pub async fn put(
        &self,
        records: &dyn RecordStore,
        policy: &Policy,
        now: Timestamp,
    ) -> Result<PolicyRef, StoreError> {
        let reference = PolicyRef::inline(policy);
        let stored_at = self.lock().get(&reference).copied();
        if stored_at.is_none_or(|stored_at| now.since(stored_at) >= INLINE_CACHE_TTL) {
            put_inline(records, policy, now).await?;
            let mut stored_at = self.lock();
            if stored_at.len() >= CACHED_MAX {
                stored_at.clear();
            }
            stored_at.insert(reference.clone(), now);
        }
        Ok(reference)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PolicyRef, Timestamp>> {
        self.stored_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The records with the contents of policies.
pub fn contents(records: &dyn RecordStore) -> Records<'_, PolicyContent> {
    Records::new(records)
}

/// The policy behind a reference. None if it is not in the store.
pub async fn content(records: &dyn RecordStore, reference: &PolicyRef) -> Result<Option<Policy>, StoreError> {
    Ok(contents(records).get(&reference.to_string()).await?.map(|record| record.value.policy))
}

/// The current version of a name. None if the name is not in use.
pub async fn latest(records: &dyn RecordStore, name: &PolicyName) -> Result<Option<PolicyRef>, StoreError> {
    Ok(current(records, name).await?.map(|head| head.policy))
}

/// The result of removing a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoveResult {
    /// The name is no longer in use.
    Removed,
    /// The caller did not accept the current version.
    Refused,
    /// The name was not in use.
    NotFound,
}

/// Takes a name out of use, if `may_remove` accepts the current version. Its versions stay, for the jobs that were created with
/// them. The check and the removal are one step: no edit comes between them.
pub async fn remove_if(
    records: &dyn RecordStore,
    name: &PolicyName,
    may_remove: impl Fn(&PolicyRef) -> bool + Send,
) -> Result<RemoveResult, StoreError> {
    let remove = |current: Option<CurrentVersion>| {
        let current = current.map(|current| PolicyRef { name: name.clone(), version: current.version });
        Ok(match current {
            None => RecordEdit::Keep(RemoveResult::NotFound),
            Some(current) if !may_remove(&current) => RecordEdit::Keep(RemoveResult::Refused),
            Some(_) => RecordEdit::Remove(RemoveResult::Removed),
        })
    };
    current_versions(records).update(name.as_str(), remove).await
}

/// Returns the current versions of the next `limit` names after `after`, in the order of the names.
pub async fn list_current(
    records: &dyn RecordStore,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<PolicyRef>, StoreError> {
    let page = current_versions(records).page("", after, limit).await?;
    let reference = |Record { id, value, .. }: Record<CurrentVersion>| {
        Ok(PolicyRef { name: PolicyName::new(id)?, version: value.version })
    };
    page.items.into_iter().map(reference).collect()
}

/// Which version is current, and the version of the record that says so.
struct CurrentPolicy {
    policy: PolicyRef,
    record_version: u64,
}

fn current_versions(records: &dyn RecordStore) -> Records<'_, CurrentVersion> {
    Records::new(records)
}

async fn current(records: &dyn RecordStore, name: &PolicyName) -> Result<Option<CurrentPolicy>, StoreError> {
    let record = current_versions(records).get(name.as_str()).await?;
    Ok(record.map(|Record { version, value, .. }| CurrentPolicy {
        policy: PolicyRef { name: name.clone(), version: value.version },
        record_version: version,
    }))
}

/// Writes the content first and then moves the pointer: a crash between them leaves an unused version, never a
/// pointer to nothing. Returns none if another writer was faster.
async fn publish(
    records: &dyn RecordStore,
    name: &PolicyName,
    policy: &Policy,
    head: Option<CurrentPolicy>,
) -> Result<Option<PolicyRef>, StoreError> {
    let first = head.as_ref().map_or(NonZeroU32::MIN, |head| head.policy.version.saturating_add(1));
    let mut reference = PolicyRef { name: name.clone(), version: first };
    while !write_content(records, &reference, policy).await? {
        reference.version = reference.version.saturating_add(1);
    }
    let pointer = CurrentVersion { version: reference.version };
    let written = match head {
        Some(head) => current_versions(records).replace(name.as_str(), head.record_version, &pointer).await?,
        None => current_versions(records).create(name.as_str(), &pointer).await?,
    };
    Ok(written.map(|_| reference))
}

/// Writes content, which never changes afterwards. Returns whether the reference now has this content.
async fn write_content(
    records: &dyn RecordStore,
    reference: &PolicyRef,
    policy: &Policy,
) -> Result<bool, StoreError> {
    let first = PolicyContent { policy: policy.clone(), last_used_at: None };
    if contents(records).create(&reference.to_string(), &first).await?.is_some() {
        return Ok(true);
    }
    Ok(content(records, reference).await?.as_ref() == Some(policy))
}
