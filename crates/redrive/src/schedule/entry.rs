//! A schedule as the store keeps it: a record that is only ever changed by compare-and-set.

use std::time::Duration;

use redrive_core::limits::PAGE_ITEMS_MAX;
use redrive_core::records::{Change, Expect, Record, Written};
use redrive_core::store::Backend;
use redrive_core::{
    IdempotencyKey, Invalid, JobId, Kind, NewJob, PolicyRef, Priority, Queue, StoreError, Tenant, Timestamp,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Missed, Schedule};

/// The kind of the records; the id is the schedule's name.
const KIND: &str = "schedule";
/// What the keys of a schedule's jobs begin with.
const KEY: &str = "schedule/";

/// A record's content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Entry {
    pub(crate) schedule: Schedule,
    pub(crate) missed: Missed,
    pub(crate) template: Template,
    pub(crate) paused: bool,
    /// Told apart from an earlier schedule of the same name, which was removed. An edit keeps it: an occurrence that was
    /// enqueued for before the edit is not enqueued for again after it.
    pub(crate) generation: Uuid,
    /// The newest occurrence that was settled, or when there were none before.
    pub(crate) last: Timestamp,
}

/// What is enqueued for each occurrence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Template {
    pub(crate) kind: Kind,
    /// The task as JSON, in a text so that not a byte of it changes.
    pub(crate) payload: String,
    pub(crate) queue: Queue,
    pub(crate) tenant: Tenant,
    pub(crate) priority: Priority,
    pub(crate) policy: PolicyRef,
    pub(crate) timeout_ms: Option<u64>,
    pub(crate) metadata: Option<String>,
}

impl Template {
    /// What a job leaves to be enqueued again and again.
    pub(crate) fn of(job: NewJob) -> Result<Self, Invalid> {
        let text = String::from_utf8(job.payload);
        Ok(Self {
            kind: job.kind,
            payload: text.map_err(|_| Invalid::new("payload", "must be text to be scheduled"))?,
            queue: job.queue,
            tenant: job.tenant,
            priority: job.priority,
            policy: job.policy,
            timeout_ms: job.timeout.map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)),
            metadata: job.metadata,
        })
    }
}

impl Entry {
    /// The job of an occurrence, under a key that is the same on every node.
    pub(crate) fn job(&self, name: &str, occurrence: Timestamp) -> Result<NewJob, Invalid> {
        let of = self.template.clone();
        let job = NewJob {
            queue: of.queue,
            tenant: of.tenant,
            priority: of.priority,
            timeout: of.timeout_ms.map(Duration::from_millis),
            metadata: of.metadata,
            ..NewJob::new(JobId(Uuid::now_v7()), of.kind, of.policy, of.payload.into_bytes())
        };
        let key = format!("{KEY}{name}/{}/{}", self.generation.simple(), occurrence.as_ms());
        Ok(job.with_key(key.parse()?))
    }
}

/// The occurrence that a job with this key was enqueued for.
pub(crate) fn occurrence_of(key: &IdempotencyKey) -> Option<Timestamp> {
    let (_, ms) = key.as_str().strip_prefix(KEY)?.rsplit_once('/')?;
    ms.parse().ok().map(Timestamp::from_ms)
}

/// A record that was read: its name, its version and what is in it.
pub(crate) struct Kept {
    pub(crate) name: String,
    pub(crate) version: u64,
    pub(crate) entry: Entry,
}

impl Kept {
    pub(crate) fn parse(record: Record) -> Result<Self, StoreError> {
        let Record { id: name, version, value } = record;
        match serde_json::from_slice(&value) {
            Ok(entry) => Ok(Self { name, version, entry }),
            Err(error) => Err(StoreError::Corrupt(format!("record {KIND} {name:?}: {error}"))),
        }
    }

    /// Writes what has become of it, unless someone else has written meanwhile; says whether it did.
    pub(crate) async fn replace(&self, backend: &dyn Backend, entry: &Entry) -> Result<bool, StoreError> {
        write(backend, &self.name, Expect::Version(self.version), Some(entry)).await
    }
}

/// The schedule of a name.
pub(crate) async fn read(backend: &dyn Backend, name: &str) -> Result<Option<Kept>, StoreError> {
    backend.read(KIND, name).await?.map(Kept::parse).transpose()
}

/// Makes a schedule, unless there is one of that name; says whether it did.
pub(crate) async fn create(backend: &dyn Backend, name: &str, entry: &Entry) -> Result<bool, StoreError> {
    write(backend, name, Expect::Absent, Some(entry)).await
}

/// Removes a schedule.
pub(crate) async fn remove(backend: &dyn Backend, name: &str) -> Result<(), StoreError> {
    write(backend, name, Expect::Any, None).await.map(drop)
}

/// Every record, in the order of names.
pub(crate) async fn scan(backend: &dyn Backend) -> Result<Vec<Record>, StoreError> {
    let mut records: Vec<Record> = Vec::new();
    loop {
        let after = records.last().map(|record| record.id.as_str());
        let page = backend.scan(KIND, after, PAGE_ITEMS_MAX).await?;
        let full = page.len() == PAGE_ITEMS_MAX;
        records.extend(page);
        if !full {
            return Ok(records);
        }
    }
}

async fn write(
    backend: &dyn Backend,
    name: &str,
    expect: Expect,
    entry: Option<&Entry>,
) -> Result<bool, StoreError> {
    let value = entry.map(|entry| {
        serde_json::to_vec(entry).unwrap_or_else(|error| unreachable!("plain data becomes JSON: {error}"))
    });
    let change = Change { kind: KIND.to_owned(), id: name.to_owned(), expect, value };
    match backend.write(change).await? {
        Written::Done(_) => Ok(true),
        Written::Conflict(_) => Ok(false),
    }
}
