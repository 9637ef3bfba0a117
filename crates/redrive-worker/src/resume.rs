//! Makes jobs due whose wait has come to an end: after each settlement that may have ended one, and by a sweep now and
//! then for what a crash has left behind.

use std::collections::BTreeSet;

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::{Settled, Settlement};
use redrive_core::{Job, JobId, Steps};

use crate::engine::{Causes, Engine};

/// Pages of one sweep; the next one goes on from there.
const SWEEP_PAGES: usize = 10;

/// Whom a settlement concerns: a job that has just begun to wait, since what it waits for may have come meanwhile, and the
/// parent of one that has ended.
pub(crate) fn concerned(settlement: &Settlement, job: Option<&Job>, answer: Settled) -> Option<JobId> {
    match answer {
        Settled::Applied(state) if state.is_final() => job.and_then(|job| job.parent).map(|parent| parent.id),
        Settled::Applied(_) => settlement.verdict.awaits().map(|_| settlement.lease.id),
        Settled::LeaseLost => None,
    }
}

/// Resumes those of the jobs that need wait no longer.
pub(crate) async fn resume(engine: &Engine, ids: BTreeSet<JobId>) {
    let ids: Vec<JobId> = ids.into_iter().collect();
    for batch in ids.chunks(BATCH_ITEMS_MAX) {
        if let Err(error) = engine.store.resume(batch.to_vec()).await {
            let (count, error) = (batch.len(), Causes(&error));
            tracing::error!(count, %error, "resume failed: left to the next sweep");
        }
    }
}

/// Goes on with a sweep from `last`, which moves on.
pub(crate) async fn sweep(engine: &Engine, last: &mut Option<JobId>) {
    for _ in 0..SWEEP_PAGES {
        match engine.intake.sweep(*last, BATCH_ITEMS_MAX).await {
            Ok(swept) => {
                if !swept.resumed.is_empty() {
                    tracing::warn!(count = swept.resumed.len(), "sweep: resumed what nobody had");
                }
                *last = swept.last;
            }
            Err(error) => return tracing::error!(error = %Causes(&error), "sweep failed"),
        }
        if last.is_none() {
            return;
        }
    }
}
