//! Compares the content of a store with the model.

use redrive_core::limits::PAGE_ITEMS_MAX;
use redrive_core::store::{Backend, Filter, PageRequest};
use redrive_core::{StoreError, Timestamp};

use super::check_equal;
use super::strategy::KINDS_OF_RECORDS;
use crate::model::Model;

/// Logs, steps, records and exports are compared after this many calls; jobs and counts after each.
const CALLS_BETWEEN: usize = 8;

/// Compares jobs and counts, and every few calls the rest.
pub(super) async fn compare(
    model: &Model,
    store: &dyn Backend,
    now: Timestamp,
    step: usize,
) -> Result<(), String> {
    if step % CALLS_BETWEEN == CALLS_BETWEEN - 1 {
        compare_all(model, store, now).await
    } else {
        compare_jobs(model, store, now).await
    }
}

/// Compares jobs, counts, logs, steps, records and exports.
pub(super) async fn compare_all(model: &Model, store: &dyn Backend, now: Timestamp) -> Result<(), String> {
    compare_jobs(model, store, now).await?;
    for job in model.jobs() {
        let page = PageRequest::first(PAGE_ITEMS_MAX);
        let expected = model.attempts(job.id, page).map_err(|e| e.to_string())?;
        let actual = store.attempts(job.id, page).await.map_err(text)?;
        check_equal(&format!("the log of {}", job.id), &expected, &actual)?;
        let steps = store.recall(job.id, 0, PAGE_ITEMS_MAX).await.map_err(text)?;
        check_equal(&format!("the steps of {}", job.id), &model.recall(job.id, 0, PAGE_ITEMS_MAX), &steps)?;
    }
    for kind in KINDS_OF_RECORDS {
        let actual = store.scan(kind, None, PAGE_ITEMS_MAX).await.map_err(text)?;
        check_equal("the records", &model.scan(kind, None, PAGE_ITEMS_MAX), &actual)?;
    }
    let expected = model.export(None, PAGE_ITEMS_MAX).map_err(|e| e.to_string())?;
    let actual = store.export(None, PAGE_ITEMS_MAX).await.map_err(text)?;
    check_equal("the export", &expected, &actual)?;
    let actual = store.export_records(None, PAGE_ITEMS_MAX).await.map_err(text)?;
    check_equal("the export of the records", &model.export_records(None, PAGE_ITEMS_MAX), &actual)
}

async fn compare_jobs(model: &Model, store: &dyn Backend, now: Timestamp) -> Result<(), String> {
    let page = PageRequest::first(PAGE_ITEMS_MAX);
    let expected = model.list(&Filter::default(), page).map_err(|e| e.to_string())?;
    let actual = store.list(Filter::default(), page).await.map_err(text)?;
    check_equal("the number of jobs", &expected.items.len(), &actual.items.len())?;
    for (expected, actual) in expected.items.iter().zip(&actual.items) {
        check_equal("a job", expected, actual)?;
    }
    check_equal("the counts", &model.stats(now), &store.stats().await.map_err(text)?)
}

fn text(error: StoreError) -> String {
    format!("the store failed: {error:?}")
}
