//! Who meddles: cancels, drives again, discards, pauses, sets the clock, and takes the store down.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use redrive_core::records::{Change, EVERY_QUEUE, Expect, PAUSED};
use redrive_core::store::{Backend, Filter, PageRequest};
use redrive_core::{JobId, State};
use tokio::time::sleep;

use super::World;
use super::plan::{around, pick};

/// Meddles until the time of troubles is over, then puts everything right.
pub(super) async fn run(world: Arc<World>) {
    let mut rng = world.rng(2);
    let store = world.faulty(&mut rng);
    while !world.calm.is_cancelled() {
        tokio::select! {
            biased;
            () = world.calm.cancelled() => {}
            () = sleep(around(&mut rng, world.plan.between_acts)) => act(&world, &*store, &mut rng).await,
        }
    }
    world.weather.set_down(false);
    for id in paused_ids(&world) {
        set_paused(&*world.store, id, false).await;
    }
}

/// Does one thing. What fails is let be: an operator sees the error and goes on.
async fn act(world: &World, store: &dyn Backend, rng: &mut Rng) {
    match rng.u8(0..14) {
        0..=2 => drop(store.cancel(some(&world.known(), rng)).await),
        3..=5 => redrive(store, rng).await,
        6 => discard(world, store, rng).await,
        7 => set_paused(store, pick(rng, &paused_ids(world)), true).await,
        8..=9 => set_paused(store, pick(rng, &paused_ids(world)), false).await,
        10 => world.clock.jump(rng.i64(0..120_000)),
        11 => world.clock.jump(-rng.i64(0..120_000)),
        12 => world.clock.jump(rng.i64(-50..50)),
        _ => outage(world, rng).await,
    }
}

/// Two operators press the button at once.
async fn redrive(store: &dyn Backend, rng: &mut Rng) {
    let dead = Filter { states: vec![State::Dead], ..Filter::default() };
    if let Ok(page) = store.list(dead, PageRequest::first(20)).await {
        let ids: Vec<JobId> = page.items.iter().map(|job| job.id).filter(|_| rng.bool()).collect();
        drop(tokio::join!(store.redrive(ids.clone()), store.redrive(ids)));
    }
}

/// Only ids that the client is done with: a repeated enqueue after a discard would be a new job under an old id.
async fn discard(world: &World, store: &dyn Backend, rng: &mut Rng) {
    drop(store.discard(some(&world.known(), rng)).await);
}

fn some(known: &[JobId], rng: &mut Rng) -> Vec<JobId> {
    let newest = known.len().saturating_sub(60);
    (0..rng.usize(1..6)).filter_map(|_| rng.choice(&known[newest..]).copied()).collect()
}

fn paused_ids(world: &World) -> Vec<String> {
    let queues = world.plan.queues.iter().map(ToString::to_string);
    queues.chain([EVERY_QUEUE.to_owned()]).collect()
}

async fn set_paused(store: &dyn Backend, id: String, paused: bool) {
    let value = paused.then(|| b"{}".to_vec());
    let change = Change { kind: PAUSED.to_owned(), id, expect: Expect::Any, value };
    drop(store.write(change).await);
}

async fn outage(world: &World, rng: &mut Rng) {
    world.weather.set_down(true);
    sleep(around(rng, Duration::from_secs(45))).await;
    world.weather.set_down(false);
}
