//! Which tasks use a body: written down before the task is, so that no task is left without its body.

use redrive_core::records::{Change, Expect, Record, Written};
use redrive_core::{JobId, Records, StoreError, Tenant, Timestamp};
use serde::{Deserialize, Serialize};

use super::{BodyRef, KIND, Place, TASKS_MAX, record_id};

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
    change(records, body, tenant, |held| held.claim(task, now)).await
}

/// Like [`claim_for`], for a task whose enqueue may replace another one: the store then gives the body to a job that is not
/// known yet. Until [`confirm_user`] names that job, the collector looks for it among all jobs.
pub async fn claim_for_replacement(
    records: &dyn Records,
    body: &BodyRef,
    tenant: &Tenant,
    task: JobId,
    now: Timestamp,
) -> Result<(), ClaimError> {
    change(records, body, tenant, |held| {
        held.may_have_other_user = true;
        held.claim(task, now)
    })
    .await
}

/// Names the job that an enqueue after [`claim_for_replacement`] led to.
pub async fn confirm_user(
    records: &dyn Records,
    body: &BodyRef,
    tenant: &Tenant,
    job: JobId,
) -> Result<(), ClaimError> {
    change(records, body, tenant, |held| {
        held.add(job)?;
        held.may_have_other_user = false;
        Ok(())
    })
    .await
}

/// Takes back a [`claim_for`] whose task was not enqueued after all, because a repeat found the first one.
pub async fn release(
    records: &dyn Records,
    body: &BodyRef,
    tenant: &Tenant,
    task: JobId,
) -> Result<(), ClaimError> {
    change(records, body, tenant, |held| {
        held.tasks.retain(|user| *user != task);
        Ok(())
    })
    .await
}

/// Changes the record of a body that can be used, by compare-and-set.
async fn change(
    records: &dyn Records,
    body: &BodyRef,
    tenant: &Tenant,
    edit: impl Fn(&mut Held) -> Result<(), ClaimError>,
) -> Result<(), ClaimError> {
    let id = record_id(tenant, body);
    for _ in 0..TRIES {
        let record = records.read(KIND, &id).await?.ok_or(ClaimError::Gone)?;
        let before = Held::parse(&record)?;
        if before.state != (BodyState::Stored { body: *body }) {
            return Err(ClaimError::Gone);
        }
        let mut held = before.clone();
        edit(&mut held)?;
        if held == before {
            return Ok(());
        }
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
    /// Where the object is; unknown for one that an older release stored.
    #[serde(default)]
    pub(super) place: Option<Place>,
    /// Whether a job that is not among `tasks` may use it. An older release did not say, so then it may.
    #[serde(default = "unknown")]
    pub(super) may_have_other_user: bool,
}

fn unknown() -> bool {
    true
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

    fn claim(&mut self, task: JobId, now: Timestamp) -> Result<(), ClaimError> {
        self.add(task)?;
        // The time is renewed even for a known task: its enqueue is still to come.
        self.touched_at_ms = now.as_ms();
        Ok(())
    }

    fn add(&mut self, task: JobId) -> Result<(), ClaimError> {
        if self.tasks.contains(&task) {
            return Ok(());
        }
        if self.tasks.len() >= TASKS_MAX {
            return Err(ClaimError::TooManyTasks);
        }
        self.tasks.push(task);
        Ok(())
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
