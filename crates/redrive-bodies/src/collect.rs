//! Deletes bodies that no task uses any more.

use std::time::Duration;

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::records::{Expect, Record, Written};
use redrive_core::store::Backend;
use redrive_core::{JobId, StoreError, Timestamp};

use super::claim::{BodyState, Held, remove};
use super::{Bodies, KIND};

/// How long a body is kept without a task.
pub const ORPHAN_AGE: Duration = Duration::from_secs(24 * 60 * 60);

impl Bodies {
    /// Deletes the bodies that nobody claimed for `age` and whose tasks are all gone; answers how many.
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
        let batch = batch.max(1);
        let mut collected = 0;
        let mut after: Option<String> = None;
        loop {
            let page = backend.scan(KIND, after.as_deref(), batch).await?;
            for record in &page {
                collected += usize::from(self.collect_one(backend, record, now.before(age)).await?);
            }
            match page.last() {
                Some(last) if page.len() == batch => after = Some(last.id.clone()),
                Some(_) | None => return Ok(collected),
            }
        }
    }

    async fn collect_one(
        &self,
        backend: &dyn Backend,
        record: &Record,
        before: Timestamp,
    ) -> Result<bool, StoreError> {
        let held = match Held::parse(record) {
            Ok(held) => held,
            // One damaged record must not keep all the others for ever.
            Err(error) => {
                tracing::warn!(%error, "a body's record cannot be read and is left as it is");
                return Ok(false);
            }
        };
        let Some(doomed) = doom(backend, record, held, before).await? else { return Ok(false) };
        if let Err(error) = self.remove_object(&record.id).await {
            tracing::warn!(%error, body = record.id, "a body cannot be deleted now; the next run tries again");
            return Ok(false);
        }
        Ok(matches!(remove(backend, &record.id, doomed).await?, Written::Done(_)))
    }
}

/// The version of the record once it is doomed; none if the body is in use or is not old enough.
pub(super) async fn doom(
    backend: &dyn Backend,
    record: &Record,
    held: Held,
    before: Timestamp,
) -> Result<Option<u64>, StoreError> {
    match held.state {
        BodyState::Doomed => return Ok(Some(record.version)),
        BodyState::Uploading | BodyState::Stored { .. } => {}
    }
    if Timestamp::from_ms(held.touched_at_ms) > before || any_exists(backend, &held.tasks).await? {
        return Ok(None);
    }
    let doomed = Held { state: BodyState::Doomed, ..held };
    match doomed.write(backend, record.id.clone(), Expect::Version(record.version)).await? {
        Written::Done(version) => Ok(Some(version)),
        Written::Conflict(_) => Ok(None),
    }
}

async fn any_exists(backend: &dyn Backend, tasks: &[JobId]) -> Result<bool, StoreError> {
    for tasks in tasks.chunks(BATCH_ITEMS_MAX) {
        if backend.get(tasks.to_vec()).await?.iter().any(Option::is_some) {
            return Ok(true);
        }
    }
    Ok(false)
}
