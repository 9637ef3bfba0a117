//! Measures apalis-postgres: batch and one-by-one enqueue, drain, and pickup latency.

#[path = "../../phases.rs"]
mod phases;
#[path = "../../phases_postgres.rs"]
mod phases_postgres;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use apalis::prelude::*;
use apalis_postgres::{Config, PostgresStorage};
use futures::FutureExt;
use phases::{Enqueue, Probe};
use phases_postgres::{Args, Load, Peer};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// The workers of the drain. A worker acknowledges its jobs before it fetches again, so several workers overlap. 16 workers were no
/// faster than 8.
const WORKERS: usize = 8;
/// Jobs that a worker fetches, and acknowledges, at once. 200 and 500 were slower, and 2000 was no faster.
const FETCH: usize = 1000;
/// The poll interval of an idle drain worker. It hardly matters, because the jobs are already due.
const DRAIN_POLL: Duration = Duration::from_millis(100);
/// The poll interval of the pickup worker, in case it misses a notification.
const PICKUP_POLL: Duration = Duration::from_secs(1);
const CONNECTIONS: u32 = 20;

#[derive(Clone, Serialize, Deserialize)]
struct Noop {
    data: String,
}

#[derive(Clone)]
struct Apalis {
    storage: PostgresStorage<Noop>,
    job: Noop,
}

impl Enqueue for Apalis {
    async fn one(&mut self) -> Result<()> {
        Ok(self.storage.push(self.job.clone()).await?)
    }

    async fn batch(&mut self, size: usize) -> Result<()> {
        Ok(self.storage.push_bulk(vec![self.job.clone(); size]).await?)
    }
}

async fn noop(_: Noop, probe: Data<Arc<Probe>>) -> Result<(), BoxDynError> {
    probe.started();
    Ok(())
}

/// A monitor with its workers. It ends when `stop` is dropped.
struct Running {
    stop: oneshot::Sender<()>,
    monitor: JoinHandle<Result<(), MonitorError>>,
}

impl Peer for Apalis {
    type Worker = Running;
    type Database = PgPool;
    const NAME: &'static str = "apalis-postgres";
    const BATCH_CALLERS: usize = 4;

    fn settings() -> String {
        format!(
            "push_bulk of 1000 from {} connections; drain: {WORKERS} workers, batch_size {FETCH}, \
             lock_tasks off, acknowledged in batches; keeps completed jobs; pickup: one worker woken \
             by NOTIFY (with_pubsub); {CONNECTIONS} connections",
            Self::BATCH_CALLERS
        )
    }

    fn version() -> Result<String> {
        phases::locked_version(include_str!("../Cargo.lock"), "apalis-postgres")
    }

    async fn start(&self, load: Load, probe: &Arc<Probe>) -> Result<Running> {
        let (backend, data) = (self.storage.clone(), probe.clone());
        let monitor = match load {
            Load::Backlog => Monitor::new().register_n(WORKERS, move |index, run| {
                WorkerBuilder::new(format!("drain-{index}-{run}"))
                    .backend(backend.clone().poll_with_interval(DRAIN_POLL))
                    .data(data.clone())
                    .build(noop)
            }),
            Load::Idle => Monitor::new().register(move |run| {
                WorkerBuilder::new(format!("pickup-{run}"))
                    .backend(backend.clone().with_pubsub().poll_with_interval(PICKUP_POLL))
                    .data(data.clone())
                    .build(noop)
            }),
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let monitor = tokio::spawn(monitor.run_with_signal(stopped.map(|_| Ok(()))));
        Ok(Running { stop, monitor })
    }

    async fn stop(&self, running: Running) -> Result<()> {
        drop(running.stop);
        let ended = timeout(Duration::from_secs(30), running.monitor).await;
        ended.context("the workers did not stop")???;
        Ok(())
    }

    async fn done(&self, reader: &PgPool, _added: usize) -> Result<usize> {
        let sql = "SELECT count(*) FROM apalis.jobs WHERE status = 'Done'";
        let done: i64 = sqlx::query_scalar(sql).fetch_one(reader).await?;
        Ok(done as usize)
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse()?;
    let reader = phases_postgres::open_reader(&args.url).await?;
    let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(&args.url).await?;
    PostgresStorage::setup(&pool).await?;
    // The fetch already claims a job for the worker. The lock would be a second write, which only distinguishes Running from Queued.
    let config = Config::default().queue("noop").batch_size(FETCH).lock_tasks(false);
    let storage = PostgresStorage::new(&pool).with_config(config);
    let job = Noop { data: args.data.clone() };
    phases_postgres::measure(&args, Apalis { storage, job }, reader).await
}
