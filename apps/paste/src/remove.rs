//! Removes blobs that no paste has any more.

use std::sync::Arc;
use std::time::Duration;

use redrive::{Context, Error, JobError, Policy, PreparedTask, Task};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::database::{CondemnResult, Removal};
use crate::site::Site;

/// How long a removal waits for the end of an upload.
const UPLOAD_WAIT: Duration = Duration::from_secs(2);
/// The attempts of a removal. They are up to five minutes apart, so that an object store may be down for days.
const ATTEMPTS: u32 = 1_000;

/// The job that removes a blob, unless a paste has it by then.
#[derive(Debug, Serialize, Deserialize)]
pub struct Remove {
    /// The blob.
    pub blob: Uuid,
}

impl Task for Remove {
    const KIND: &'static str = "remove";
    type Output = ();

    fn policy() -> Policy {
        let policy = Policy::default().with_total_budget(None).with_max_attempts(ATTEMPTS);
        policy.unwrap_or_else(|_| unreachable!("a thousand attempts are valid"))
    }
}

/// Marks the blob for removal, removes its object, and then its row. Each of these steps may be repeated after a crash.
pub async fn remove(task: Remove, cx: Context) -> Result<(), JobError> {
    let site = cx.state::<Arc<Site>>()?;
    match site.database.condemn(task.blob).await? {
        CondemnResult::Condemned(blob) => {
            site.objects.delete(&blob.key()).await?;
            site.database.forget(blob.id).await?;
            Ok(())
        }
        // Without the wait, the object could arrive after its removal.
        CondemnResult::Uploading => Err(JobError::snooze(UPLOAD_WAIT)),
        CondemnResult::Used | CondemnResult::Gone => Ok(()),
    }
}

impl Site {
    /// Prepares the removal of a blob, for a transaction that may remove its last paste.
    pub async fn removal(&self, blob: Uuid) -> Result<Removal, Error> {
        let job: PreparedTask = self.redrive.enqueue(Remove { blob }).prepare().await?;
        Ok(Removal { blob, job })
    }
}
