//! Measures the CPU time that heartbeats cost the server while one worker runs ten thousand jobs.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redrive_core::limits::LEASE_MAX;
use redrive_core::store::{Filter, PageRequest, Store as _};
use redrive_core::{Kind, Outcome, Start, Timestamp};
use redrive_store_postgres::PostgresStore;
use redrive_worker::{Context, Settings, Worker};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::Run;
use crate::comparison::figure;
use crate::figures::{Bar, Figure, Samples};
use crate::setup;

/// Jobs that run at once.
const JOBS: usize = 10_000;
/// The lease. The worker renews it every ten seconds.
const LEASE: Duration = Duration::from_secs(30);
/// The time in which all jobs must start.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The time from the last claim to the measurement, half a heartbeat, so that every measurement of ten seconds has one heartbeat.
const SETTLE_TIME: Duration = Duration::from_secs(5);

/// Compares a worker that renews its leases with one whose leases outlast the measurement.
pub(super) fn figures(run: &Run<'_>) -> anyhow::Result<Vec<Figure>> {
    let (mut renewing, mut silent) = (Vec::new(), Vec::new());
    for _ in 0..run.size.repeats {
        renewing.push(server_load(run, LEASE)?);
        silent.push(server_load(run, LEASE_MAX)?);
    }
    let name = format!("CPU time of the server for the heartbeats of {JOBS} jobs, of one core");
    let cost = Samples::of(renewing.iter().zip(&silent).map(|(renewing, silent)| renewing - silent));
    let other = Some(("without heartbeats".to_owned(), Samples::of(silent)));
    let total = format!("CPU time of the server while {JOBS} jobs run, of one core");
    Ok(vec![
        figure(&name, "%", &cost, None, Some(Bar::AtMost(2.0))),
        figure(&total, "%", &Samples::of(renewing), other, None),
    ])
}

/// The CPU time of the server in percent of one core, while a worker runs jobs that do not end.
fn server_load(run: &Run<'_>, lease: Duration) -> anyhow::Result<f64> {
    let database = run.server.database();
    setup::block_on(async {
        let (store, policy) = database.open().await?;
        setup::fill(&store, &policy, JOBS, Start::Now).await?;
        let started = Arc::new(AtomicUsize::new(0));
        let (stop, worker) = (CancellationToken::new(), worker(&store, lease, started.clone())?);
        let task = tokio::spawn({
            let stop = stop.clone();
            async move { worker.run_until(stop.cancelled()).await }
        });
        timeout(START_TIMEOUT, until_all_started(&started)).await?;
        sleep(SETTLE_TIME).await;
        let (lease_before, before) = (newest_lease_end(&store).await?, run.server.cpu_seconds()?);
        sleep(run.size.heartbeats).await;
        let used = run.server.cpu_seconds()? - before;
        let renewed = newest_lease_end(&store).await? > lease_before;
        anyhow::ensure!(renewed == (lease == LEASE), "a lease of {lease:?} was renewed: {renewed}");
        stop.cancel();
        task.await??;
        Ok(used / run.size.heartbeats.as_secs_f64() * 100.0)
    })
}

fn worker(store: &PostgresStore, lease: Duration, started: Arc<AtomicUsize>) -> anyhow::Result<Worker> {
    let settings = Settings::default().with_concurrency(JOBS).with_lease(lease).with_drain(Duration::ZERO);
    let worker = Worker::new(Arc::new(store.clone()), settings)?;
    Ok(worker.on(Kind::new("bench")?, move |_: Context| {
        started.fetch_add(1, Ordering::Relaxed);
        pending::<Outcome>()
    }))
}

/// When the lease of the newest job ends. Shows whether heartbeats were sent.
async fn newest_lease_end(store: &PostgresStore) -> anyhow::Result<Option<Timestamp>> {
    let page = store.list(Filter::default(), PageRequest::first(1)).await?;
    Ok(page.items.first().and_then(|job| job.lease_until))
}

async fn until_all_started(started: &AtomicUsize) {
    while started.load(Ordering::Relaxed) < JOBS {
        sleep(Duration::from_millis(50)).await;
    }
}
