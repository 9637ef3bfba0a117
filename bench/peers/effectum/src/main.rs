//! Measures effectum: batch and one-by-one enqueue, drain, and pickup latency.

#[path = "../../phases.rs"]
mod phases;
#[path = "../../phases_sqlite.rs"]
mod phases_sqlite;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use effectum::{Error, Job, JobRunner, Queue, RunningJob, Worker};
use phases::{Enqueue, Notes, Probe, Report};
use phases_sqlite::{Args, BATCH_CALLERS, PAUSE_MS};
use rusqlite::{Connection, OpenFlags};

const JOB: &str = "noop";
/// The most jobs that the worker fetches at once. Of the values from 10 to 20000, higher ones were no faster. A second worker was no
/// faster either.
const MAX_CONCURRENCY: u16 = 4000;
/// The worker fetches again when fewer jobs than this are running. With half of the maximum, a fetch never takes only a few jobs.
const MIN_CONCURRENCY: u16 = 2000;

#[derive(Clone)]
struct Effectum(Arc<Queue>);

impl Enqueue for Effectum {
    async fn one(&mut self) -> Result<()> {
        self.0.add_job(Job::builder(JOB).build()).await?;
        Ok(())
    }

    async fn batch(&mut self, size: usize) -> Result<()> {
        let jobs = (0..size).map(|_| Job::builder(JOB).build()).collect();
        self.0.add_jobs(jobs).await?;
        Ok(())
    }
}

/// The context of the worker, which must implement `Debug`.
#[derive(Clone)]
struct Ctx(Arc<Probe>);

impl fmt::Debug for Ctx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ctx")
    }
}

async fn noop(_job: RunningJob, ctx: Ctx) -> Result<(), Error> {
    ctx.0.started();
    Ok(())
}

async fn start_worker(queue: &Queue, probe: &Arc<Probe>) -> Result<Worker> {
    let worker = Worker::builder(queue, Ctx(probe.clone()))
        .max_concurrency(MAX_CONCURRENCY)
        .min_concurrency(MIN_CONCURRENCY)
        .jobs([JobRunner::builder(JOB, noop).build()])
        .build()
        .await?;
    Ok(worker)
}

fn open_reader(file: &Path) -> Result<Connection> {
    Ok(Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY)?)
}

fn done_in_db(reader: &Connection) -> Result<usize> {
    let sql = "SELECT count(*) FROM jobs WHERE status = 'succeeded'";
    let done: i64 = reader.query_row(sql, [], |row| row.get(0))?;
    Ok(done as usize)
}

/// Reads the actual journal mode, because the crate requests WAL with `PRAGMA journal`, which SQLite does not know and ignores.
/// `synchronous` is a setting of the private connection of the crate, which sets it to NORMAL.
fn durability(reader: &Connection) -> Result<String> {
    let mode: String = reader.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
    let mode = match mode.as_str() {
        "wal" => "WAL".to_owned(),
        other => format!("rollback journal ({})", other.to_uppercase()),
    };
    Ok(format!("{mode}, synchronous NORMAL"))
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse()?;
    let file = args.dir.join("effectum.db");
    let queue = Arc::new(Queue::new(&file).await?);
    let peer = Effectum(queue.clone());
    let mut notes = Notes::default();
    let batch = phases::enqueue_batches(&peer, BATCH_CALLERS, args.jobs, &mut notes).await?;
    let singles = phases::enqueue_singles(&peer, phases::singles(args.jobs), &mut notes).await?;

    let reader = open_reader(&file)?;
    let probe = Arc::new(Probe::new());
    let start = Instant::now();
    let worker = start_worker(&queue, &probe).await?;
    let count = async || done_in_db(&reader);
    let jobs = batch.done + singles.done;
    let drained = phases::drain(jobs, start, &probe, count, &mut notes).await?;
    let picks = args.picks_after(drained, jobs);
    let waits = phases::pickups(&peer, &probe, picks, PAUSE_MS, &mut notes).await;
    let durability = durability(&reader)?;
    worker.unregister(Some(Duration::from_secs(10))).await?;
    queue.close(Duration::from_secs(10)).await?;

    Report {
        peer: "effectum",
        version: phases::locked_version(include_str!("../Cargo.lock"), "effectum")?,
        durability,
        settings: format!(
            "add_jobs of 1000; one worker, max_concurrency {MAX_CONCURRENCY}, \
             min_concurrency {MIN_CONCURRENCY}; woken by the enqueue call"
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
