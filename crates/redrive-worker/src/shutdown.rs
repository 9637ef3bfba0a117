//! Shuts a worker down: no new jobs, time for running attempts to finish, then every lease is settled or released.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::lease_table::AbortReason;
use crate::worker::{WorkerError, WorkerTasks};

/// How long an aborted attempt may take to end. An attempt that blocks its thread cannot be aborted; its lease runs out.
const ABORT_GRACE: Duration = Duration::from_secs(1);

/// Drains, releases the attempts that still run, writes all settlements, and stops the heartbeat last.
pub(crate) async fn shut_down(tasks: &mut WorkerTasks) -> Result<(), WorkerError> {
    tracing::debug!("shutdown");
    tasks.engine.stop.cancel();
    let drain = tasks.engine.settings.drain;
    if timeout(drain, drain_attempts(tasks)).await.is_err() {
        release_attempts(tasks).await;
    }
    flush_settlements(tasks).await?;
    tasks.heartbeat.stop().await;
    Ok(())
}

/// Waits until every slot is free and the intake tasks have ended.
async fn drain_attempts(tasks: &mut WorkerTasks) {
    let all = u32::try_from(tasks.engine.settings.concurrency).unwrap_or(u32::MAX);
    let _ = tasks.engine.slots.acquire_many(all).await;
    let _ = join_all(&mut tasks.intake).await;
}

/// Aborts the attempts that still run. Each of them settles itself as released.
async fn release_attempts(tasks: &mut WorkerTasks) {
    let count = tasks.engine.leases.abort_all(AbortReason::Released);
    tracing::warn!(count, "the drain time is over: running attempts are released");
    if timeout(ABORT_GRACE, drain_attempts(tasks)).await.is_err() {
        let count = tasks.engine.settings.concurrency - tasks.engine.slots.available_permits();
        tracing::warn!(
            count,
            "attempts block their threads and cannot be aborted: their leases will run out"
        );
    }
}

/// Writes the remaining settlements. Gives up after the longer of a lease and the drain time.
async fn flush_settlements(tasks: &mut WorkerTasks) -> Result<(), WorkerError> {
    tasks.engine.flush.cancel();
    let limit = tasks.engine.settings.lease.max(tasks.engine.settings.drain);
    let flushed = match timeout(limit, join_all(&mut tasks.writers)).await {
        Ok(flushed) => flushed,
        Err(_) => {
            tasks.engine.give_up.cancel();
            let last = timeout(ABORT_GRACE, join_all(&mut tasks.writers)).await;
            last.unwrap_or(Ok(()))
        }
    };
    flushed.map_err(|_| WorkerError::TaskPanicked("settle"))
}

async fn join_all(tasks: &mut JoinSet<()>) -> Result<(), tokio::task::JoinError> {
    while let Some(ended) = tasks.join_next().await {
        ended?;
    }
    Ok(())
}
