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
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// A worker acknowledges what it has run before it fetches again, so several take turns.
const WORKERS: usize = 4;
/// Jobs taken, and acknowledged, in one go by a worker.
const TAKE: usize = 500;
/// Drain workers find their jobs waiting; this is only how often an idle one looks again.
const DRAIN_POLL: Duration = Duration::from_millis(100);
static WORKER: AtomicUsize = AtomicUsize::new(0);
/// Every job is pushed as a scheduled one, for which nothing is published: a worker only polls.
const PICKUP_POLL: Duration = Duration::from_millis(5);
const QUEUE: &str = "noop";
/// What a fetch does for due jobs, in pieces: it hands all of them to one call, which fails from
/// 8000 on and ends the worker.
const PROMOTE: &str = "repeat local due = redis.call('ZRANGE', KEYS[1], 0, 4999) \
    if #due > 0 then redis.call('RPUSH', KEYS[2], unpack(due)) redis.call('ZREM', KEYS[1], unpack(due)) end \
    until #due == 0";

#[derive(Clone)]
struct Apalis {
    storage: RedisStorage<()>,
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
        Ok(self.storage.push(()).await?)
    }

    async fn batch(&mut self, size: usize) -> Result<()> {
        Ok(self.storage.push_bulk(vec![(); size]).await?)
    }
}

async fn noop(_: (), probe: Data<Arc<Probe>>) -> Result<(), BoxDynError> {
    probe.started();
    Ok(())
}

/// A monitor of workers, which ends when `stop` is dropped.
struct Running {
    stop: oneshot::Sender<()>,
    monitor: JoinHandle<Result<(), MonitorError>>,
}

/// Its fastest settings: no second write that only tells Running from Queued, no events.
fn config() -> Config {
    Config::default().queue(QUEUE).batch_size(TAKE).lock_tasks(false).emit_events(false)
}

impl Peer for Apalis {
    type Worker = Running;
    type Database = Reader;
    const NAME: &'static str = "apalis-redis";
    const BATCH_CALLERS: usize = 4;

    fn settings() -> String {
        format!(
            "push_bulk of 1000 from {} tasks; drain: {WORKERS} workers, batch_size {TAKE}, lock_tasks off, \
             acknowledged in batches, due jobs promoted in pieces; keeps what is done; pickup: one worker \
             that polls every {PICKUP_POLL:?}",
            Self::BATCH_CALLERS
        )
    }

    fn version() -> Result<String> {
        phases::locked_version(include_str!("../Cargo.lock"), "apalis-redis")
    }

    async fn start(&self, load: Load, probe: &Arc<Probe>) -> Result<Running> {
        let (backend, data) = (self.storage.clone(), probe.clone());
        // A worker's name is taken for a while after it has ended.
        let id = WORKER.fetch_add(1, Ordering::Relaxed);
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
    phases_redis::measure(&args, Apalis { storage }, reader).await
}
