//! Measures how fast a worker claims, runs and settles no-op jobs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redrive_core::Start;
use redrive_core::store::Backend;
use redrive_worker::Settings;
use tokio::time::sleep;

use crate::figures::{Bar, Figure, Samples};
use crate::{probe, setup};

/// Attempts at once, enough for full batches of claims and settlements.
pub const CONCURRENCY: usize = 4000;

/// Compares the engine with a raw loop.
pub fn figure(jobs: usize, repeats: usize) -> anyhow::Result<Figure> {
    let (mut ours, mut raw) = (Vec::new(), Vec::new());
    for _ in 0..repeats {
        raw.push(raw_rate(jobs)?);
        ours.push(rate(jobs)?);
    }
    Ok(Figure {
        name: "drain no-op jobs, confirmed by the database".to_owned(),
        unit: "/s",
        ours: Samples::of(ours),
        other: Some(("raw rusqlite loop".to_owned(), Samples::of(raw))),
        bar: Some(Bar::AtLeast(0.5)),
    })
}

/// Jobs per second through the engine.
pub fn rate(jobs: usize) -> anyhow::Result<f64> {
    let folder = setup::folder()?;
    setup::block_on(async {
        let (store, policy) = setup::open(folder.path()).await?;
        setup::fill(&store, &policy, jobs, Start::Now).await?;
        drain(&store, jobs, 0).await
    })
}

/// Drains `jobs` due jobs in a store where `before` jobs have succeeded already. Returns jobs per second.
pub async fn drain<S: Backend + Clone + 'static>(
    store: &S,
    jobs: usize,
    before: usize,
) -> anyhow::Result<f64> {
    let settings = Settings::default().with_concurrency(CONCURRENCY);
    let handled = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    let (stop, task) = setup::work(store, settings, {
        let handled = handled.clone();
        move |_| {
            handled.fetch_add(1, Ordering::Relaxed);
        }
    })?;
    // The counts of the database are read only at the end: reading them all the time would slow down what is measured.
    while handled.load(Ordering::Relaxed) < jobs && !task.is_finished() {
        sleep(Duration::from_millis(1)).await;
    }
    setup::until_succeeded(store, (before + jobs) as u64).await?;
    let rate = jobs as f64 / started.elapsed().as_secs_f64();
    stop.cancel();
    task.await??;
    Ok(rate)
}

fn raw_rate(jobs: usize) -> anyhow::Result<f64> {
    let folder = setup::folder()?;
    let mut conn = probe::open(&folder.path().join("raw.db"))?;
    probe::fill(&mut conn, jobs, setup::PAYLOAD)?;
    let started = Instant::now();
    let drained = probe::drain(&mut conn)?;
    anyhow::ensure!(drained == jobs, "the probe drained {drained} of {jobs}");
    Ok(jobs as f64 / started.elapsed().as_secs_f64())
}
