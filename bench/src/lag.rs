//! Measures how late jobs start when a thousand are due each second.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redrive_core::{Start, Store, Timestamp};
use redrive_worker::Settings;

use crate::figures::{Bar, Figure, Samples};
use crate::setup;

/// The 99th percentile of the start lag over `seconds`, once for each repeat.
pub fn figure(seconds: u64, repeats: usize) -> anyhow::Result<Figure> {
    let ours = Samples::take(repeats, || Ok(lags_ms(seconds)?.quantile(0.99)))?;
    Ok(Figure {
        name: "start lag at 1,000 due jobs/s, p99".to_owned(),
        unit: "ms",
        ours,
        other: None,
        bar: Some(Bar::AtMost(5.0)),
    })
}

/// The lag of each job in milliseconds, from its due time to the first line of the handler.
pub fn lags_ms(seconds: u64) -> anyhow::Result<Samples> {
    let folder = setup::folder()?;
    setup::block_on(async {
        let (store, policy) = setup::open(folder.path()).await?;
        let jobs = seconds as usize * 1000;
        let first = now_ms() as i64 + 1_500;
        for batch in (0..jobs).collect::<Vec<_>>().chunks(setup::BATCH) {
            let due = |at: &usize| Start::At(Timestamp::from_ms(first + *at as i64));
            let batch = batch.iter().map(|at| setup::job(&policy, due(at))).collect::<Result<_, _>>()?;
            store.enqueue(batch).await?;
        }
        let lags = Arc::new(Mutex::new(Vec::with_capacity(jobs)));
        let sink = lags.clone();
        let (stop, task) = setup::work(&store, Settings::default(), move |cx| {
            let lag = now_ms() - cx.job.next_run_at.as_ms() as f64;
            sink.lock().unwrap_or_else(PoisonError::into_inner).push(lag);
        })?;
        tokio::time::sleep(Duration::from_secs(seconds + 1)).await;
        setup::until_succeeded(&store, jobs as u64).await?;
        stop.cancel();
        task.await??;
        let lags = lags.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(Samples::of(lags))
    })
}

fn now_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() * 1e3
}
