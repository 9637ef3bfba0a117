//! Measures apalis-sqlite: batch and one-by-one enqueue, drain, and pickup latency.

#[path = "../../phases.rs"]
mod phases;
#[path = "../../phases_sqlite.rs"]
mod phases_sqlite;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use apalis::prelude::*;
use apalis_sqlite::{Config, SqliteConnectOptions, SqlitePool, SqlitePoolOptions, SqliteStorage};
use futures::channel::mpsc::{UnboundedReceiver, unbounded};
use futures::{FutureExt, StreamExt};
use phases::{Enqueue, Notes, Phase, Probe, Report};
use phases_sqlite::{Args, BATCH_CALLERS, PAUSE_MS};
use sqlx::sqlite::SqliteOperation;
use sqlx::{ConnectOptions, SqliteConnection};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

/// The workers of the drain. The acknowledgements of a worker get slower with every job that it has done, because each of them reads
/// all rows that this worker has locked. One worker does a few hundred jobs per second, and 512 workers do ten thousand. More workers
/// were no faster.
const WORKERS: usize = 512;
/// Jobs that a worker fetches, and acknowledges, at once. 30 was the fastest value from 10 to 1000.
const FETCH: usize = 30;
/// The poll interval of an idle drain worker. It hardly matters, because the jobs are already due.
const DRAIN_POLL: Duration = Duration::from_secs(1);
/// The poll interval of the pickup worker, in case it misses the wake-up of an insert.
const PICKUP_POLL: Duration = Duration::from_millis(100);

#[derive(Clone)]
struct Apalis(SqliteStorage<()>);

impl Enqueue for Apalis {
    async fn one(&mut self) -> Result<()> {
        Ok(self.0.push(()).await?)
    }

    async fn batch(&mut self, size: usize) -> Result<()> {
        Ok(self.0.push_bulk(vec![(); size]).await?)
    }
}

async fn noop(_: (), probe: Data<Arc<Probe>>) -> Result<(), BoxDynError> {
    probe.started();
    Ok(())
}

/// A pool of one connection, with the insert hook of `connect_with_callback`. That function cannot be used, because its pool has ten
/// connections: their writers collide, and some of the workers end with "database is locked".
fn open_pool(file: &Path) -> (SqlitePool, UnboundedReceiver<()>) {
    let (tx, inserts) = unbounded();
    let pool = SqlitePoolOptions::new()
        .max_connections(1)
        .after_connect(move |conn, _| {
            let tx = tx.clone();
            Box::pin(async move {
                conn.lock_handle().await?.set_update_hook(move |event| {
                    if event.operation == SqliteOperation::Insert && event.table == "Jobs" {
                        // If nothing receives the message, a poll finds the job.
                        let _ = tx.unbounded_send(());
                    }
                });
                Ok(())
            })
        })
        .connect_lazy_with(SqliteConnectOptions::new().filename(file).create_if_missing(true));
    (pool, inserts)
}

async fn open_storage(pool: &SqlitePool) -> Result<SqliteStorage<()>> {
    SqliteStorage::setup(pool).await?;
    // The fetch already claims a job for the worker. The lock would be a second write, which only distinguishes Running from Queued.
    let config = Config::default().queue("noop").batch_size(FETCH).lock_tasks(false);
    Ok(SqliteStorage::new(pool).with_config(config))
}

/// Drains `jobs` jobs with a monitor of many workers, and stops the workers.
async fn drain(
    storage: &SqliteStorage<()>,
    jobs: usize,
    reader: &mut SqliteConnection,
    notes: &mut Notes,
) -> Result<(Phase, String)> {
    let probe = Arc::new(Probe::new());
    let (backend, data) = (storage.clone(), probe.clone());
    let (stop, stopped) = oneshot::channel::<()>();
    let start = Instant::now();
    let monitor = Monitor::new().register_n(WORKERS, move |index, _| {
        WorkerBuilder::new(format!("drain-{index}"))
            .backend(backend.clone().poll_with_interval(DRAIN_POLL))
            .data(data.clone())
            .build(noop)
    });
    let running = tokio::spawn(monitor.run_with_signal(stopped.map(|_| Ok(()))));
    let count = async || done_in_db(reader).await;
    let phase = phases::drain(jobs, start, &probe, count, notes).await?;
    let durability = durability(storage.pool()).await?;
    drop(stop);
    match timeout(Duration::from_secs(30), running).await {
        Ok(Ok(Ok(()))) => {}
        Ok(ended) => notes.add(format!("drain workers: {ended:?}")),
        Err(_) => notes.add("the drain workers did not stop".to_owned()),
    }
    Ok((phase, durability))
}

/// Measures pickups with one idle worker that the insert hook wakes.
async fn pickups(
    storage: &SqliteStorage<()>,
    mut inserts: UnboundedReceiver<()>,
    picks: usize,
    notes: &mut Notes,
) -> Result<Vec<Duration>> {
    // When workers stop, the pool sometimes loses its connection, and with it the settings.
    SqliteStorage::setup(storage.pool()).await?;
    // The messages of earlier inserts would keep the worker busy with empty fetches.
    while let Some(Some(())) = inserts.next().now_or_never() {}
    let strategy = Strategy::new().stream(inserts.ready_chunks(FETCH)).interval(PICKUP_POLL);
    let probe = Arc::new(Probe::new());
    let worker = WorkerBuilder::new("pickup")
        .backend(storage.clone().poll_with_strategy(strategy))
        .data(probe.clone())
        .build(noop);
    let running = tokio::spawn(worker.run());
    // The time to register the worker must not count as part of a pickup.
    sleep(Duration::from_millis(500)).await;
    let waits = phases::pickups(&Apalis(storage.clone()), &probe, picks, PAUSE_MS, notes).await;
    if running.is_finished() {
        notes.add("the pickup worker ended early".to_owned());
    }
    Ok(waits)
}

async fn done_in_db(reader: &mut SqliteConnection) -> Result<usize> {
    let sql = "SELECT count(*) FROM Jobs WHERE status = 'Done'";
    let done: i64 = sqlx::query_scalar(sql).fetch_one(reader).await?;
    Ok(done as usize)
}

/// The settings of the only connection of the pool, which makes all writes.
async fn durability(pool: &SqlitePool) -> Result<String> {
    let mode: String = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(pool).await?;
    let sync: i64 = sqlx::query_scalar("PRAGMA synchronous").fetch_one(pool).await?;
    let names = ["OFF", "NORMAL", "FULL", "EXTRA"];
    let sync = usize::try_from(sync).ok().and_then(|at| names.get(at)).context("synchronous")?;
    Ok(format!("{}, synchronous {sync}", mode.to_uppercase()))
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse()?;
    let file = args.dir.join("apalis.db");
    let (pool, inserts) = open_pool(&file);
    let storage = open_storage(&pool).await?;
    let peer = Apalis(storage.clone());
    let mut notes = Notes::default();
    let batch = phases::enqueue_batches(&peer, BATCH_CALLERS, args.jobs, &mut notes).await?;
    let singles = phases::enqueue_singles(&peer, phases::singles(args.jobs), &mut notes).await?;

    let reader = SqliteConnectOptions::new().filename(&file).read_only(true);
    let mut reader = reader.connect().await?;
    let jobs = batch.done + singles.done;
    let (drained, durability) = drain(&storage, jobs, &mut reader, &mut notes).await?;
    let waits = pickups(&storage, inserts, args.picks_after(drained, jobs), &mut notes).await?;
    let at_pickup = self::durability(&pool).await?;
    if at_pickup != durability {
        notes.add(format!("pickup ran at {at_pickup}"));
    }

    Report {
        peer: "apalis-sqlite",
        version: phases::locked_version(include_str!("../Cargo.lock"), "apalis-sqlite")?,
        durability,
        settings: format!(
            "push_bulk of 1000; pool of one connection; drain: {WORKERS} workers, batch_size \
             {FETCH}, lock_tasks off; pickup: one worker woken by the insert hook"
        ),
        enqueue_batch_per_s: batch.per_s(),
        enqueue_one_by_one_64_tasks_per_s: singles.per_s(),
        drain_per_s: drained.per_s(),
        pickup_p50_ms: phases::percentile_ms(&waits, 50.0),
        pickup_p99_ms: phases::percentile_ms(&waits, 99.0),
        note: notes.joined(),
    }
    .print()
}
