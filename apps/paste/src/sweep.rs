//! Sweeps away pastes that have expired, and those that failed more than a day ago.

use std::sync::Arc;
use std::time::Duration;

use redrive::{Context, Error, JobError, Redrive, Schedule, Task};
use serde::{Deserialize, Serialize};

use crate::database::Stale;
use crate::site::Site;

/// Pastes that are looked at in one batch, and that one blob loses in it.
const BATCH: i64 = 100;

/// Sweeps until nothing is left that is stale.
#[derive(Debug, Serialize, Deserialize)]
pub struct Sweep {
    /// What to look for.
    pub what: Stale,
}

impl Task for Sweep {
    const KIND: &'static str = "sweep";
    /// How many pastes are gone.
    type Output = u64;
}

/// Sweeps in batches, each a transaction. Another sweeper at the same time only leaves less to do.
pub async fn sweep(task: Sweep, cx: Context) -> Result<u64, JobError> {
    let site = cx.state::<Arc<Site>>()?;
    let mut swept = 0;
    loop {
        let mut removals = Vec::new();
        for blob in site.database.stale(task.what, BATCH).await? {
            removals.push(site.removal(blob).await?);
        }
        if removals.is_empty() {
            return Ok(swept);
        }
        swept += site.database.sweep(task.what, removals, BATCH).await?;
    }
}

/// Keeps the schedules in the store: every node does, and each occurrence is one job all the same.
pub async fn schedule(redrive: &Redrive) -> Result<(), Error> {
    let every_minute = Schedule::every(Duration::from_secs(60))?;
    redrive.schedule("sweep-expired", every_minute, Sweep { what: Stale::Expired }).await?;
    let once_a_day = Schedule::daily(4, 0, "UTC")?;
    redrive.schedule("sweep-failed", once_a_day, Sweep { what: Stale::Failed }).await?;
    Ok(())
}
