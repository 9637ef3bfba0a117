//! The orderly end, and the chores beside the attempts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use redrive_core::store::Retention;
use redrive_core::{Outcome, State};
use redrive_worker::Context;
use tokio::time::Instant;

use crate::stage::{MS, S, Stage, unavailable};

/// Takes as many seconds as its payload says.
async fn slow(cx: Context) -> Outcome {
    tokio::time::sleep(S * u32::from(cx.job.payload[0])).await;
    Outcome::Done(None)
}

#[tokio::test(start_paused = true)]
async fn running_attempts_may_finish_and_the_rest_is_released_at_no_cost() {
    let stage = Stage::new().await;
    stage.enqueue_many(30).await;
    let worker = stage.start(slow);
    stage.when(|stage| stage.in_state(State::Running) == 30).await;
    let asked = Instant::now();
    let summary = worker.stop().await;
    assert!(asked.elapsed() >= 20 * S && asked.elapsed() <= 20 * S + 10 * MS, "{:?}", asked.elapsed());
    assert_eq!((summary.succeeded, summary.released), (20, 10));
    for n in 21..=30 {
        let job = stage.job(n);
        assert_eq!((job.state, job.attempt, job.lease_until), (State::Pending, 0, None));
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_worker_ends_at_once_and_a_drained_one_as_soon_as_it_can() {
    let stage = Stage::new().await;
    let worker = stage.start(slow);
    tokio::time::sleep(S).await;
    let asked = Instant::now();
    worker.stop().await;
    assert!(asked.elapsed().is_zero());
    stage.enqueue_many(3).await;
    let worker = stage.start(slow);
    stage.until(3, State::Running).await;
    let asked = Instant::now();
    assert_eq!(worker.stop().await.succeeded, 3);
    assert!(asked.elapsed() <= 3 * S, "{:?}", asked.elapsed());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_claimed_once_the_shutdown_has_begun() {
    let stage = Stage::new().await;
    stage.enqueue_many(5).await;
    let worker = stage.start_with(Stage::settings().with_concurrency(1), slow);
    stage.until(1, State::Running).await;
    let summary = worker.stop().await;
    assert_eq!((summary.claimed, summary.succeeded), (1, 1));
    assert_eq!(stage.in_state(State::Pending), 4);
}

#[tokio::test(start_paused = true)]
async fn what_a_claim_under_way_brings_is_handed_back() {
    let stage = Stage::new().await;
    stage.enqueue_many(5).await;
    stage.store.delay("claim", 2 * S);
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = calls.clone();
    let worker = stage.start(move |_| {
        seen.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Outcome::Done(None))
    });
    stage.until(1, State::Running).await;
    let summary = worker.stop().await;
    assert_eq!((summary.claimed, summary.released, calls.load(Ordering::SeqCst)), (5, 5, 0));
    assert_eq!(stage.job(1).attempt, 0);
}

#[tokio::test(start_paused = true)]
async fn a_claim_s_wait_ends_at_once_but_settlements_are_still_retried() {
    let stage = Stage::new().await;
    stage.store.fail("claim", usize::MAX, unavailable);
    let worker = stage.start(slow);
    tokio::time::sleep(100 * MS).await;
    let asked = Instant::now();
    worker.stop().await;
    assert!(asked.elapsed().is_zero());

    stage.store.fail("claim", 0, unavailable);
    stage.enqueue_many(1).await;
    let worker = stage.start(slow);
    stage.until(1, State::Running).await;
    stage.store.fail("settle", 4, unavailable);
    assert_eq!(worker.stop().await.succeeded, 1);
}

#[tokio::test(start_paused = true)]
async fn leases_are_renewed_until_the_last_result_is_settled() {
    let stage = Stage::new().await;
    stage.enqueue_many(20).await;
    let settings = Stage::settings().with_lease(3 * S).with_drain(60 * S);
    let worker = stage.start_with(settings, slow);
    stage.until(20, State::Running).await;
    stage.store.delay("settle", 5 * S);
    let summary = worker.stop().await;
    assert_eq!((summary.succeeded, summary.lease_lost), (20, 0));
    assert!(stage.store.calls("extend").len() >= 20);
}

#[tokio::test(start_paused = true)]
async fn a_flush_that_cannot_succeed_ends_with_the_lease() {
    let stage = Stage::new().await;
    stage.enqueue_many(1).await;
    stage.store.fail("settle", usize::MAX, unavailable);
    let stubborn = redrive_core::policy::presets::storage().with_max_attempts(10_000).unwrap();
    let worker = stage.start_with(Stage::settings().with_storage_retry(stubborn), slow);
    tokio::time::sleep(2 * S).await;
    let asked = Instant::now();
    assert_eq!(worker.stop().await.dropped, 1);
    assert!(asked.elapsed() <= 31 * S, "{:?}", asked.elapsed());
}

#[tokio::test(start_paused = true)]
async fn ended_jobs_are_pruned_when_their_retention_is_over() {
    let stage = Stage::new().await;
    for start in [0, 1_000, 2_000] {
        stage.enqueue((start..start + 1_000).map(|n| stage.new_job(n))).await;
    }
    let retention = Retention { succeeded: 100 * S, ..Retention::default() };
    let settings = Stage::settings().with_retention(retention).with_concurrency(1_000);
    let worker = stage.start_with(settings, async |_| Outcome::Done(None));
    stage.when(|stage| stage.in_state(State::Succeeded) == 3_000).await;
    let ended = Instant::now();
    stage.when(|stage| stage.in_state(State::Succeeded) == 0).await;
    assert!(ended.elapsed() >= 100 * S && ended.elapsed() <= 161 * S, "{:?}", ended.elapsed());
    assert_eq!(worker.stop().await.pruned, 3_000);
}
