//! Measures graphile_worker: batch and one-by-one enqueue, drain, and pickup latency.

#[path = "../../phases.rs"]
mod phases;
#[path = "../../phases_postgres.rs"]
mod phases_postgres;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use graphile_worker::runner::WorkerRuntimeError;
use graphile_worker::{
    Database, IntoTaskHandlerResult, JobSpec, LocalQueueConfig, RawJobSpec, TaskHandler, Worker,
    WorkerContext, WorkerOptions, WorkerUtils,
};
use phases::{Enqueue, Probe};
use phases_postgres::{Args, Load, Peer};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::task::JoinHandle;

/// Local queues. Each fetches jobs independently, so the second queue fetches while the jobs of the first one run. A third queue was no
/// faster.
const LOCAL_QUEUES: usize = 2;
/// Jobs that a local queue fetches at once. A single queue of 5000 or 10000 was slower.
const LOCAL_QUEUE_SIZE: usize = 5000;
/// Jobs that run at once. Values from 16 to 500 made little difference, because the handler does nothing.
const CONCURRENCY: usize = 64;
/// How long completions are collected before one statement deletes their jobs. 20 ms and more were slower, and 1 ms was no faster.
const BATCH_DELAY: Duration = Duration::from_millis(5);
/// The time after which an empty local queue fetches again.
const DRAIN_POLL: Duration = Duration::from_millis(5);
/// Jobs that run at once during pickups. After a notification, every idle slot queries the database for one job.
const PICKUP_CONCURRENCY: usize = 4;
const CONNECTIONS: u32 = 20;
const SCHEMA: &str = "graphile_worker";

#[derive(Clone)]
struct Graphile {
    database: Database,
    utils: WorkerUtils,
    data: String,
}

#[derive(Serialize, Deserialize)]
struct Noop {
    data: String,
}

/// The probe in the context of the handler, which must implement `Debug`.
#[derive(Clone)]
struct ProbeExtension(Arc<Probe>);

impl std::fmt::Debug for ProbeExtension {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ProbeExtension")
    }
}

impl TaskHandler for Noop {
    const IDENTIFIER: &'static str = "noop";

    async fn run(self, ctx: WorkerContext) -> impl IntoTaskHandlerResult {
        if let Some(probe) = ctx.get_ext::<ProbeExtension>() {
            probe.0.started();
        }
        Ok::<(), String>(())
    }
}

impl Enqueue for Graphile {
    async fn one(&mut self) -> Result<()> {
        self.utils.add_job(Noop { data: self.data.clone() }, JobSpec::default()).await?;
        Ok(())
    }

    async fn batch(&mut self, size: usize) -> Result<()> {
        let job = || RawJobSpec {
            identifier: Noop::IDENTIFIER.to_owned(),
            payload: serde_json::json!({ "data": self.data }),
            spec: JobSpec::default(),
        };
        let jobs: Vec<_> = std::iter::repeat_with(job).take(size).collect();
        self.utils.add_raw_jobs(&jobs).await?;
        Ok(())
    }
}

impl Peer for Graphile {
    type Worker = (Arc<Worker>, JoinHandle<Result<(), WorkerRuntimeError>>);
    type Database = PgPool;
    const NAME: &'static str = "graphile_worker";
    const BATCH_CALLERS: usize = 4;

    fn settings() -> String {
        format!(
            "add_raw_jobs of 1000 from {} connections; drain: {LOCAL_QUEUES} local queues of \
             {LOCAL_QUEUE_SIZE}, no refetch delay, poll {} ms, concurrency {CONCURRENCY}, completions \
             and failures batched for {} ms; deletes completed jobs; pickup: concurrency \
             {PICKUP_CONCURRENCY}, no local queue, woken by NOTIFY; sqlx driver, {CONNECTIONS} connections",
            Self::BATCH_CALLERS,
            DRAIN_POLL.as_millis(),
            BATCH_DELAY.as_millis(),
        )
    }

    fn version() -> Result<String> {
        phases::locked_version(include_str!("../Cargo.lock"), "graphile_worker")
    }

    async fn start(&self, load: Load, probe: &Arc<Probe>) -> Result<Self::Worker> {
        let options = WorkerOptions::default()
            .database(self.database.clone())
            .schema(SCHEMA)
            .add_extension(ProbeExtension(probe.clone()))
            .define_job::<Noop>()
            .complete_job_batch_delay(BATCH_DELAY)
            .fail_job_batch_delay(BATCH_DELAY);
        let options = match load {
            Load::Backlog => options.concurrency(CONCURRENCY).poll_interval(DRAIN_POLL).local_queue(
                LocalQueueConfig::default().with_size(LOCAL_QUEUE_SIZE).with_queue_count(LOCAL_QUEUES),
            ),
            Load::Idle => options.concurrency(PICKUP_CONCURRENCY),
        };
        let worker = Arc::new(options.init().await?);
        let running = worker.clone();
        Ok((worker, tokio::spawn(async move { running.run().await })))
    }

    async fn stop(&self, (worker, running): Self::Worker) -> Result<()> {
        worker.request_shutdown();
        Ok(running.await??)
    }

    /// Completed jobs are deleted, so the jobs that remain are not done.
    async fn done(&self, reader: &PgPool, added: usize) -> Result<usize> {
        let sql = "SELECT count(*) FROM graphile_worker._private_jobs";
        let left: i64 = sqlx::query_scalar(sql).fetch_one(reader).await?;
        Ok(added.saturating_sub(left as usize))
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse()?;
    let reader = phases_postgres::open_reader(&args.url).await?;
    let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(&args.url).await?;
    let database = Database::from(pool);
    let utils = WorkerUtils::new(database.clone(), SCHEMA);
    utils.migrate().await?;
    let peer = Graphile { database, utils, data: args.data.clone() };
    phases_postgres::measure(&args, peer, reader).await
}
