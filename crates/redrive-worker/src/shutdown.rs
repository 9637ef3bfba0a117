//! Ends a worker in good order: no new work, time to finish, then every lease settled or handed back.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::crew::Crew;
use crate::hold::Abort;
use crate::worker::WorkerError;

/// How long an aborted attempt may take to yield. One that blocks its thread cannot be aborted; its lease runs out.
const ABORT_GRACE: Duration = Duration::from_secs(1);

/// Drains, releases what is left, flushes the results, and stops the heartbeat last.
pub(crate) async fn shut_down(crew: &mut Crew) -> Result<(), WorkerError> {
    tracing::debug!("shutdown");
    crew.engine.stop.cancel();
    let drain = crew.engine.settings.drain;
    if timeout(drain, finish(crew)).await.is_err() {
        release(crew).await;
    }
    flush(crew).await?;
    crew.heartbeat.stop().await;
    Ok(())
}

/// Waits until every slot is free and nothing more can come in.
async fn finish(crew: &mut Crew) {
    let all = u32::try_from(crew.engine.settings.concurrency).unwrap_or(u32::MAX);
    let _ = crew.engine.slots.acquire_many(all).await;
    let _ = join(&mut crew.intake).await;
}

/// Aborts what still runs; each attempt settles itself as released.
async fn release(crew: &mut Crew) {
    let count = crew.engine.held.abort_all(Abort::Released);
    tracing::warn!(count, "drain is over: attempts released");
    if timeout(ABORT_GRACE, finish(crew)).await.is_err() {
        let count = crew.engine.settings.concurrency - crew.engine.slots.available_permits();
        tracing::warn!(count, "attempts do not yield: their leases will run out");
    }
}

/// Settles what has gathered. A store that takes longer than a lease or a drain is not waited for any more.
async fn flush(crew: &mut Crew) -> Result<(), WorkerError> {
    crew.engine.flush.cancel();
    let limit = crew.engine.settings.lease.max(crew.engine.settings.drain);
    let flushed = match timeout(limit, join(&mut crew.settle)).await {
        Ok(flushed) => flushed,
        Err(_) => {
            crew.engine.give_up.cancel();
            let last = timeout(ABORT_GRACE, join(&mut crew.settle)).await;
            last.unwrap_or(Ok(()))
        }
    };
    flushed.map_err(|_| WorkerError::Died("settle"))
}

async fn join(tasks: &mut JoinSet<()>) -> Result<(), tokio::task::JoinError> {
    while let Some(ended) = tasks.join_next().await {
        ended?;
    }
    Ok(())
}
