//! Measures enqueues: in batches, and one at a time from many tasks that share commits.

use std::time::Instant;

use redrive_core::{NewJob, Start, Store};

use crate::figures::{Bar, Figure, Samples};
use crate::{probe, setup};

/// Tasks that enqueue at the same time.
const TASKS: usize = 64;

/// Compares batches of a thousand with raw inserts of the same row.
pub fn batches(jobs: usize, repeats: usize) -> anyhow::Result<Figure> {
    let (mut ours, mut raw) = (Vec::new(), Vec::new());
    for _ in 0..repeats {
        raw.push(raw_rate(jobs, setup::BATCH)?);
        ours.push(batch_rate(jobs)?);
    }
    Ok(Figure {
        name: "enqueue in batches of 1000".to_owned(),
        unit: "/s",
        ours: Samples::of(ours),
        other: Some(("raw inserts of the same row".to_owned(), Samples::of(raw))),
        bar: Some(Bar::AtLeast(0.5)),
    })
}

/// Compares single enqueues from 64 tasks with one commit for each job.
pub fn singles(jobs: usize, repeats: usize) -> anyhow::Result<Figure> {
    let (mut ours, mut raw) = (Vec::new(), Vec::new());
    for _ in 0..repeats {
        raw.push(raw_rate(jobs / 20, 1)?);
        ours.push(single_rate(jobs)?);
    }
    Ok(Figure {
        name: "enqueue one at a time from 64 tasks".to_owned(),
        unit: "/s",
        ours: Samples::of(ours),
        other: Some(("raw, one commit each".to_owned(), Samples::of(raw))),
        bar: Some(Bar::AtLeast(10.0)),
    })
}

/// Jobs per second in full batches.
pub fn batch_rate(jobs: usize) -> anyhow::Result<f64> {
    let folder = setup::folder()?;
    setup::block_on(async {
        let (store, policy) = setup::open(folder.path()).await?;
        let started = Instant::now();
        setup::fill(&store, &policy, jobs, Start::Now).await?;
        Ok(jobs as f64 / started.elapsed().as_secs_f64())
    })
}

/// Jobs per second one call at a time from each of 64 tasks.
pub fn single_rate(jobs: usize) -> anyhow::Result<f64> {
    let folder = setup::folder()?;
    setup::block_on(async {
        let (store, policy) = setup::open(folder.path()).await?;
        enqueue_singly(&store, jobs, move || setup::job(&policy, Start::Now)).await
    })
}

/// Enqueues one job per call from each of 64 tasks. Returns jobs per second.
pub async fn enqueue_singly<S: Store + Clone + 'static>(
    store: &S,
    jobs: usize,
    make: impl Fn() -> anyhow::Result<NewJob> + Clone + Send + Sync + 'static,
) -> anyhow::Result<f64> {
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..TASKS {
        let (store, make) = (store.clone(), make.clone());
        tasks.spawn(async move {
            for _ in 0..jobs / TASKS {
                store.enqueue(vec![make()?]).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok((jobs / TASKS * TASKS) as f64 / started.elapsed().as_secs_f64())
}

fn raw_rate(jobs: usize, batch: usize) -> anyhow::Result<f64> {
    let folder = setup::folder()?;
    let path = folder.path().join("redrive.db");
    // The engine creates its tables. The probe then writes the same rows without the engine.
    setup::block_on(async { setup::open(folder.path()).await.map(drop) })?;
    let mut conn = probe::open(&path)?;
    let started = Instant::now();
    probe::insert_same_row(&mut conn, jobs, batch, setup::PAYLOAD)?;
    Ok(jobs as f64 / started.elapsed().as_secs_f64())
}
