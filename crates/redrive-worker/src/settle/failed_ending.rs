//! Settles a job whose handler cannot write what belongs to its end, so that the job does not wait for its lease again and
//! again without a word about the reason.

use std::error::Error as _;
use std::sync::Arc;

use redrive_core::limits::cut_error;
use redrive_core::store::{ReclaimRequest, Settlement, Store, StoreError};
use redrive_core::{Failure, Fault, Job, Outcome, Panic, Timestamp, Verdict};

use super::lane::{Batch, Lane, Unsettled, conclude, drop_batch};
use crate::engine::{Causes, Engine};
use crate::reclaim::judge;
use crate::storage_retry::Tries;

impl Lane {
    /// Settles the only job of `batch`, for which the settler has failed with `error`. A success becomes a failed attempt, and
    /// the settler is asked once more if that ends the job. If the settler fails for an end that is no success, the store
    /// writes that end without it.
    pub(super) async fn settle_failed_ending(
        &self,
        engine: &Engine,
        mut batch: Batch,
        mut error: StoreError,
        tries: Tries,
    ) -> Result<(), Unsettled> {
        if matches!(batch.settlements.first(), Some(Settlement { verdict: Verdict::Complete(_), .. })) {
            let Some(failed) = fail_attempt(engine, &batch, &error).await else {
                drop_batch(engine, &batch.settlements, &error);
                return Ok(());
            };
            batch.settlements = vec![failed];
            match self.apply(engine, &batch, tries).await {
                Ok(answers) => {
                    conclude(engine, &batch, &answers).await;
                    return Ok(());
                }
                Err(error) if self.waits_for(&error) => return Err(Unsettled { batch, error }),
                Err(again) => error = again,
            }
        }
        self.settle_without_settler(engine, batch, &error, tries).await
    }

    async fn settle_without_settler(
        &self,
        engine: &Engine,
        mut batch: Batch,
        cause: &StoreError,
        tries: Tries,
    ) -> Result<(), Unsettled> {
        for settlement in &mut batch.settlements {
            let error = explain(cause);
            tracing::error!(job = %settlement.lease.id, %error, "the job ends without what belongs to its end");
            add_error(settlement, &error);
        }
        match engine.store.settle_by(tries, &batch.settlements).await {
            Ok(answers) => conclude(engine, &batch, &answers).await,
            Err(error) if self.waits_for(&error) => return Err(Unsettled { batch, error }),
            Err(error) => drop_batch(engine, &batch.settlements, &error),
        }
        Ok(())
    }
}

/// The settlement of an attempt that has failed because its end could not be written; none while that cannot be decided.
async fn fail_attempt(engine: &Engine, batch: &Batch, error: &StoreError) -> Option<Settlement> {
    let job: &Arc<Job> = batch.jobs.first()?.as_ref()?;
    let now = store_time(engine).await?;
    let fault = if panic_of(error).is_some() { Fault::Panic } else { Fault::Error };
    let outcome = Outcome::Fail(Failure::new(fault, explain(error)));
    tracing::error!(job = %job.id, error = explain(error), "the attempt has failed");
    judge(engine, job, &outcome, now).await
}

/// The store's time: a request for no lease at all brings it.
async fn store_time(engine: &Engine) -> Option<Timestamp> {
    let nothing =
        ReclaimRequest { kinds: Vec::new(), limit: 0, lease: engine.settings.lease, held: Vec::new() };
    engine.store.reclaim(nothing).await.ok().map(|answer| answer.now)
}

fn panic_of(error: &StoreError) -> Option<&Panic> {
    error.source().and_then(|source| source.downcast_ref())
}

/// What a person should read about a settler that has failed.
fn explain(error: &StoreError) -> String {
    let cause = match error {
        // It is not the store that has failed.
        StoreError::Failed(cause) => Causes(&**cause).to_string(),
        error => Causes(error).to_string(),
    };
    format!("the end of the job could not be written: {cause}")
}

/// Adds to what a settlement says about its attempt that the job has ended without its settler, because of `error`.
fn add_error(settlement: &mut Settlement, error: &str) {
    let error = match settlement.error.take() {
        Some(before) if before.contains(error) => before,
        Some(before) => format!("{before}; {error}"),
        None => error.to_owned(),
    };
    let error = cut_error(format!("{error}; the job ended without it"));
    if let Some(entry) = &mut settlement.entry {
        entry.error = Some(error.clone());
    }
    settlement.error = Some(error);
}
