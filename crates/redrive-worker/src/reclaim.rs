//! Reclaims jobs whose workers stopped renewing their leases, and decides about them as about any failure. Then sweeps the
//! waiting jobs, because the worker that should have resumed one may have crashed.

use std::sync::Arc;

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::{ClaimedJobs, ReclaimRequest, Store};
use redrive_core::{JobId, Outcome};
use tokio::time::{MissedTickBehavior, interval};

use crate::claim::reject_unreadable;
use crate::engine::{Engine, ErrorChain};
use crate::lease_table::AttemptHandle;
use crate::resume::sweep;

/// Reclaims at the start, for jobs that an earlier crash left running, and then at intervals until the shutdown begins.
pub(crate) async fn run(engine: Arc<Engine>) {
    let mut ticks = interval(engine.settings.reclaim_every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_swept: Option<JobId> = None;
    loop {
        tokio::select! {
            biased;
            () = engine.stop.cancelled() => return,
            _ = ticks.tick() => {
                reclaim_all(&engine).await;
                sweep(&engine, &mut last_swept).await;
            }
        }
    }
}

async fn reclaim_all(engine: &Engine) {
    while !engine.stop.is_cancelled() {
        let request = ReclaimRequest {
            kinds: engine.kinds(),
            limit: BATCH_ITEMS_MAX,
            lease: engine.settings.lease,
            held: engine.process_leases.all(),
        };
        match engine.intake_store.reclaim(request).await {
            Ok(reclaimed) => {
                if settle_reclaimed(engine, reclaimed).await < BATCH_ITEMS_MAX {
                    return;
                }
            }
            Err(error) => return tracing::error!(error = %ErrorChain(&error), "reclaim failed"),
        }
    }
}

/// Settles a batch of reclaimed jobs, and returns their number.
async fn settle_reclaimed(engine: &Engine, reclaimed: ClaimedJobs) -> usize {
    let count = reclaimed.jobs.len() + reclaimed.unreadable.len();
    if count > 0 {
        tracing::warn!(count, "reclaim");
        engine.counts.reclaimed.add(count);
    }
    engine.leases.add(reclaimed.jobs.iter().map(|job| (job.lease(), AttemptHandle::without_handler())));
    for job in reclaimed.jobs.into_iter().map(Arc::new) {
        match engine.settlement_by_policy(&job, &Outcome::LeaseExpired, reclaimed.now).await {
            Some(settlement) => engine.submit(Some(job), settlement).await,
            None => engine.leases.remove([job.lease()]),
        }
    }
    reject_unreadable(engine, reclaimed.unreadable, reclaimed.now).await;
    count
}
