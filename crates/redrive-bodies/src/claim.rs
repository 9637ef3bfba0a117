//! Which tasks use a body: written down before the task is, so that no task is left without its body.

use redrive_core::records::{Change, Expect, Record, Written};
use redrive_core::{JobId, Records, StoreError, Tenant, Timestamp};
use serde::{Deserialize, Serialize};

use super::{BodyRef, KIND, TASKS_MAX, record_id};

/// Tries of a compare-and-set before it is given up as contended.
const TRIES: usize = 100;

/// Why a task may not use a body.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// The tenant has no such body: it never had, or it was collected.
    #[error("there is no such body; upload it again with PUT /bodies")]
    Gone,
    /// As many tasks as may use one body do.
    #[error("{TASKS_MAX} tasks use this body already; upload it again for more")]
    TooManyTasks,
    /// Others kept changing the record.
    #[error("the body's record kept changing meanwhile; try again")]
    Contended,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Lets `task` use a body that its tenant uploaded. Call it before the task is enqueued: a body whose task never came
/// is collected, a task whose body was collected would be lost. Doing it twice is harmless.
pub async fn claim_for(
    records: &dyn Records,
    body: &BodyRef,
    tenant: &Tenant,
    task: JobId,
    now: Timestamp,
) -> Result<(), ClaimError> {
    let id = record_id(tenant, body);
    for _ in 0..TRIES {
        let record = records.read(KIND, &id).await?.ok_or(ClaimError::Gone)?;
        let mut held = Held::parse(&record)?;
        if held.state != (BodyState::Stored { body: *body }) {
            return Err(ClaimError::Gone);
        }
        if !held.tasks.contains(&task) {
            if held.tasks.len() >= TASKS_MAX {
                return Err(ClaimError::TooManyTasks);
            }
            held.tasks.push(task);
        }
        // The time is renewed even for a known task: its enqueue is still to come.
        held.touched_at_ms = now.as_ms();
        if let Written::Done(_) = held.write(records, id.clone(), Expect::Version(record.version)).await? {
            return Ok(());
        }
    }
    Err(ClaimError::Contended)
}

/// A record's content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Held {
    pub(super) tenant: Tenant,
    pub(super) created_at_ms: i64,
    /// When a task last claimed it: that task may not be written yet.
    pub(super) touched_at_ms: i64,
    pub(super) state: BodyState,
    pub(super) tasks: Vec<JobId>,
}

/// How far a body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum BodyState {
    /// Its upload began.
    Uploading,
    /// It is whole.
    Stored {
        /// With its length and digest, so that a reference with others is refused at once.
        body: BodyRef,
    },
    /// It is being deleted: nobody may use it any more.
    Doomed,
}

impl Held {
    pub(super) fn parse(record: &Record) -> Result<Self, StoreError> {
        serde_json::from_slice(&record.value)
            .map_err(|error| StoreError::Corrupt(format!("the record {KIND} {}: {error}", record.id)))
    }

    pub(super) async fn write(
        &self,
        records: &dyn Records,
        id: String,
        expect: Expect,
    ) -> Result<Written, StoreError> {
        let value = serde_json::to_vec(self).expect("plain data");
        records.write(Change { kind: KIND.into(), id, expect, value: Some(value) }).await
    }
}

/// Removes a record if it is still in this version.
pub(super) async fn remove(records: &dyn Records, id: &str, version: u64) -> Result<Written, StoreError> {
    let expect = Expect::Version(version);
    records.write(Change { kind: KIND.into(), id: id.to_owned(), expect, value: None }).await
}
