//! Records which tasks use a body. This is written before the task is enqueued, so that no task loses its body.

use redrive_core::records::{RecordEdit, RecordValue};
use redrive_core::{JobId, RecordStore, Records, StoreError, Tenant, Timestamp};
use serde::{Deserialize, Serialize};

use super::{BodyLocation, BodyRef, KIND, TASKS_PER_BODY_MAX, record_id};

/// Why a task may not use a body.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The tenant has no such body, or it was deleted because no task used it.
    #[error("there is no such body; upload it again with PUT /v1/bodies")]
    Gone,
    /// The largest number of tasks already uses the body.
    #[error("{TASKS_PER_BODY_MAX} tasks already use this body; upload it again for more tasks")]
    TooManyTasks,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Records that `task` uses a body of its tenant. Call it before the task is enqueued: if the task is never enqueued, the body is
/// collected, but if the body were collected first, the task would be lost. A second call changes nothing.
pub async fn attach(
    records: &dyn RecordStore,
    body: &BodyRef,
    tenant: &Tenant,
    task: JobId,
    now: Timestamp,
) -> Result<(), AttachError> {
    change(records, body, tenant, |record| record.attach(task, now)).await
}

/// Like [`attach`], for a task whose enqueue may replace a job. Then the replaced job, which is not known yet, uses the body.
/// Until [`confirm_attached`] names that job, the collector searches all jobs for it.
pub async fn attach_to_replacement(
    records: &dyn RecordStore,
    body: &BodyRef,
    tenant: &Tenant,
    task: JobId,
    now: Timestamp,
) -> Result<(), AttachError> {
    change(records, body, tenant, |record| {
        record.may_have_other_user = true;
        record.attach(task, now)
    })
    .await
}

/// Records the job that uses the body, once the enqueue after [`attach_to_replacement`] has returned it.
pub async fn confirm_attached(
    records: &dyn RecordStore,
    body: &BodyRef,
    tenant: &Tenant,
    job: JobId,
) -> Result<(), AttachError> {
    change(records, body, tenant, |record| {
        record.add(job)?;
        record.may_have_other_user = false;
        Ok(())
    })
    .await
}

/// Takes back an [`attach`], because the task was not enqueued: its idempotency key belongs to an existing job.
pub async fn detach(
    records: &dyn RecordStore,
    body: &BodyRef,
    tenant: &Tenant,
    task: JobId,
) -> Result<(), AttachError> {
    change(records, body, tenant, |record| {
        record.tasks.retain(|user| *user != task);
        Ok(())
    })
    .await
}

/// Changes the record of a stored body.
async fn change(
    records: &dyn RecordStore,
    body: &BodyRef,
    tenant: &Tenant,
    edit: impl Fn(&mut BodyRecord) -> Result<(), AttachError>,
) -> Result<(), AttachError> {
    let edit = |stored: Option<BodyRecord>| {
        let before = stored.ok_or(AttachError::Gone)?;
        if before.state != (BodyState::Stored { body: *body }) {
            return Err(AttachError::Gone);
        }
        let mut record = before.clone();
        edit(&mut record)?;
        Ok(if record == before { RecordEdit::Keep(()) } else { RecordEdit::Put(record, ()) })
    };
    Records::new(records).update(&record_id(tenant, body), edit).await
}

/// The record of a body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BodyRecord {
    pub(super) tenant: Tenant,
    pub(super) created_at_ms: i64,
    /// When a task was last attached. That task may not be enqueued yet.
    pub(super) touched_at_ms: i64,
    pub(super) state: BodyState,
    pub(super) tasks: Vec<JobId>,
    /// Where the object is. Records of older releases do not have it.
    #[serde(default, rename = "place")]
    pub(super) location: Option<BodyLocation>,
    /// Whether a job that is not in `tasks` may use the body. Records of older releases do not have it, so it may.
    #[serde(default = "default_true")]
    pub(super) may_have_other_user: bool,
}

fn default_true() -> bool {
    true
}

/// The state of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum BodyState {
    /// Its upload has started.
    Uploading,
    /// It is complete.
    Stored {
        /// Its reference. A reference with another length or digest is rejected.
        body: BodyRef,
    },
    /// It is being deleted. No task can use it any more.
    #[serde(rename = "doomed")]
    Deleting,
}

impl RecordValue for BodyRecord {
    const KIND: &'static str = KIND;
}

impl BodyRecord {
    fn attach(&mut self, task: JobId, now: Timestamp) -> Result<(), AttachError> {
        self.add(task)?;
        // Renewed even if the task is already attached, because its enqueue is still to come.
        self.touched_at_ms = now.as_ms();
        Ok(())
    }

    fn add(&mut self, task: JobId) -> Result<(), AttachError> {
        if self.tasks.contains(&task) {
            return Ok(());
        }
        if self.tasks.len() >= TASKS_PER_BODY_MAX {
            return Err(AttachError::TooManyTasks);
        }
        self.tasks.push(task);
        Ok(())
    }
}
