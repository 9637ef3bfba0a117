//! Compares everything that a store shows with the model.

use redrive_core::limits::PAGE_ITEMS_MAX;
use redrive_core::store::{Backend, Filter, PageRequest};
use redrive_core::{StoreError, Timestamp};

use super::same;
use super::strategy::KINDS_OF_RECORDS;
use crate::model::Model;

/// How many calls lie between two comparisons of logs and records; jobs and counts are compared after each.
const STEPS_BETWEEN: usize = 8;

/// Compares jobs and counts, and now and then the rest too.
pub(super) async fn compare(
    model: &Model,
    store: &dyn Backend,
    now: Timestamp,
    step: usize,
) -> Result<(), String> {
    if step % STEPS_BETWEEN == STEPS_BETWEEN - 1 {
        compare_all(model, store, now).await
    } else {
        compare_jobs(model, store, now).await
    }
}

/// Compares jobs, counts, logs and records, and what an export makes of them.
pub(super) async fn compare_all(model: &Model, store: &dyn Backend, now: Timestamp) -> Result<(), String> {
    compare_jobs(model, store, now).await?;
    for job in model.jobs() {
        let page = PageRequest::first(PAGE_ITEMS_MAX);
        let expected = model.attempts(job.id, page).map_err(|e| e.to_string())?;
        let actual = store.attempts(job.id, page).await.map_err(text)?;
        same(&format!("the log of {}", job.id), &expected, &actual)?;
        let steps = store.recall(job.id, 0, PAGE_ITEMS_MAX).await.map_err(text)?;
        same(&format!("the steps of {}", job.id), &model.recall(job.id, 0, PAGE_ITEMS_MAX), &steps)?;
    }
    for kind in KINDS_OF_RECORDS {
        let actual = store.scan(kind, None, PAGE_ITEMS_MAX).await.map_err(text)?;
        same("the records", &model.scan(kind, None, PAGE_ITEMS_MAX), &actual)?;
    }
    let expected = model.export(None, PAGE_ITEMS_MAX).map_err(|e| e.to_string())?;
    let actual = store.export(None, PAGE_ITEMS_MAX).await.map_err(text)?;
    same("the export", &expected, &actual)?;
    let actual = store.export_records(None, PAGE_ITEMS_MAX).await.map_err(text)?;
    same("the export of the records", &model.export_records(None, PAGE_ITEMS_MAX), &actual)
}

async fn compare_jobs(model: &Model, store: &dyn Backend, now: Timestamp) -> Result<(), String> {
    let page = PageRequest::first(PAGE_ITEMS_MAX);
    let expected = model.list(&Filter::default(), page).map_err(|e| e.to_string())?;
    let actual = store.list(Filter::default(), page).await.map_err(text)?;
    same("how many jobs there are", &expected.items.len(), &actual.items.len())?;
    for (expected, actual) in expected.items.iter().zip(&actual.items) {
        same("a job", expected, actual)?;
    }
    same("the counts", &model.stats(now), &store.stats().await.map_err(text)?)
}

fn text(error: StoreError) -> String {
    format!("the store failed: {error:?}")
}
