//! Removes expired pastes, and failed pastes that are more than a day old.

use std::sync::Arc;
use std::time::Duration;

use redrive::{Context, Error, JobError, Redrive, Schedule, Task};
use serde::{Deserialize, Serialize};

use crate::database::StalePastes;
use crate::site::Site;

/// The largest number of pastes that a batch lists, and that it removes from one blob.
const BATCH: i64 = 100;

/// The job that removes all stale pastes.
#[derive(Debug, Serialize, Deserialize)]
pub struct Sweep {
    /// Which pastes to remove.
    pub what: StalePastes,
}

impl Task for Sweep {
    const KIND: &'static str = "sweep";
    /// The number of removed pastes.
    type Output = u64;
}

/// Removes stale pastes in batches, each a transaction. Several sweepers may run at once.
pub async fn sweep(task: Sweep, cx: Context) -> Result<u64, JobError> {
    let site = cx.state::<Arc<Site>>()?;
    let mut swept = 0;
    loop {
        let mut removals = Vec::new();
        for blob in site.database.stale_blobs(task.what, BATCH).await? {
            removals.push(site.removal(blob).await?);
        }
        if removals.is_empty() {
            return Ok(swept);
        }
        swept += site.database.sweep(task.what, removals, BATCH).await?;
    }
}

/// Stores the schedules. Every node does so, and each occurrence is still one job.
pub async fn schedule(redrive: &Redrive) -> Result<(), Error> {
    let every_minute = Schedule::every(Duration::from_secs(60))?;
    redrive.schedule("sweep-expired", every_minute, Sweep { what: StalePastes::Expired }).await?;
    let once_a_day = Schedule::daily(4, 0, "UTC")?;
    redrive.schedule("sweep-failed", once_a_day, Sweep { what: StalePastes::Failed }).await?;
    Ok(())
}
