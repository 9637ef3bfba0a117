//! Measures the drain of a queue without limits, while another queue with a backlog is at its limit.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive::{Queue, QueueLimits, Redrive};
use redrive_core::{Kind, NewJob, Outcome, PolicyRef, Start};
use redrive_store_postgres::PostgresStore;
use redrive_worker::{Context, Settings, Worker};
use tokio_util::sync::CancellationToken;

use super::Run;
use crate::comparison::figure;
use crate::drain::CONCURRENCY;
use crate::figures::{Bar, Figure, Samples};
use crate::setup;

/// Jobs of the limited queue that may run at once. They run until the end of the measurement.
const LIMIT: u32 = 10;
/// Jobs of the limited queue. They were enqueued before those of the other queue.
const BACKLOG: usize = 10_000;
/// The kind of the jobs that do not end.
const ENDLESS: &str = "endless";

/// Compares the queue next to a limited one with the queue alone. One worker serves both.
pub(super) fn figures(run: &Run<'_>) -> anyhow::Result<Vec<Figure>> {
    let (mut beside, mut alone) = (Vec::new(), Vec::new());
    for _ in 0..run.size.repeats {
        alone.push(rate(run, 0)?);
        beside.push(rate(run, BACKLOG)?);
    }
    let name = format!("drain next to a queue at its limit of {LIMIT} with a backlog of {BACKLOG}");
    let other = Some(("without the other queue".to_owned(), Samples::of(alone)));
    Ok(vec![figure(&name, "/s", &Samples::of(beside), other, Some(Bar::AtLeast(0.9)))])
}

fn rate(run: &Run<'_>, backlog: usize) -> anyhow::Result<f64> {
    let (database, jobs) = (run.server.database(), run.size.jobs);
    setup::block_on(async {
        let (store, policy) = database.open().await?;
        if backlog > 0 {
            add_limited_queue(&store, &policy, backlog).await?;
        }
        setup::fill(&store, &policy, jobs, Start::Now).await?;
        let (stop, worker) = (CancellationToken::new(), worker(&store)?);
        let started = Instant::now();
        let task = tokio::spawn({
            let stop = stop.clone();
            async move { worker.run_until(stop.cancelled()).await }
        });
        setup::until_succeeded(&store, jobs as u64).await?;
        let rate = jobs as f64 / started.elapsed().as_secs_f64();
        stop.cancel();
        task.await??;
        Ok(rate)
    })
}

async fn add_limited_queue(store: &PostgresStore, policy: &PolicyRef, jobs: usize) -> anyhow::Result<()> {
    let queue = Queue::new("limited")?;
    let limits = QueueLimits { concurrency: Some(LIMIT), ..QueueLimits::default() };
    Redrive::on(Arc::new(store.clone())).set_limits(&queue, limits).await?;
    let make = |_| {
        let job = setup::job(policy, Start::Now)?;
        Ok(NewJob { queue: queue.clone(), kind: Kind::new(ENDLESS)?, ..job })
    };
    setup::fill_with(store, jobs, make).await
}

fn worker(store: &PostgresStore) -> anyhow::Result<Worker> {
    let settings = Settings::default().with_concurrency(CONCURRENCY).with_drain(Duration::ZERO);
    Ok(Worker::new(Arc::new(store.clone()), settings)?
        .on(Kind::new("bench")?, |_: Context| async { Outcome::Done(None) })
        .on(Kind::new(ENDLESS)?, |_: Context| pending::<Outcome>()))
}
