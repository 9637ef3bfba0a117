//! Measures apalis-redis: batch and one-by-one enqueue, drain, and pickup latency.

#[path = "../../phases.rs"]
mod phases;
#[path = "../../phases_redis.rs"]
mod phases_redis;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use apalis::prelude::*;
use apalis_redis::{Config, RedisStorage};
use futures::FutureExt;
use phases::{Enqueue, Probe};
use phases_redis::{Args, Load, Peer, Reader};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// The workers of the drain. A worker acknowledges its jobs before it fetches again, so several workers overlap.
const WORKERS: usize = 4;
/// Jobs that a worker fetches, and acknowledges, at once.
const FETCH: usize = 500;
/// The poll interval of an idle drain worker. It hardly matters, because the jobs are already due.
const DRAIN_POLL: Duration = Duration::from_millis(100);
static NEXT_WORKER: AtomicUsize = AtomicUsize::new(0);
/// The poll interval of the pickup worker. The peer pushes every job as a scheduled one and publishes nothing for it, so a worker
/// must poll.
const PICKUP_POLL: Duration = Duration::from_millis(5);
const QUEUE: &str = "noop";
/// Promotes due jobs, 5000 at a time. A fetch of the peer promotes all due jobs in one call, which fails for 8000 jobs or more and
/// ends the worker.
const PROMOTE: &str = "repeat local due = redis.call('ZRANGE', KEYS[1], 0, 4999) \
    if #due > 0 then redis.call('RPUSH', KEYS[2], unpack(due)) redis.call('ZREM', KEYS[1], unpack(due)) end \
    until #due == 0";

#[derive(Clone, Serialize, Deserialize)]
struct Noop {
    data: String,
}

#[derive(Clone)]
struct Apalis {
    storage: RedisStorage<Noop>,
    job: Noop,
}

impl Apalis {
    async fn promote(&self) -> Result<()> {
        let (mut storage, config) = (self.storage.clone(), config());
        let mut promote = redis::cmd("EVAL");
        promote.arg(PROMOTE).arg(2).arg(config.scheduled_jobs_set()).arg(config.active_jobs_list());
        Ok(promote.query_async(storage.get_connection()).await?)
    }
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

/// The fastest settings: no events, and no second write that only distinguishes Running from Queued.
fn config() -> Config {
    Config::default().queue(QUEUE).batch_size(FETCH).lock_tasks(false).emit_events(false)
}

impl Peer for Apalis {
    type Worker = Running;
    type Database = Reader;
    const NAME: &'static str = "apalis-redis";
    const BATCH_CALLERS: usize = 4;

    fn settings() -> String {
        format!(
            "push_bulk of 1000 from {} tasks; drain: {WORKERS} workers, batch_size {FETCH}, lock_tasks off, \
             acknowledged in batches, due jobs promoted 5000 at a time; keeps completed jobs; pickup: one worker \
             that polls every {PICKUP_POLL:?}",
            Self::BATCH_CALLERS
        )
    }

    fn version() -> Result<String> {
        phases::locked_version(include_str!("../Cargo.lock"), "apalis-redis")
    }

    async fn start(&self, load: Load, probe: &Arc<Probe>) -> Result<Running> {
        let (backend, data) = (self.storage.clone(), probe.clone());
        // The name of a worker cannot be used again for a while after the worker has ended.
        let id = NEXT_WORKER.fetch_add(1, Ordering::Relaxed);
        let (workers, poll) = match load {
            Load::Backlog => {
                self.promote().await?;
                (WORKERS, DRAIN_POLL)
            }
            Load::Idle => (1, PICKUP_POLL),
        };
        let monitor = Monitor::new().register_n(workers, move |index, run| {
            WorkerBuilder::new(format!("noop-{id}-{index}-{run}"))
                .backend(backend.clone().poll_with_interval(poll))
                .data(data.clone())
                .build(noop)
        });
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

    async fn done(&self, reader: &Reader, _added: usize) -> Result<usize> {
        reader.count(&config().done_jobs_set()).await
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse()?;
    let reader = Reader::open(&args.url).await?;
    let storage = RedisStorage::new(apalis_redis::connect(args.url.as_str()).await?).with_config(config());
    let job = Noop { data: args.data.clone() };
    phases_redis::measure(&args, Apalis { storage, job }, reader).await
}
