//! The operator: cancels, redrives, discards, pauses, sets the clock, and takes the store down.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use redrive_core::records::{EVERY_QUEUE, PAUSED, Precondition, RecordWrite};
use redrive_core::store::{Backend, Filter, PageRequest};
use redrive_core::{JobId, State};
use tokio::time::sleep;

use super::SimulatedSystem;
use super::plan::{around, pick};

/// Acts until the faults are over, and then ends all pauses and outages.
pub(super) async fn run(system: Arc<SimulatedSystem>) {
    let mut rng = system.rng(2);
    let store = system.faulty(&mut rng);
    while !system.faults_over.is_cancelled() {
        tokio::select! {
            biased;
            () = system.faults_over.cancelled() => {}
            () = sleep(around(&mut rng, system.plan.between_actions)) => act(&system, &*store, &mut rng).await,
        }
    }
    system.switch.set_down(false);
    for id in pause_ids(&system) {
        set_paused(&*system.store, id, false).await;
    }
}

/// Takes one action, and ignores its errors, as an operator may.
async fn act(system: &SimulatedSystem, store: &dyn Backend, rng: &mut Rng) {
    match rng.u8(0..14) {
        0..=2 => drop(store.cancel(pick_jobs(&system.known(), rng)).await),
        3..=5 => redrive(store, rng).await,
        6 => discard(system, store, rng).await,
        7 => set_paused(store, pick(rng, &pause_ids(system)), true).await,
        8..=9 => set_paused(store, pick(rng, &pause_ids(system)), false).await,
        10 => system.clock.jump(rng.i64(0..120_000)),
        11 => system.clock.jump(-rng.i64(0..120_000)),
        12 => system.clock.jump(rng.i64(-50..50)),
        _ => outage(system, rng).await,
    }
}

/// Redrives dead jobs twice at once, as two operators may.
async fn redrive(store: &dyn Backend, rng: &mut Rng) {
    let dead = Filter { states: vec![State::Dead], ..Filter::default() };
    if let Ok(page) = store.list(dead, PageRequest::first(20)).await {
        let ids: Vec<JobId> = page.items.iter().map(|job| job.id).filter(|_| rng.bool()).collect();
        drop(tokio::join!(store.redrive(ids.clone()), store.redrive(ids)));
    }
}

/// Discards only ids that the client does not enqueue again: a repeated enqueue would create a new job with an old id.
async fn discard(system: &SimulatedSystem, store: &dyn Backend, rng: &mut Rng) {
    drop(store.discard(pick_jobs(&system.known(), rng)).await);
}

/// Up to five of the newest jobs.
fn pick_jobs(known: &[JobId], rng: &mut Rng) -> Vec<JobId> {
    let newest = known.len().saturating_sub(60);
    (0..rng.usize(1..6)).filter_map(|_| rng.choice(&known[newest..]).copied()).collect()
}

/// The id of each record that can pause queues.
fn pause_ids(system: &SimulatedSystem) -> Vec<String> {
    let queues = system.plan.queues.iter().map(ToString::to_string);
    queues.chain([EVERY_QUEUE.to_owned()]).collect()
}

async fn set_paused(store: &dyn Backend, id: String, paused: bool) {
    let value = paused.then(|| b"{}".to_vec());
    let change = RecordWrite { kind: PAUSED.to_owned(), id, expect: Precondition::Any, value };
    drop(store.write(change).await);
}

async fn outage(system: &SimulatedSystem, rng: &mut Rng) {
    system.switch.set_down(true);
    sleep(around(rng, Duration::from_secs(45))).await;
    system.switch.set_down(false);
}
