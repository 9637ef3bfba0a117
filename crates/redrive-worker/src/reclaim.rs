//! Takes over the leases of workers that fell silent, and decides about them as about any failure. Then looks after jobs
//! that wait for what has come already, because whoever should have resumed them fell silent.

use std::sync::Arc;

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::{Claimed, ReclaimRequest, Settlement, Store};
use redrive_core::{Job, JobId, Outcome, Timestamp};
use tokio::time::{MissedTickBehavior, interval};

use crate::claim::reject_unreadable;
use crate::engine::{Causes, Engine};
use crate::hold::Flight;
use crate::policies::Unresolved;
use crate::resume::sweep;
use crate::settle::Evidence;

/// Reclaims now, for the orphans of a crash before this start, and then at intervals.
pub(crate) async fn run(engine: Arc<Engine>) {
    let mut ticks = interval(engine.settings.reclaim_every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut swept: Option<JobId> = None;
    loop {
        tokio::select! {
            biased;
            () = engine.stop.cancelled() => return,
            _ = ticks.tick() => {
                reclaim_all(&engine).await;
                sweep(&engine, &mut swept).await;
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
            held: engine.process.all(),
        };
        match engine.intake.reclaim(request).await {
            Ok(orphans) => {
                if adopt(engine, orphans).await < BATCH_ITEMS_MAX {
                    return;
                }
            }
            Err(error) => return tracing::error!(error = %Causes(&error), "reclaim failed"),
        }
    }
}

/// Settles a batch of orphans; says how many there were.
async fn adopt(engine: &Engine, orphans: Claimed) -> usize {
    let count = orphans.jobs.len() + orphans.unreadable.len();
    if count > 0 {
        tracing::warn!(count, "reclaim");
        engine.counts.reclaimed.add(count);
    }
    engine.held.add(orphans.jobs.iter().map(|job| (job.lease(), Flight::grounded())));
    for job in orphans.jobs.into_iter().map(Arc::new) {
        match judge(engine, &job, &Outcome::LeaseExpired, orphans.now).await {
            Some(settlement) => engine.hand_over(Some(job), settlement).await,
            None => engine.held.remove([job.lease()]),
        }
    }
    reject_unreadable(engine, orphans.unreadable, orphans.now).await;
    count
}

/// Decides what follows an attempt that ended with `outcome` without reaching the store; none while its policy cannot be
/// loaded, so that the lease runs out once more.
pub(crate) async fn judge(
    engine: &Engine,
    job: &Job,
    outcome: &Outcome,
    now: Timestamp,
) -> Option<Settlement> {
    let started_at = job.started_at.unwrap_or(now);
    let evidence = Evidence::of(job, now, now.since(started_at));
    match engine.policies.get(&job.policy).await {
        Ok(policy) => {
            let run = job.as_run(&policy, engine.estimates.get(&engine.estimate_key(job)));
            let verdict = engine.decide(&run, outcome, now);
            Some(engine.settlement(evidence, outcome, verdict))
        }
        Err(unresolved @ (Unresolved::Missing(_) | Unresolved::Unreadable(..))) => {
            let outcome = Outcome::reject(unresolved);
            let verdict = engine.decide_without_policy(&outcome);
            Some(engine.settlement(evidence, &outcome, verdict))
        }
        Err(unresolved @ Unresolved::NotNow(..)) => {
            tracing::warn!(job = %job.id, error = %Causes(&unresolved), "settle put off until the lease runs out");
            None
        }
    }
}
