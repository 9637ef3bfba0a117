//! The shutdown, and pruning.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use redrive_core::store::Retention;
use redrive_core::{Outcome, State};
use redrive_worker::Context;
use tokio::time::Instant;

use crate::fixture::{Fixture, MS, S, unavailable};

/// Takes as many seconds as its payload says.
async fn slow(cx: Context) -> Outcome {
    tokio::time::sleep(S * u32::from(cx.job.payload[0])).await;
    Outcome::Done(None)
}

#[tokio::test(start_paused = true)]
async fn running_attempts_may_finish_and_the_others_are_released_without_charge() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(30).await;
    let worker = fixture.start(slow);
    fixture.wait_until(|fixture| fixture.count_in_state(State::Running) == 30).await;
    let requested = Instant::now();
    let summary = worker.stop().await;
    assert!(
        requested.elapsed() >= 20 * S && requested.elapsed() <= 20 * S + 10 * MS,
        "{:?}",
        requested.elapsed()
    );
    assert_eq!((summary.succeeded, summary.released), (20, 10));
    for n in 21..=30 {
        let job = fixture.job(n);
        assert_eq!((job.state, job.attempt, job.lease_until), (State::Pending, 0, None));
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_worker_ends_at_once_and_a_busy_one_when_its_attempts_have_ended() {
    let fixture = Fixture::new().await;
    let worker = fixture.start(slow);
    tokio::time::sleep(S).await;
    let requested = Instant::now();
    worker.stop().await;
    assert!(requested.elapsed().is_zero());
    fixture.enqueue_many(3).await;
    let worker = fixture.start(slow);
    fixture.wait_for_state(3, State::Running).await;
    let requested = Instant::now();
    assert_eq!(worker.stop().await.succeeded, 3);
    assert!(requested.elapsed() <= 3 * S, "{:?}", requested.elapsed());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_claimed_once_the_shutdown_has_begun() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(5).await;
    let worker = fixture.start_with(Fixture::settings().with_concurrency(1), slow);
    fixture.wait_for_state(1, State::Running).await;
    let summary = worker.stop().await;
    assert_eq!((summary.claimed, summary.succeeded), (1, 1));
    assert_eq!(fixture.count_in_state(State::Pending), 4);
}

#[tokio::test(start_paused = true)]
async fn jobs_from_a_claim_that_ends_after_the_shutdown_began_are_released() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(5).await;
    fixture.store.delay("claim", 2 * S);
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = calls.clone();
    let worker = fixture.start(move |_| {
        seen.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Outcome::Done(None))
    });
    fixture.wait_for_state(1, State::Running).await;
    let summary = worker.stop().await;
    assert_eq!((summary.claimed, summary.released, calls.load(Ordering::SeqCst)), (5, 5, 0));
    assert_eq!(fixture.job(1).attempt, 0);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_the_retries_of_a_claim_but_not_those_of_a_settlement() {
    let fixture = Fixture::new().await;
    fixture.store.fail("claim", usize::MAX, unavailable);
    let worker = fixture.start(slow);
    tokio::time::sleep(100 * MS).await;
    let requested = Instant::now();
    worker.stop().await;
    assert!(requested.elapsed().is_zero());

    fixture.store.fail("claim", 0, unavailable);
    fixture.enqueue_many(1).await;
    let worker = fixture.start(slow);
    fixture.wait_for_state(1, State::Running).await;
    fixture.store.fail("settle", 4, unavailable);
    assert_eq!(worker.stop().await.succeeded, 1);
}

#[tokio::test(start_paused = true)]
async fn leases_are_renewed_until_the_last_settlement_is_written() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(20).await;
    let settings = Fixture::settings().with_lease(3 * S).with_drain(60 * S);
    let worker = fixture.start_with(settings, slow);
    fixture.wait_for_state(20, State::Running).await;
    fixture.store.delay("settle", 5 * S);
    let summary = worker.stop().await;
    assert_eq!((summary.succeeded, summary.lease_lost), (20, 0));
    assert!(fixture.store.calls("extend").len() >= 20);
}

#[tokio::test(start_paused = true)]
async fn a_flush_that_cannot_succeed_ends_after_one_lease() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(1).await;
    fixture.store.fail("settle", usize::MAX, unavailable);
    let many_retries = redrive_core::policy::presets::storage().with_max_attempts(10_000).unwrap();
    let worker = fixture.start_with(Fixture::settings().with_storage_retry(many_retries), slow);
    tokio::time::sleep(2 * S).await;
    let requested = Instant::now();
    assert_eq!(worker.stop().await.dropped, 1);
    assert!(requested.elapsed() <= 31 * S, "{:?}", requested.elapsed());
}

#[tokio::test(start_paused = true)]
async fn ended_jobs_are_pruned_after_their_retention() {
    let fixture = Fixture::new().await;
    for start in [0, 1_000, 2_000] {
        fixture.enqueue((start..start + 1_000).map(|n| fixture.new_job(n))).await;
    }
    let retention = Retention { succeeded: 100 * S, ..Retention::default() };
    let settings = Fixture::settings().with_retention(retention).with_concurrency(1_000);
    let worker = fixture.start_with(settings, async |_| Outcome::Done(None));
    fixture.wait_until(|fixture| fixture.count_in_state(State::Succeeded) == 3_000).await;
    let ended = Instant::now();
    fixture.wait_until(|fixture| fixture.count_in_state(State::Succeeded) == 0).await;
    assert!(ended.elapsed() >= 100 * S && ended.elapsed() <= 161 * S, "{:?}", ended.elapsed());
    assert_eq!(worker.stop().await.pruned, 3_000);
}
