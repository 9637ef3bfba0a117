//! Settles a job whose settler fails. Otherwise its lease would run out again and again, without an explanation.

use std::error::Error as _;
use std::sync::Arc;

use redrive_core::limits::truncate_error;
use redrive_core::store::{ReclaimRequest, Settlement, Store, StoreError};
use redrive_core::{Failure, FailureKind, Job, Outcome, Panic, Timestamp, Verdict};

use super::writer::{Batch, SettlementWriter, UnwrittenBatch, drop_settlements, record_results};
use crate::engine::{Engine, ErrorChain};
use crate::storage_retry::RetryMode;

impl SettlementWriter {
    /// Settles the only job of `batch`, for which the settler has failed with `error`.
    ///
    /// A success becomes a failed attempt, and the settler is called for that. If the settler fails again, or if the settlement was
    /// no success in the first place, the store settles the job without the settler.
    pub(super) async fn handle_settler_failure(
        &self,
        engine: &Engine,
        mut batch: Batch,
        mut error: StoreError,
        mode: RetryMode,
    ) -> Result<(), UnwrittenBatch> {
        if matches!(batch.settlements.first(), Some(Settlement { verdict: Verdict::Complete(_), .. })) {
            let Some(failed) = failed_attempt(engine, &batch, &error).await else {
                drop_settlements(engine, &batch.settlements, &error);
                return Ok(());
            };
            batch.settlements = vec![failed];
            match self.settle(engine, &batch, mode).await {
                Ok(results) => {
                    record_results(engine, &batch, &results).await;
                    return Ok(());
                }
                Err(error) if self.should_wait_after(&error) => return Err(UnwrittenBatch { batch, error }),
                Err(second) => error = second,
            }
        }
        self.settle_without_settler(engine, batch, &error, mode).await
    }

    async fn settle_without_settler(
        &self,
        engine: &Engine,
        mut batch: Batch,
        cause: &StoreError,
        mode: RetryMode,
    ) -> Result<(), UnwrittenBatch> {
        for settlement in &mut batch.settlements {
            let error = error_message(cause);
            tracing::error!(job = %settlement.lease.id, %error, "the settler failed: the job ends without it");
            add_error(settlement, &error);
        }
        match engine.store.settle_with_mode(mode, &batch.settlements).await {
            Ok(results) => record_results(engine, &batch, &results).await,
            Err(error) if self.should_wait_after(&error) => return Err(UnwrittenBatch { batch, error }),
            Err(error) => drop_settlements(engine, &batch.settlements, &error),
        }
        Ok(())
    }
}

/// Builds the settlement of an attempt that failed because its settler failed. Returns none if the store's time or the policy
/// cannot be read.
async fn failed_attempt(engine: &Engine, batch: &Batch, error: &StoreError) -> Option<Settlement> {
    let job: &Arc<Job> = batch.jobs.first()?.as_ref()?;
    let now = store_time(engine).await?;
    let kind = if panic_of(error).is_some() { FailureKind::Panic } else { FailureKind::Error };
    let outcome = Outcome::Fail(Failure::new(kind, error_message(error)));
    tracing::error!(job = %job.id, error = error_message(error), "the settler failed: the attempt counts as failed");
    engine.settlement_by_policy(job, &outcome, now).await
}

/// Reads the store's time from the response to a reclaim of no jobs.
async fn store_time(engine: &Engine) -> Option<Timestamp> {
    let nothing =
        ReclaimRequest { kinds: Vec::new(), limit: 0, lease: engine.settings.lease, held: Vec::new() };
    engine.store.reclaim(nothing).await.ok().map(|reclaimed| reclaimed.now)
}

fn panic_of(error: &StoreError) -> Option<&Panic> {
    error.source().and_then(|source| source.downcast_ref())
}

fn error_message(error: &StoreError) -> String {
    let cause = match error {
        // The error is the settler's, so the message leaves out that the store failed.
        StoreError::Failed(cause) => ErrorChain(&**cause).to_string(),
        error => ErrorChain(error).to_string(),
    };
    format!("the end of the job could not be written: {cause}")
}

/// Adds to the settlement's error that the job has ended without its settler because of `error`.
fn add_error(settlement: &mut Settlement, error: &str) {
    let error = match settlement.error.take() {
        Some(before) if before.contains(error) => before,
        Some(before) => format!("{before}; {error}"),
        None => error.to_owned(),
    };
    let error = truncate_error(format!("{error}; the job ended without this write"));
    if let Some(entry) = &mut settlement.entry {
        entry.error = Some(error.clone());
    }
    settlement.error = Some(error);
}
