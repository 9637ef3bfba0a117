//! Deletes bodies that no task uses any more.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use object_store::ObjectStoreExt as _;
use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::records::{Expect, Record, Written};
use redrive_core::store::{Backend, Filter, PageRequest};
use redrive_core::{Job, JobId, StoreError, Tenant, Timestamp};
use uuid::Uuid;

use super::claim::{BodyState, Held, confirm_user, remove};
use super::reference::named_in;
use super::{Bodies, BodyRef, KIND, path};

/// How long a body is kept without a task.
pub const ORPHAN_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// Bodies whose user is looked for among all jobs, in one run; others wait for the next.
const SEARCHED_MAX: usize = 10_000;
/// Jobs that such a search reads at once.
const SEARCH_PAGE_ITEMS: usize = 100;

impl Bodies {
    /// Deletes the bodies that nobody claimed for `age` and that no task uses; answers how many.
    ///
    /// A task uses a body as long as it exists and its payload names the body. The payload counts because a replaced task
    /// keeps its id and gets another body: its former one is free then.
    ///
    /// A body is doomed first, by compare-and-set, so that a task which claims it meanwhile keeps it and one that
    /// comes later is refused; then the object goes, then its record. A crash in between is finished by the next
    /// run. Two runs at once are harmless.
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
            let page = backend.scan(KIND, after.as_deref(), batch).await?;
            after = page.last().filter(|_| page.len() == batch).map(|last| last.id.clone());
            for record in page {
                match judge(backend, &record, before).await? {
                    Usage::Used => {}
                    Usage::Unused(held) => collected += self.delete_unused(backend, &record, held).await?,
                    Usage::Unknown(held, body) if uncertain.len() < SEARCHED_MAX => {
                        uncertain.push((record, held, body));
                    }
                    Usage::Unknown(..) => {}
                }
            }
            if after.is_none() {
                return Ok(collected + self.collect_uncertain(backend, uncertain).await?);
            }
        }
    }

    /// Looks for the users of bodies whose last enqueue was not confirmed, in one walk over the jobs. That is rare: someone
    /// crashed between an enqueue that may have replaced a job and the note of which job it was.
    async fn collect_uncertain(
        &self,
        backend: &dyn Backend,
        uncertain: Vec<(Record, Held, BodyRef)>,
    ) -> Result<usize, StoreError> {
        if uncertain.is_empty() {
            return Ok(0);
        }
        let users = find_users(backend, &uncertain).await?;
        let mut collected = 0;
        for (record, held, body) in uncertain {
            match users.get(&body.id()) {
                Some(user) => {
                    if let Err(error) = confirm_user(backend, &body, &held.tenant, *user).await {
                        tracing::warn!(%error, %body, "the user of a body could not be noted; the next run tries again");
                    }
                }
                None => collected += self.delete_unused(backend, &record, held).await?,
            }
        }
        Ok(collected)
    }

    /// Deletes a body unless someone claimed it meanwhile; answers how many that were.
    async fn delete_unused(
        &self,
        backend: &dyn Backend,
        record: &Record,
        held: Held,
    ) -> Result<usize, StoreError> {
        if self.is_elsewhere(&record.id, &held).await {
            return Ok(0);
        }
        let Some(doomed) = doom(backend, record, held).await? else { return Ok(0) };
        if let Err(error) = self.remove_object(&record.id).await {
            tracing::warn!(%error, body = record.id, "a body cannot be deleted now; the next run tries again");
            return Ok(0);
        }
        Ok(usize::from(matches!(remove(backend, &record.id, doomed).await?, Written::Done(_))))
    }

    /// Whether a body was stored in a place that is not this one, and was not copied here: the nodes that reach it delete it.
    async fn is_elsewhere(&self, id: &str, held: &Held) -> bool {
        match &held.place {
            Some(place) if place.id != self.place.id => self.store.head(&path(id)).await.is_err(),
            Some(_) | None => false,
        }
    }
}

/// Whether a body is used.
pub(super) enum Usage {
    /// A task uses it, or it is too young to tell.
    Used,
    /// No task uses it.
    Unused(Held),
    /// None of the tasks that it was claimed for uses it, but another one may.
    Unknown(Held, BodyRef),
}

pub(super) async fn judge(
    backend: &dyn Backend,
    record: &Record,
    before: Timestamp,
) -> Result<Usage, StoreError> {
    let held = match Held::parse(record) {
        Ok(held) => held,
        // One damaged record must not keep all the others for ever.
        Err(error) => {
            tracing::warn!(%error, "a body's record cannot be read and is left as it is");
            return Ok(Usage::Used);
        }
    };
    let young = Timestamp::from_ms(held.touched_at_ms) > before;
    match held.state {
        BodyState::Doomed => Ok(Usage::Unused(held)),
        BodyState::Uploading | BodyState::Stored { .. } if young => Ok(Usage::Used),
        BodyState::Uploading => Ok(Usage::Unused(held)),
        BodyState::Stored { body } if is_used(backend, &body, &held.tasks).await? => Ok(Usage::Used),
        // Nobody ever claimed it, so nobody can have replaced a task with it.
        BodyState::Stored { .. } if held.tasks.is_empty() => Ok(Usage::Unused(held)),
        BodyState::Stored { body } if held.may_have_other_user => Ok(Usage::Unknown(held, body)),
        BodyState::Stored { .. } => Ok(Usage::Unused(held)),
    }
}

/// The version of the record once it is doomed; none if it was claimed meanwhile.
pub(super) async fn doom(
    backend: &dyn Backend,
    record: &Record,
    held: Held,
) -> Result<Option<u64>, StoreError> {
    match held.state {
        BodyState::Doomed => return Ok(Some(record.version)),
        BodyState::Uploading | BodyState::Stored { .. } => {}
    }
    let doomed = Held { state: BodyState::Doomed, ..held };
    match doomed.write(backend, record.id.clone(), Expect::Version(record.version)).await? {
        Written::Done(version) => Ok(Some(version)),
        Written::Conflict(_) => Ok(None),
    }
}

async fn is_used(backend: &dyn Backend, body: &BodyRef, tasks: &[JobId]) -> Result<bool, StoreError> {
    let uses = |job: &Job| named_in(&job.payload).any(|id| id == body.id());
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

/// Which job names each of these bodies, out of all jobs of their tenants.
async fn find_users(
    backend: &dyn Backend,
    bodies: &[(Record, Held, BodyRef)],
) -> Result<HashMap<Uuid, JobId>, StoreError> {
    let wanted: HashSet<Uuid> = bodies.iter().map(|(_, _, body)| body.id()).collect();
    let tenants: HashSet<&Tenant> = bodies.iter().map(|(_, held, _)| &held.tenant).collect();
    let tenant = tenants.iter().next().filter(|_| tenants.len() == 1).map(|tenant| (*tenant).clone());
    let filter = Filter { tenant, ..Filter::default() };
    let mut users = HashMap::new();
    let mut page = PageRequest::first(SEARCH_PAGE_ITEMS);
    loop {
        let found = backend.list(filter.clone(), page).await?;
        for job in &found.items {
            let named = named_in(&job.payload).filter(|id| wanted.contains(id));
            users.extend(named.map(|id| (id, job.id)));
        }
        match found.next {
            Some(next) if users.len() < wanted.len() => page.after = Some(next),
            Some(_) | None => return Ok(users),
        }
    }
}
