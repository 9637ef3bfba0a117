//! Policies by name and version, kept as records so that any node can decide for any job.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::names::PolicyName;
use crate::policy::{Policy, PolicyRef};
use crate::records::{Change, Expect, Record, Records, Written};
use crate::store::StoreError;

/// The record kind of a policy's content: the id is `name@version`, and it never changes.
const CONTENT: &str = "policy";
/// The record kind that says which version of a name is current.
const CURRENT: &str = "policy.current";

/// The name of the policy that is taken when none is named.
pub const DEFAULT: &str = "default";

/// What came of registering a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Registered {
    /// It is new under its name.
    Created(PolicyRef),
    /// The same content was current under this name before.
    Existing(PolicyRef),
    /// The name has other content, in this version.
    Conflict(PolicyRef),
}

/// Registers a policy under a new name; a name that has other content is left alone.
pub async fn register(
    records: &dyn Records,
    name: &PolicyName,
    policy: &Policy,
) -> Result<Registered, StoreError> {
    match current(records, name).await? {
        Some(head) if content(records, &head.policy).await?.as_ref() == Some(policy) => {
            Ok(Registered::Existing(head.policy))
        }
        Some(head) => Ok(Registered::Conflict(head.policy)),
        None => match publish(records, name, policy, None).await? {
            Some(created) => Ok(Registered::Created(created)),
            None => Box::pin(register(records, name, policy)).await,
        },
    }
}

/// The policy named [`DEFAULT`], registered unless there is one; what an operator has put there stays.
pub async fn default(records: &dyn Records) -> Result<PolicyRef, StoreError> {
    let name = PolicyName::new(DEFAULT)?;
    match register(records, &name, &Policy::default()).await? {
        Registered::Created(policy) | Registered::Existing(policy) | Registered::Conflict(policy) => {
            Ok(policy)
        }
    }
}

/// Makes `policy` the current version of `name`. Jobs that exist keep the version they were created with.
pub async fn put(records: &dyn Records, name: &PolicyName, policy: &Policy) -> Result<PolicyRef, StoreError> {
    loop {
        let head = current(records, name).await?;
        if let Some(head) = &head
            && content(records, &head.policy).await?.as_ref() == Some(policy)
        {
            return Ok(head.policy.clone());
        }
        if let Some(published) = publish(records, name, policy, head).await? {
            return Ok(published);
        }
    }
}

/// Stores a policy without a name, by its content. Doing it again changes nothing.
pub async fn put_inline(records: &dyn Records, policy: &Policy) -> Result<PolicyRef, StoreError> {
    let reference = PolicyRef::inline(policy);
    write_content(records, &reference, policy).await?;
    Ok(reference)
}

/// The policy behind a reference.
pub async fn content(records: &dyn Records, reference: &PolicyRef) -> Result<Option<Policy>, StoreError> {
    match records.read(CONTENT, &reference.to_string()).await? {
        Some(record) => parse(&record, CONTENT).map(Some),
        None => Ok(None),
    }
}

/// The current version of a name.
pub async fn latest(records: &dyn Records, name: &PolicyName) -> Result<Option<PolicyRef>, StoreError> {
    Ok(current(records, name).await?.map(|head| head.policy))
}

/// Takes a name out of use; says whether it was in use. Its versions stay, for the jobs that were created with them.
pub async fn remove(records: &dyn Records, name: &PolicyName) -> Result<bool, StoreError> {
    let change = Change { kind: CURRENT.to_owned(), id: name.to_string(), expect: Expect::Any, value: None };
    let there = records.read(CURRENT, name.as_str()).await?.is_some();
    if there {
        records.write(change).await?;
    }
    Ok(there)
}

/// The current version of each name, in the order of names, those after `after`, at most `limit`.
pub async fn current_all(
    records: &dyn Records,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<PolicyRef>, StoreError> {
    let heads = records.scan(CURRENT, after, limit).await?;
    let reference = |record: &Record| {
        let Pointer { version } = parse(record, CURRENT)?;
        Ok(PolicyRef { name: PolicyName::new(record.id.as_str())?, version })
    };
    heads.iter().map(reference).collect()
}

/// Which version is current, and the record that says so.
struct Head {
    policy: PolicyRef,
    record_version: u64,
}

#[derive(Serialize, Deserialize)]
struct Pointer {
    version: NonZeroU32,
}

async fn current(records: &dyn Records, name: &PolicyName) -> Result<Option<Head>, StoreError> {
    let Some(record) = records.read(CURRENT, name.as_str()).await? else {
        return Ok(None);
    };
    let Pointer { version } = parse(&record, CURRENT)?;
    let policy = PolicyRef { name: name.clone(), version };
    Ok(Some(Head { policy, record_version: record.version }))
}

/// Writes the content first and then moves the pointer: a crash between them leaves an unused version, never a
/// pointer to nothing. `None` means that someone else was faster.
async fn publish(
    records: &dyn Records,
    name: &PolicyName,
    policy: &Policy,
    head: Option<Head>,
) -> Result<Option<PolicyRef>, StoreError> {
    let (mut version, expect) = match head {
        Some(head) => (head.policy.version.saturating_add(1), Expect::Version(head.record_version)),
        None => (NonZeroU32::MIN, Expect::Absent),
    };
    let mut reference = PolicyRef { name: name.clone(), version };
    while !write_content(records, &reference, policy).await? {
        version = version.saturating_add(1);
        reference.version = version;
    }
    let change = Change {
        kind: CURRENT.to_owned(),
        id: name.to_string(),
        expect,
        value: Some(encode(&Pointer { version })),
    };
    match records.write(change).await? {
        Written::Done(_) => Ok(Some(reference)),
        Written::Conflict(_) => Ok(None),
    }
}

/// Whether the reference now holds this content: content is written once and never changed.
async fn write_content(
    records: &dyn Records,
    reference: &PolicyRef,
    policy: &Policy,
) -> Result<bool, StoreError> {
    let change = Change {
        kind: CONTENT.to_owned(),
        id: reference.to_string(),
        expect: Expect::Absent,
        value: Some(encode(policy)),
    };
    match records.write(change).await? {
        Written::Done(_) => Ok(true),
        Written::Conflict(Some(record)) => Ok(parse::<Policy>(&record, CONTENT)? == *policy),
        Written::Conflict(None) => Ok(false),
    }
}

fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_else(|e| unreachable!("plain data becomes JSON: {e}"))
}

fn parse<T: for<'de> Deserialize<'de>>(record: &Record, kind: &str) -> Result<T, StoreError> {
    serde_json::from_slice(&record.value)
        .map_err(|e| StoreError::Corrupt(format!("record {kind} {:?}: {e}", record.id)))
}
