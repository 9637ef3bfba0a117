//! The upload of a blob: the whole retry strategy of the site.
//!
//! | attempt | waits before it |
//! | --- | --- |
//! | 1 | nothing |
//! | 2 to 6 | 1, 2, 4, 8, 16 s, each ± 200 ms |
//!
//! After the sixth the pastes have failed. The message is the job: it stays until its end is written, together with the
//! rows it is about, and one whose worker died is taken over.

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

/// How long an attempt is put off while the database is away, which is not the object store's failure.
const DATABASE_AWAY: Duration = Duration::from_secs(1);
/// What an attempt may take beyond its upload before it is given up on altogether.
const BEYOND_UPLOAD: Duration = Duration::from_secs(4);

/// Brings a blob into the object store.
#[derive(Debug, Serialize, Deserialize)]
pub struct Upload {
    /// Which one.
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

/// Makes one attempt. What it returns, or that it was the last to fail, is written by [`Database::end_uploads`].
pub async fn upload(task: Upload, cx: Context) -> Result<String, JobError> {
    let site = cx.state::<Arc<Site>>()?;
    let away = |error: redrive::Error| {
        tracing::warn!(%error, "upload put off: the database is away");
        JobError::snooze(DATABASE_AWAY)
    };
    let Some(blob) = site.database.blob(task.blob).await.map_err(away)? else {
        return Err(JobError::reject("its blob is gone"));
    };
    let key = blob.key();
    let putting = site.objects.put(&key, blob.size, parts(&*site.database, blob));
    let limit = site.objects.upload_timeout() + BEYOND_UPLOAD;
    match tokio::time::timeout(limit, putting).await {
        Ok(Ok(())) => Ok(site.objects.url(&key)),
        Ok(Err(PutError::Source(error))) => Err(away(error)),
        Ok(Err(PutError::Store(error))) => Err(JobError::fail(error)),
        Err(_) => Err(JobError::fail(format!("gave up after {limit:?}"))),
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
                redrive::StoreError::Corrupt(format!("part {number} of a content is gone")).into()
            })
        });
        Some((part.map(bytes::Bytes::from), number + 1))
    })
}
