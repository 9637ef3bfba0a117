//! The record of a schedule in the store.

use std::time::Duration;

use redrive_core::records::{RecordValue, Records};
use redrive_core::store::Backend;
use redrive_core::{
    IdempotencyKey, Invalid, JobId, Kind, NewJob, PolicyRef, Priority, Queue, Tenant, Timestamp,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::{MissedRuns, Schedule};

/// The prefix of the idempotency keys of scheduled jobs.
const KEY_PREFIX: &str = "schedule/";

/// How many bytes of the hash a version contains.
const VERSION_BYTES: usize = 8;

/// The content of the record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ScheduleRecord {
    pub(crate) schedule: Schedule,
    pub(crate) missed: MissedRuns,
    pub(crate) template: JobTemplate,
    pub(crate) paused: bool,
    /// Distinguishes the schedule from an earlier one of the same name that was removed. A change keeps it, so that an occurrence
    /// that was enqueued before the change is not enqueued again after it.
    pub(crate) generation: Uuid,
    /// The newest occurrence that was enqueued or skipped. Before the first one, the time from which occurrences count.
    pub(crate) last: Timestamp,
}

/// The job that is enqueued for each occurrence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JobTemplate {
    pub(crate) kind: Kind,
    /// The task as JSON. It is stored as text, so that no byte of it changes.
    pub(crate) payload: String,
    pub(crate) queue: Queue,
    pub(crate) tenant: Tenant,
    pub(crate) priority: Priority,
    pub(crate) policy: PolicyRef,
    pub(crate) timeout_ms: Option<u64>,
    pub(crate) metadata: Option<String>,
}

impl JobTemplate {
    /// A template from a job.
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

impl ScheduleRecord {
    /// A hash of everything but the progress, in hexadecimal digits.
    pub(crate) fn version(&self) -> String {
        let settings = Self { last: Timestamp::default(), ..self.clone() };
        let hash = Sha256::digest(settings.encode());
        hash.iter().take(VERSION_BYTES).map(|byte| format!("{byte:02x}")).collect()
    }

    /// The job for an occurrence. Its idempotency key is the same on every node.
    pub(crate) fn job(&self, name: &str, occurrence: Timestamp) -> Result<NewJob, Invalid> {
        let template = self.template.clone();
        let id = JobId(Uuid::now_v7());
        let job = NewJob {
            queue: template.queue,
            tenant: template.tenant,
            priority: template.priority,
            timeout: template.timeout_ms.map(Duration::from_millis),
            metadata: template.metadata,
            ..NewJob::new(id, template.kind, template.policy, template.payload.into_bytes())
        };
        let key = format!("{KEY_PREFIX}{name}/{}/{}", self.generation.simple(), occurrence.as_ms());
        Ok(job.with_key(key.parse()?))
    }
}

/// The occurrence that a job with this key was enqueued for. None if no schedule enqueued the job.
pub(crate) fn occurrence_of(key: &IdempotencyKey) -> Option<Timestamp> {
    let (_, ms) = key.as_str().strip_prefix(KEY_PREFIX)?.rsplit_once('/')?;
    ms.parse().ok().map(Timestamp::from_ms)
}

impl RecordValue for ScheduleRecord {
    const KIND: &'static str = "schedule";
}

/// The schedules of a store, by name.
pub(crate) fn schedules(backend: &dyn Backend) -> Records<'_, ScheduleRecord> {
    Records::new(backend)
}
