//! The upload of a blob, with the retry strategy of the site.
//!
//! | attempt | wait before it |
//! | --- | --- |
//! | 1 | none |
//! | 2 to 6 | 1, 2, 4, 8, 16 s, each ± 200 ms |
//!
//! If the sixth attempt fails, the pastes fail too. The job stays in the database until its end is committed, together with the rows of
//! its pastes. If its worker dies, another worker takes over the job.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use redrive::{Context, JobError, Policy, Task, presets};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::content::PART_BYTES;
use crate::database::{Blob, Database};
use crate::objects::PutError;
use crate::site::Site;

/// How long an attempt is delayed while the database is down, which does not count as a failure of the object store.
const DATABASE_WAIT: Duration = Duration::from_secs(1);
/// The time that an attempt may take beyond the timeout of its upload.
const EXTRA_TIME: Duration = Duration::from_secs(4);

/// The job that puts a blob into the object store.
#[derive(Debug, Serialize, Deserialize)]
pub struct Upload {
    /// The blob.
    pub blob: Uuid,
}

impl Task for Upload {
    const KIND: &'static str = "upload";
    /// The address of the object.
    type Output = String;

    fn policy() -> Policy {
        presets::upload()
    }
}

/// Makes one attempt. [`Database::end_uploads`] writes the result of the last one.
pub async fn upload(task: Upload, cx: Context) -> Result<String, JobError> {
    let site = cx.state::<Arc<Site>>()?;
    let snooze = |error: redrive::Error| {
        tracing::warn!(%error, "delayed an upload, because the database is down");
        JobError::snooze(DATABASE_WAIT)
    };
    let Some(blob) = site.database.blob(task.blob).await.map_err(snooze)? else {
        return Err(JobError::reject("the blob was removed"));
    };
    let key = blob.key();
    let putting = site.objects.put(&key, blob.size, parts(&*site.database, blob));
    let limit = site.objects.upload_timeout() + EXTRA_TIME;
    match tokio::time::timeout(limit, putting).await {
        Ok(Ok(())) => Ok(site.objects.url(&key)),
        Ok(Err(PutError::Source(error))) => Err(snooze(error)),
        Ok(Err(PutError::Store(error))) => Err(JobError::fail(error)),
        Err(_) => Err(JobError::fail(format!("the upload took longer than {limit:?}"))),
    }
}

/// The parts of a blob's content, one after the other.
fn parts(
    database: &dyn Database,
    blob: Blob,
) -> impl stream::Stream<Item = Result<bytes::Bytes, redrive::Error>> + Send + '_ {
    let count = blob.size.div_ceil(PART_BYTES as u64);
    stream::unfold(0_i32, move |number| async move {
        if u64::from(number.unsigned_abs()) >= count {
            return None;
        }
        let part = database.part(blob.id, number).await.and_then(|part| {
            part.ok_or_else(|| {
                redrive::StoreError::Corrupt(format!("part {number} of a content is missing")).into()
            })
        });
        Some((part.map(bytes::Bytes::from), number + 1))
    })
}
