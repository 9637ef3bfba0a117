//! Measures how soon an idle worker starts a job, from the return of the enqueue to the first line of the handler.

use std::time::{Duration, Instant};

use redrive_core::store::Backend;
use redrive_core::{PolicyRef, Start};
use redrive_worker::Settings;
use tokio::sync::mpsc;

use crate::figures::{Bar, Figure, Samples};
use crate::setup;

/// The 99th percentile over `picks` jobs, once for each repeat.
pub fn figure(picks: usize, repeats: usize) -> anyhow::Result<Figure> {
    let ours = Samples::take(repeats, || Ok(delays_ms(picks)?.quantile(0.99)))?;
    Ok(Figure {
        name: "idle pick-up, enqueue to handler start, p99".to_owned(),
        unit: "ms",
        ours,
        other: None,
        bar: Some(Bar::AtMost(2.0)),
    })
}

/// The delay of each job, in milliseconds.
pub fn delays_ms(picks: usize) -> anyhow::Result<Samples> {
    let folder = setup::folder()?;
    setup::block_on(async {
        let (store, policy) = setup::open(folder.path()).await?;
        delays(&store, &policy, picks, || Duration::from_millis(5)).await
    })
}

/// The delays on a store. The pause before each job lets the worker settle the last one and become idle.
pub async fn delays<S: Backend + Clone + 'static>(
    store: &S,
    policy: &PolicyRef,
    picks: usize,
    mut pause: impl FnMut() -> Duration,
) -> anyhow::Result<Samples> {
    let (sender, mut starts) = mpsc::unbounded_channel();
    let (stop, task) = setup::work(store, Settings::default(), move |_| {
        let _ = sender.send(Instant::now());
    })?;
    let mut delays = Vec::with_capacity(picks);
    for _ in 0..picks {
        tokio::time::sleep(pause()).await;
        let job = setup::job(policy, Start::Now)?;
        store.enqueue(vec![job]).await?;
        let enqueued = Instant::now();
        let started = starts.recv().await.ok_or_else(|| anyhow::anyhow!("the worker ended"))?;
        delays.push(started.saturating_duration_since(enqueued).as_secs_f64() * 1e3);
    }
    stop.cancel();
    task.await??;
    Ok(Samples::of(delays))
}
