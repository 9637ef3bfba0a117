//! A machine: its worker lives for a while, is killed or stopped, and is started again.

use std::future::pending;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use redrive_core::WorkerId;
use redrive_worker::{KeepLog, Pulse, Settings, Worker};
use tokio::time::sleep;

use super::World;
use super::plan::{around, pick};
use super::script::Script;

/// A small deployment may be behind by days: at the end there is room for everything.
const CONCURRENCY_AT_LAST: usize = 256;

/// Runs workers until everything has ended; says so if one did not end in good order.
pub(super) async fn run(world: Arc<World>, number: u64) -> Result<(), String> {
    let mut rng = world.rng(100 + number);
    let mut life = 0;
    while !world.calm.is_cancelled() {
        life += 1;
        let settings = settings(&world, &mut rng, format!("node-{number}-{life}"));
        let queues = if rng.u8(..) < 60 { vec![pick(&mut rng, &world.plan.queues)] } else { Vec::new() };
        live(&world, &mut rng, settings.with_queues(queues)).await?;
        sleep(around(&mut rng, Duration::from_secs(10))).await;
    }
    let last = settings(&world, &mut rng, format!("node-{number}-last"));
    let worker = worker(&world, &mut rng, last.with_concurrency(CONCURRENCY_AT_LAST))?;
    worker.run_until(world.over.cancelled()).await.map(drop).map_err(|error| error.to_string())
}

/// One life of a worker, which ends by a crash as often as in good order.
async fn live(world: &Arc<World>, rng: &mut Rng, settings: Settings) -> Result<(), String> {
    let worker = worker(world, rng, settings)?;
    let span = around(rng, world.plan.life);
    let crashes = rng.bool();
    let end = async {
        tokio::select! {
            biased;
            () = world.calm.cancelled() => {}
            () = sleep(span) => {}
        }
    };
    if !crashes {
        return worker.run_until(end).await.map(drop).map_err(|error| error.to_string());
    }
    tokio::select! {
        biased;
        () = end => {}
        ended = worker.run_until(pending()) => return Err(format!("a worker ended by itself: {ended:?}")),
    }
    *world.crashes.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    Ok(())
}

fn worker(world: &Arc<World>, rng: &mut Rng, settings: Settings) -> Result<Worker, String> {
    let store = world.faulty(rng);
    let mut worker = Worker::new(store, settings).map_err(|invalid| invalid.to_string())?;
    for kind in &world.plan.kinds {
        let history = world.history.clone();
        worker = worker.on(kind.clone(), move |cx| Script::handle(cx, history.clone()));
    }
    Ok(worker)
}

fn settings(world: &World, rng: &mut Rng, name: String) -> Settings {
    Settings::default()
        .with_worker(WorkerId::new(name).expect("a legal name"))
        .with_concurrency(world.plan.concurrency)
        .with_lease(world.plan.lease)
        .with_retention(world.plan.retention)
        .with_log(pick(rng, &[KeepLog::All, KeepLog::Failures, KeepLog::None]))
        .with_drain(around(rng, Duration::from_secs(20)))
        .with_seed(rng.u64(..))
        .with_pulse(Pulse::Inline)
}
