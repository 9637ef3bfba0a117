//! The setup of measurements: a folder, a store in it, jobs, and a worker with a no-op handler.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use redrive_core::store::{Backend, EnqueueResult};
use redrive_core::{JobId, Kind, NewJob, Outcome, Policy, PolicyRef, Start, State, Store, catalog};
use redrive_store_sqlite::{Options, SqliteStore};
use redrive_worker::{Context, Settings, Worker};
use tokio_util::sync::CancellationToken;

/// The payload of every job: a small task as JSON.
pub const PAYLOAD: &[u8] = br#"{"order":123456,"customer":"c-000123","amount":1999}"#;
/// The largest batch that a store accepts.
pub const BATCH: usize = 1000;

/// A temporary folder in the current one, so that the benchmark measures the user's disk and not a RAM disk in /tmp.
pub fn folder() -> anyhow::Result<tempfile::TempDir> {
    tempfile::Builder::new()
        .prefix("redrive-bench-")
        .tempdir_in(".")
        .context("cannot create a folder for the files of the benchmark")
}

/// Runs a measurement on a runtime of its own.
pub fn block_on<T>(body: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(body)
}

/// Opens a store with the default policy in it.
pub async fn open(folder: &Path) -> anyhow::Result<(SqliteStore, PolicyRef)> {
    let store = SqliteStore::open(folder.join("redrive.db"), Options::default())?;
    let policy = catalog::put_inline(&store, &Policy::default(), redrive_core::Timestamp::default()).await?;
    Ok((store, policy))
}

/// A job to measure with.
pub fn job(policy: &PolicyRef, start: Start) -> anyhow::Result<NewJob> {
    Ok(NewJob { start, ..job_with(policy, PAYLOAD)? })
}

/// A job that is due now, with this payload.
pub fn job_with(policy: &PolicyRef, payload: &[u8]) -> anyhow::Result<NewJob> {
    let id = JobId(uuid::Uuid::now_v7());
    Ok(NewJob::new(id, Kind::new("bench")?, policy.clone(), payload.to_vec()))
}

/// A payload of `bytes` bytes, which the peers use too.
pub fn payload(bytes: usize) -> Vec<u8> {
    format!(r#"{{"data":"{}"}}"#, crate::payload::data(bytes)).into_bytes()
}

/// Enqueues jobs in batches.
pub async fn fill(store: &impl Store, policy: &PolicyRef, jobs: usize, start: Start) -> anyhow::Result<()> {
    fill_with(store, jobs, |_| job(policy, start)).await
}

/// Enqueues the jobs that `make` returns by their number, in batches.
pub async fn fill_with(
    store: &impl Store,
    jobs: usize,
    make: impl Fn(usize) -> anyhow::Result<NewJob>,
) -> anyhow::Result<()> {
    for first in (0..jobs).step_by(BATCH) {
        let batch = (first..jobs.min(first + BATCH)).map(&make).collect::<Result<_, _>>()?;
        let results = store.enqueue(batch).await?;
        anyhow::ensure!(
            results.iter().all(|result| matches!(result, EnqueueResult::Created(_))),
            "a job existed already"
        );
    }
    Ok(())
}

/// A worker that runs `handler` until its token is cancelled.
pub fn work<S, F>(
    store: &S,
    settings: Settings,
    handler: F,
) -> anyhow::Result<(CancellationToken, tokio::task::JoinHandle<anyhow::Result<()>>)>
where
    S: Backend + Clone + 'static,
    F: Fn(&Context) + Clone + Send + Sync + 'static,
{
    let stop = CancellationToken::new();
    let worker =
        Worker::new(Arc::new(store.clone()), settings)?.on(Kind::new("bench")?, move |cx: Context| {
            handler(&cx);
            async { Outcome::Done(None) }
        });
    let stopped = stop.clone();
    let task = tokio::spawn(async move {
        worker.run_until(stopped.cancelled()).await?;
        Ok(())
    });
    Ok((stop, task))
}

/// Waits until the store counts `jobs` succeeded jobs.
pub async fn until_succeeded(store: &impl Store, jobs: u64) -> anyhow::Result<()> {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(300);
    while store.stats().await?.in_state(State::Succeeded) < jobs {
        anyhow::ensure!(
            tokio::time::Instant::now() < deadline,
            "the jobs did not succeed within five minutes"
        );
        // Short enough for a measurement of one second, and long enough not to influence it.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}
