//! Deletes bodies that no task uses.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use object_store::ObjectStoreExt as _;
use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::records::{Record, Records};
use redrive_core::store::{Backend, Filter, PageRequest};
use redrive_core::{Job, JobId, StoreError, Tenant, Timestamp};
use uuid::Uuid;

use super::attach::{BodyRecord, BodyState, confirm_attached};
use super::reference::body_ids_in;
use super::{Bodies, BodyRef, path};

/// How long a body that no task uses is kept after its upload or its last attach.
pub const ORPHAN_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// The most bodies per run whose job is searched among all jobs. Others wait for the next run.
const SEARCHED_MAX: usize = 10_000;
/// Jobs in one page of that search.
const SEARCH_PAGE_ITEMS: usize = 100;

impl Bodies {
    /// Deletes the bodies that no task uses and to which none was attached for `age`. Returns how many it deleted.
    ///
    /// A task uses a body as long as the task exists and its payload refers to the body. The payload counts, because a replaced
    /// task keeps its id and gets another body, and its former body is unused then.
    ///
    /// The body is first marked as deleting, by compare-and-set: a task that was attached meanwhile keeps it, and a later attach
    /// fails. Then the object is deleted, then its record. After a crash the next run completes this. Concurrent runs are
    /// harmless.
    pub async fn collect(
        &self,
        backend: &dyn Backend,
        now: Timestamp,
        age: Duration,
        batch: usize,
    ) -> Result<usize, StoreError> {
        let (batch, before) = (batch.max(1), now.before(age));
        let mut collected = 0;
        let mut uncertain = Vec::new();
        let mut after: Option<String> = None;
        loop {
            // A damaged record is skipped, and its body is kept.
            let page = Records::<BodyRecord>::new(backend).page("", after.as_deref(), batch).await?;
            after = page.next;
            for record in page.items {
                match usage_of(backend, &record.value, before).await? {
                    Usage::Used => {}
                    Usage::Unused => collected += self.delete_unused(backend, record).await?,
                    Usage::Unknown(body) if uncertain.len() < SEARCHED_MAX => uncertain.push((record, body)),
                    Usage::Unknown(_) => {}
                }
            }
            if after.is_none() {
                return Ok(collected + self.collect_uncertain(backend, uncertain).await?);
            }
        }
    }

    /// Searches all jobs for the users of bodies whose last enqueue was not confirmed. This is rare: a process crashed between an
    /// enqueue that may have replaced a job and [`confirm_attached`].
    async fn collect_uncertain(
        &self,
        backend: &dyn Backend,
        uncertain: Vec<(Record<BodyRecord>, BodyRef)>,
    ) -> Result<usize, StoreError> {
        if uncertain.is_empty() {
            return Ok(0);
        }
        let users = find_users(backend, &uncertain).await?;
        let mut collected = 0;
        for (record, body) in uncertain {
            match users.get(&body.id()) {
                Some(user) => {
                    if let Err(error) = confirm_attached(backend, &body, &record.value.tenant, *user).await {
                        tracing::warn!(%error, %body, "could not record which job uses a body; the next run tries again");
                    }
                }
                None => collected += self.delete_unused(backend, record).await?,
            }
        }
        Ok(collected)
    }

    /// Deletes a body, unless a task was attached to it meanwhile. Returns how many it deleted: 0 or 1.
    async fn delete_unused(
        &self,
        backend: &dyn Backend,
        record: Record<BodyRecord>,
    ) -> Result<usize, StoreError> {
        let id = record.id.clone();
        if self.is_in_other_location(&id, &record.value).await {
            return Ok(0);
        }
        let Some(version) = mark_deleting(backend, record).await? else { return Ok(0) };
        if let Err(error) = self.remove_object(&id).await {
            tracing::warn!(%error, body = id, "a body could not be deleted; the next run tries again");
            return Ok(0);
        }
        Ok(usize::from(Records::<BodyRecord>::new(backend).remove_version(&id, version).await?))
    }

    /// Whether a body was stored in another location and was not copied to this one. Nodes that use that location delete it.
    async fn is_in_other_location(&self, id: &str, record: &BodyRecord) -> bool {
        match &record.location {
            Some(stored) if stored.id != self.location.id => self.store.head(&path(id)).await.is_err(),
            Some(_) | None => false,
        }
    }
}

/// Whether a body is used.
pub(super) enum Usage {
    /// A task uses it, or it is too new to decide.
    Used,
    /// No task uses it.
    Unused,
    /// None of its attached tasks uses it, but another job may.
    Unknown(BodyRef),
}

pub(super) async fn usage_of(
    backend: &dyn Backend,
    record: &BodyRecord,
    before: Timestamp,
) -> Result<Usage, StoreError> {
    let young = Timestamp::from_ms(record.touched_at_ms) > before;
    match record.state {
        BodyState::Deleting => Ok(Usage::Unused),
        BodyState::Uploading | BodyState::Stored { .. } if young => Ok(Usage::Used),
        BodyState::Uploading => Ok(Usage::Unused),
        BodyState::Stored { body } if is_used(backend, &body, &record.tasks).await? => Ok(Usage::Used),
        // No task was ever attached, so no enqueue can have replaced a job with it.
        BodyState::Stored { .. } if record.tasks.is_empty() => Ok(Usage::Unused),
        BodyState::Stored { body } if record.may_have_other_user => Ok(Usage::Unknown(body)),
        BodyState::Stored { .. } => Ok(Usage::Unused),
    }
}

/// Marks a body as deleting, and returns the new version of its record. Returns none if a task was attached meanwhile.
pub(super) async fn mark_deleting(
    backend: &dyn Backend,
    record: Record<BodyRecord>,
) -> Result<Option<u64>, StoreError> {
    let Record { id, version, value } = record;
    match value.state {
        BodyState::Deleting => Ok(Some(version)),
        BodyState::Uploading | BodyState::Stored { .. } => {
            let deleting = BodyRecord { state: BodyState::Deleting, ..value };
            Records::new(backend).replace(&id, version, &deleting).await
        }
    }
}

async fn is_used(backend: &dyn Backend, body: &BodyRef, tasks: &[JobId]) -> Result<bool, StoreError> {
    let uses = |job: &Job| body_ids_in(&job.payload).any(|id| id == body.id());
    for tasks in tasks.chunks(BATCH_ITEMS_MAX) {
        match backend.get(tasks.to_vec()).await {
            Ok(jobs) if jobs.iter().flatten().any(uses) => return Ok(true),
            Ok(_) => {}
            // A task that cannot be read may use it.
            Err(StoreError::Corrupt(_)) => return Ok(true),
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// The jobs that refer to these bodies, among all jobs of their tenants.
async fn find_users(
    backend: &dyn Backend,
    bodies: &[(Record<BodyRecord>, BodyRef)],
) -> Result<HashMap<Uuid, JobId>, StoreError> {
    let wanted: HashSet<Uuid> = bodies.iter().map(|(_, body)| body.id()).collect();
    let tenants: HashSet<&Tenant> = bodies.iter().map(|(record, _)| &record.value.tenant).collect();
    let tenant = tenants.iter().next().filter(|_| tenants.len() == 1).map(|tenant| (*tenant).clone());
    let filter = Filter { tenant, ..Filter::default() };
    let mut users = HashMap::new();
    let mut page = PageRequest::first(SEARCH_PAGE_ITEMS);
    loop {
        let found = backend.list(filter.clone(), page).await?;
        for job in &found.items {
            let found_ids = body_ids_in(&job.payload).filter(|id| wanted.contains(id));
            users.extend(found_ids.map(|id| (id, job.id)));
        }
        match found.next {
            Some(next) if users.len() < wanted.len() => page.after = Some(next),
            Some(_) | None => return Ok(users),
        }
    }
}
