//! Who enqueues: tries again under the same id and key until it knows the answer.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use redrive_core::store::{Backend, Enqueued};
use redrive_core::{Clock, IdempotencyKey, JobId, NewJob, Priority, Start};
use tokio::time::sleep;
use uuid::Builder;

use super::World;
use super::plan::{around, pick};
use super::script::Script;

/// How often an enqueue is tried before the client goes on without an answer.
const TRIES_MAX: u32 = 12;

/// Enqueues until the time of troubles is over.
pub(super) async fn run(world: Arc<World>) {
    let mut rng = world.rng(1);
    let store = world.faulty(&mut rng);
    while !world.calm.is_cancelled() {
        let batch: Vec<NewJob> = (0..rng.usize(1..=4)).map(|_| new_job(&world, &mut rng)).collect();
        if let Some(answers) = enqueue(&*store, &batch, &mut rng).await {
            // Repeated by a caller that is over-careful: nothing may come of it.
            if rng.u8(..) < 40 {
                drop(store.enqueue(batch).await);
            }
            let ids = answers.into_iter().map(Enqueued::id);
            world.known.lock().unwrap_or_else(PoisonError::into_inner).extend(ids);
        }
        sleep(around(&mut rng, world.plan.between_jobs)).await;
    }
}

async fn enqueue(store: &dyn Backend, batch: &[NewJob], rng: &mut Rng) -> Option<Vec<Enqueued>> {
    for _ in 0..TRIES_MAX {
        if let Ok(answers) = store.enqueue(batch.to_vec()).await {
            return Some(answers);
        }
        sleep(around(rng, Duration::from_secs(5))).await;
    }
    None
}

fn new_job(world: &World, rng: &mut Rng) -> NewJob {
    let plan = &world.plan;
    let id = new_id(world, rng);
    let policy = pick(rng, &plan.policies);
    let job = NewJob {
        queue: pick(rng, &plan.queues),
        priority: Priority::new(rng.u8(0..=9)).expect("a legal number"),
        start: start(rng),
        timeout: (rng.u8(..) < 100).then(|| Duration::from_secs(rng.u64(1..120))),
        ..NewJob::new(id, pick(rng, &plan.kinds), policy, Script::draw(rng).to_payload())
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

fn new_id(world: &World, rng: &mut Rng) -> JobId {
    let ms = u64::try_from(world.clock.now().as_ms()).unwrap_or(0);
    let mut random = [0; 10];
    rng.fill(&mut random);
    JobId(Builder::from_unix_timestamp_millis(ms, &random).into_uuid())
}
