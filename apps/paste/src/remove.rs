//! The removal of a blob that no paste has any more.

use std::sync::Arc;
use std::time::Duration;

use redrive::{Context, Error, JobError, Policy, Prepared, Task};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::database::{Fate, Removal};
use crate::site::Site;

/// How long a removal waits for an upload that has not ended.
const UPLOAD_ENDS: Duration = Duration::from_secs(2);
/// Tries, up to five minutes apart: an object store may be away for days.
const ATTEMPTS: u32 = 1_000;

/// Removes a blob, unless a paste has it by then.
#[derive(Debug, Serialize, Deserialize)]
pub struct Remove {
    /// Which one.
    pub blob: Uuid,
}

impl Task for Remove {
    const KIND: &'static str = "remove";
    type Output = ();

    fn policy() -> Policy {
        let patient = Policy::default().with_total_budget(None).with_max_attempts(ATTEMPTS);
        patient.unwrap_or_else(|_| unreachable!("a thousand attempts are legal"))
    }
}

/// Condemns the blob, removes its object, forgets it. Each part may happen again after a crash.
pub async fn remove(task: Remove, cx: Context) -> Result<(), JobError> {
    let site = cx.state::<Arc<Site>>()?;
    match site.database.condemn(task.blob).await? {
        Fate::Condemned(blob) => {
            site.objects.delete(&blob.key()).await?;
            site.database.forget(blob.id).await?;
            Ok(())
        }
        // The object may come after a removal that does not wait.
        Fate::Uploading => Err(JobError::snooze(UPLOAD_ENDS)),
        Fate::Used | Fate::Gone => Ok(()),
    }
}

impl Site {
    /// The removal of a blob, for a transaction that may leave it without pastes.
    pub async fn removal(&self, blob: Uuid) -> Result<Removal, Error> {
        let job: Prepared = self.redrive.enqueue(Remove { blob }).prepare().await?;
        Ok(Removal { blob, job })
    }
}
