//! Makes waiting jobs due once their wait is over: after each settlement that may have ended a wait, and by a periodic sweep
//! for jobs that a crash left waiting.

use std::collections::BTreeSet;

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::{SettleResult, Settlement};
use redrive_core::{Job, JobId, Steps};

use crate::engine::{Engine, ErrorChain};

/// The pages that one sweep reads. The next sweep continues after them.
const SWEEP_PAGES: usize = 10;

/// Returns the job that may no longer have to wait after this settlement: the parent of a job that has ended, or a job that has
/// just started to wait, because its signal may have arrived before the settlement.
pub(crate) fn job_to_resume(
    settlement: &Settlement,
    job: Option<&Job>,
    result: SettleResult,
) -> Option<JobId> {
    match result {
        SettleResult::Applied(state) if state.is_final() => {
            job.and_then(|job| job.parent).map(|parent| parent.id)
        }
        SettleResult::Applied(_) => settlement.verdict.awaits().map(|_| settlement.lease.id),
        SettleResult::LeaseLost => None,
    }
}

/// Resumes the jobs among `ids` whose wait is over.
pub(crate) async fn resume_jobs(engine: &Engine, ids: BTreeSet<JobId>) {
    let ids: Vec<JobId> = ids.into_iter().collect();
    for batch in ids.chunks(BATCH_ITEMS_MAX) {
        if let Err(error) = engine.store.resume(batch.to_vec()).await {
            let (count, error) = (batch.len(), ErrorChain(&error));
            tracing::error!(count, %error, "resume failed: the next sweep will resume these jobs");
        }
    }
}

/// Continues the sweep over all waiting jobs after `last`, and updates `last`.
pub(crate) async fn sweep(engine: &Engine, last: &mut Option<JobId>) {
    for _ in 0..SWEEP_PAGES {
        match engine.intake_store.sweep(*last, BATCH_ITEMS_MAX).await {
            Ok(page) => {
                if !page.resumed.is_empty() {
                    tracing::warn!(count = page.resumed.len(), "the sweep resumed jobs whose wait was over");
                }
                *last = page.last;
            }
            Err(error) => return tracing::error!(error = %ErrorChain(&error), "sweep failed"),
        }
        if last.is_none() {
            return;
        }
    }
}
