//! A node: its worker runs for a while, is killed or stopped, and starts again.

use std::future::pending;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use redrive_core::WorkerId;
use redrive_worker::{AttemptLogging, HeartbeatSource, Settings, Worker};
use tokio::time::sleep;

use super::SimulatedSystem;
use super::plan::{around, pick};
use super::script::JobScript;

/// The concurrency after the faults, which lets a small deployment catch up with days of work.
const DRAIN_CONCURRENCY: usize = 256;

/// Runs workers until all jobs have ended. Returns an error if a worker ended by itself.
pub(super) async fn run(system: Arc<SimulatedSystem>, number: u64) -> Result<(), String> {
    let mut rng = system.rng(100 + number);
    let mut restart = 0;
    while !system.faults_over.is_cancelled() {
        restart += 1;
        let settings = settings(&system, &mut rng, format!("node-{number}-{restart}"));
        let queues = if rng.u8(..) < 60 { vec![pick(&mut rng, &system.plan.queues)] } else { Vec::new() };
        run_worker(&system, &mut rng, settings.with_queues(queues)).await?;
        sleep(around(&mut rng, Duration::from_secs(10))).await;
    }
    let last = settings(&system, &mut rng, format!("node-{number}-last"));
    let worker = worker(&system, &mut rng, last.with_concurrency(DRAIN_CONCURRENCY))?;
    worker.run_until(system.all_ended.cancelled()).await.map(drop).map_err(|error| error.to_string())
}

/// Runs a worker for a while. It ends by a crash or by a shutdown, equally often.
async fn run_worker(system: &Arc<SimulatedSystem>, rng: &mut Rng, settings: Settings) -> Result<(), String> {
    let worker = worker(system, rng, settings)?;
    let span = around(rng, system.plan.worker_life);
    let crashes = rng.bool();
    let end = async {
        tokio::select! {
            biased;
            () = system.faults_over.cancelled() => {}
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
    *system.crashes.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    Ok(())
}

fn worker(system: &Arc<SimulatedSystem>, rng: &mut Rng, settings: Settings) -> Result<Worker, String> {
    let store = system.faulty(rng);
    let mut worker = Worker::new(store, settings).map_err(|invalid| invalid.to_string())?;
    for kind in &system.plan.kinds {
        let history = system.history.clone();
        worker = worker.on(kind.clone(), move |cx| JobScript::handle(cx, history.clone()));
    }
    Ok(worker)
}

fn settings(system: &SimulatedSystem, rng: &mut Rng, name: String) -> Settings {
    Settings::default()
        .with_worker(WorkerId::new(name).expect("a legal name"))
        .with_concurrency(system.plan.concurrency)
        .with_lease(system.plan.lease)
        .with_retention(system.plan.retention)
        .with_log(pick(rng, &[AttemptLogging::All, AttemptLogging::Failures, AttemptLogging::None]))
        .with_drain(around(rng, Duration::from_secs(20)))
        .with_seed(rng.u64(..))
        .with_heartbeat_source(HeartbeatSource::Inline)
}
