//! The client: enqueues jobs, and repeats each call with the same ids and keys until it gets an answer.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use redrive_core::store::{Backend, EnqueueResult};
use redrive_core::{Clock, IdempotencyKey, JobId, NewJob, Priority, Start};
use tokio::time::sleep;
use uuid::Builder;

use super::SimulatedSystem;
use super::plan::{around, pick};
use super::script::JobScript;

/// How often the client tries an enqueue.
const TRIES_MAX: u32 = 12;

/// Enqueues until the faults are over.
pub(super) async fn run(system: Arc<SimulatedSystem>) {
    let mut rng = system.rng(1);
    let store = system.faulty(&mut rng);
    while !system.faults_over.is_cancelled() {
        let batch: Vec<NewJob> = (0..rng.usize(1..=4)).map(|_| new_job(&system, &mut rng)).collect();
        if let Some(answers) = enqueue(&*store, &batch, &mut rng).await {
            // A repeated enqueue must change nothing.
            if rng.u8(..) < 40 {
                drop(store.enqueue(batch).await);
            }
            let ids = answers.into_iter().map(EnqueueResult::id);
            system.known.lock().unwrap_or_else(PoisonError::into_inner).extend(ids);
        }
        sleep(around(&mut rng, system.plan.between_jobs)).await;
    }
}

async fn enqueue(store: &dyn Backend, batch: &[NewJob], rng: &mut Rng) -> Option<Vec<EnqueueResult>> {
    for _ in 0..TRIES_MAX {
        if let Ok(answers) = store.enqueue(batch.to_vec()).await {
            return Some(answers);
        }
        sleep(around(rng, Duration::from_secs(5))).await;
    }
    None
}

fn new_job(system: &SimulatedSystem, rng: &mut Rng) -> NewJob {
    let plan = &system.plan;
    let id = new_id(system, rng);
    let policy = pick(rng, &plan.policies);
    let job = NewJob {
        queue: pick(rng, &plan.queues),
        priority: Priority::new(rng.u8(0..=9)).expect("a legal number"),
        start: start(rng),
        timeout: (rng.u8(..) < 100).then(|| Duration::from_secs(rng.u64(1..120))),
        ..NewJob::new(id, pick(rng, &plan.kinds), policy, JobScript::draw(rng).to_payload())
    };
    if rng.bool() {
        job.with_key(IdempotencyKey::new(format!("key-{id}")).expect("a legal key"))
    } else {
        job
    }
}

fn start(rng: &mut Rng) -> Start {
    if rng.u8(..) < 180 { Start::Now } else { Start::After(Duration::from_secs(rng.u64(0..1_800))) }
}

fn new_id(system: &SimulatedSystem, rng: &mut Rng) -> JobId {
    let ms = u64::try_from(system.clock.now().as_ms()).unwrap_or(0);
    let mut random = [0; 10];
    rng.fill(&mut random);
    JobId(Builder::from_unix_timestamp_millis(ms, &random).into_uuid())
}
