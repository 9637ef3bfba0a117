//! Measures awa: batch and one-by-one enqueue, drain, and pickup latency.

#[path = "../../phases.rs"]
mod phases;
#[path = "../../phases_postgres.rs"]
mod phases_postgres;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use awa::model::insert;
use awa::{
    Client, InsertOpts, InsertParams, JobArgs, JobResult, PartitionedQueue, QueueConfig, QueueStorage,
    QueueStorageConfig,
};
use phases::{Enqueue, Probe};
use phases_postgres::{Args, Load, Peer};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

const QUEUE: &str = "noop";
/// Physical queues of the logical queue, so that callers and claims rarely compete for the same head. 1 and 2 were slower.
const PARTITIONS: usize = 4;
/// The workers of a partition. With 512 workers or more in total, the crate completes jobs in four concurrent batches. 100 workers in
/// total were half as fast, and 4096 were no faster.
const WORKERS: u32 = 256;
/// Jobs that a partition claims at once. This is the default of the crate.
const CLAIM: usize = 512;
/// The poll interval, in case a dispatcher misses a notification. This is the default of the crate.
const POLL: Duration = Duration::from_millis(200);
/// No deadline. Without deadlines the crate records claims and completions in batches, not row by row.
const DEADLINE: Duration = Duration::ZERO;
const CONNECTIONS: u32 = 20;

#[derive(Serialize, Deserialize, JobArgs)]
struct Noop {
    data: String,
}

#[derive(Clone)]
struct Awa {
    pool: PgPool,
    store: Arc<QueueStorage>,
    queue: Arc<PartitionedQueue>,
    next_partition: Arc<AtomicUsize>,
    data: String,
}

impl Awa {
    /// A job for the next partition, in round-robin order.
    fn job(&self) -> Result<InsertParams> {
        let index = self.next_partition.fetch_add(1, Ordering::Relaxed);
        let opts = self.queue.route_opts_by_index(InsertOpts::default(), index);
        Ok(insert::params_with(&Noop { data: self.data.clone() }, opts)?)
    }
}

impl Enqueue for Awa {
    /// Writes directly to the storage, like `batch`. `insert_with` calls a function for old schemas and takes three times as long.
    async fn one(&mut self) -> Result<()> {
        self.store.enqueue_params_batch(&self.pool, &[self.job()?]).await?;
        Ok(())
    }

    async fn batch(&mut self, size: usize) -> Result<()> {
        let jobs = vec![self.job()?; size];
        self.store.enqueue_params_copy(&self.pool, &jobs).await?;
        Ok(())
    }
}

impl Peer for Awa {
    type Worker = Client;
    type Database = PgPool;
    const NAME: &'static str = "awa";
    const BATCH_CALLERS: usize = 4;

    fn settings() -> String {
        format!(
            "enqueue_params_copy (COPY) of 1000 from {} connections; one by one: \
             enqueue_params_batch of one; {PARTITIONS} partitions, each {WORKERS} workers and \
             claims of {CLAIM}; no deadline, so claims and completions are stored in batches; drops \
             completed jobs when its ring rotates; pickup: the same workers, woken by NOTIFY; \
             {CONNECTIONS} connections",
            Self::BATCH_CALLERS
        )
    }

    fn version() -> Result<String> {
        phases::locked_version(include_str!("../Cargo.lock"), "awa")
    }

    async fn start(&self, _load: Load, probe: &Arc<Probe>) -> Result<Client> {
        let probe = probe.clone();
        let config = QueueConfig {
            max_workers: WORKERS,
            claim_batch_size: CLAIM,
            poll_interval: POLL,
            deadline_duration: DEADLINE,
            ..QueueConfig::default()
        };
        let client = Client::builder(self.pool.clone())
            .partitioned_queue(&self.queue, config)
            .register::<Noop, _, _>(move |_, _| {
                probe.started();
                async { Ok(JobResult::Completed) }
            })
            .build()?;
        client.start().await?;
        Ok(client)
    }

    async fn stop(&self, client: Client) -> Result<()> {
        client.shutdown(Duration::from_secs(30)).await;
        Ok(())
    }

    /// Adds up the tables that `queue_counts` of the crate also reads. `queue_counts` itself takes seconds at this size, because it also
    /// reads the jobs that are not done.
    async fn done(&self, reader: &PgPool, _added: usize) -> Result<usize> {
        let sql = "SELECT ((SELECT coalesce(sum(completed_count), 0) FROM awa.receipt_completion_batches)
            + (SELECT count(*) FROM awa.done_entries WHERE state = 'completed')
            + (SELECT coalesce(sum(pruned_completed_count), 0) FROM awa.queue_terminal_rollups))::bigint";
        let done: i64 = sqlx::query_scalar(sql).fetch_one(reader).await?;
        Ok(done as usize)
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse()?;
    let reader = phases_postgres::open_reader(&args.url).await?;
    let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(&args.url).await?;
    awa::migrations::run(&pool).await?;
    let store = Arc::new(QueueStorage::new(QueueStorageConfig::default())?);
    store.install(&pool).await?;
    let queue = Arc::new(PartitionedQueue::new(QUEUE, PARTITIONS)?);
    let peer = Awa { pool, store, queue, next_partition: Arc::default(), data: args.data.clone() };
    phases_postgres::measure(&args, peer, reader).await
}
