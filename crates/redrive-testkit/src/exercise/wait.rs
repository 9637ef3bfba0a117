//! Wait: returns when a job may have become claimable, and misses no wake-up between claim and wait.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use redrive_core::records::Precondition;
use redrive_core::store::{Backend, Settlement, WakeToken};
use redrive_core::{Job, NewJob, Start, State, Verdict};

use super::chapter;
use super::fixture::{StoreFixture, claim_request, ms, settlement};

chapter!("wait":
    does_not_return_while_nothing_happens,
    wakes_for_an_enqueue,
    wakes_for_a_redrive,
    wakes_for_a_retry,
    wakes_for_a_snooze,
    wakes_for_a_release,
    wakes_for_a_follow_up,
    wakes_for_run_now,
    wakes_for_a_record_and_for_its_removal,
    wakes_all_waiters,
    does_not_miss_a_change_before_it_waits,
    an_outdated_wake_token_returns_at_once,
);

/// How long a wake-up may take before it counts as lost.
const WAKE_UP_MAX: Duration = Duration::from_secs(10);
/// How many wake-ups of earlier calls may still arrive. An unnecessary wake-up costs one claim.
const STRAY_WAKE_UPS_MAX: usize = 20;

async fn does_not_return_while_nothing_happens(fixture: StoreFixture) {
    for _ in 0..STRAY_WAKE_UPS_MAX {
        let wake = current_wake(&fixture).await;
        if tokio::time::timeout(ms(50), fixture.store.wait(wake)).await.is_err() {
            return;
        }
    }
    panic!(
        "woke up {STRAY_WAKE_UPS_MAX} times although nothing happened: a worker would claim in a busy loop"
    );
}

async fn wakes_for_an_enqueue(fixture: StoreFixture) {
    let enqueue = async {
        fixture.enqueue(fixture.new_job()).await;
    };
    assert_wakes(&fixture, enqueue).await;
}

async fn wakes_for_a_redrive(fixture: StoreFixture) {
    let dead = fixture.in_state(State::Dead).await;
    assert_wakes(&fixture, fixture.redrive(dead.id)).await;
}

async fn wakes_for_a_retry(fixture: StoreFixture) {
    let job = fixture.running().await;
    assert_wakes(&fixture, settle(&fixture, &job, Verdict::Retry(ms(5)))).await;
}

async fn wakes_for_a_snooze(fixture: StoreFixture) {
    let job = fixture.running().await;
    assert_wakes(&fixture, settle(&fixture, &job, Verdict::Snooze(ms(5)))).await;
}

async fn wakes_for_a_release(fixture: StoreFixture) {
    let job = fixture.running().await;
    assert_wakes(&fixture, settle(&fixture, &job, Verdict::Release)).await;
}

async fn wakes_for_a_follow_up(fixture: StoreFixture) {
    let job = fixture.running().await;
    let settlement = Settlement {
        follow_ups: vec![fixture.new_job()],
        ..settlement(job.lease(), Verdict::Complete(None))
    };
    assert_wakes(&fixture, async {
        let _ = fixture.settle_by(settlement).await;
    })
    .await;
}

async fn wakes_for_run_now(fixture: StoreFixture) {
    let later = NewJob { start: Start::After(ms(60_000)), ..fixture.new_job() };
    let id = fixture.enqueue(later).await;
    assert_wakes(&fixture, async { drop(fixture.store.run_now(vec![id]).await.expect("run_now")) }).await;
}

async fn wakes_for_a_record_and_for_its_removal(fixture: StoreFixture) {
    assert_wakes(&fixture, fixture.pause(None)).await;
    assert_wakes(&fixture, fixture.resume(None)).await;
    let write = async { drop(fixture.write("other", "x", Precondition::Any, Some(Vec::new())).await) };
    assert_wakes(&fixture, write).await;
}

async fn wakes_all_waiters(fixture: StoreFixture) {
    let wake = current_wake(&fixture).await;
    let waiters: Vec<_> = (0..8).map(|_| spawn_waiter(fixture.store.clone(), wake)).collect();
    fixture.enqueue(fixture.new_job()).await;
    for waiter in waiters {
        waiter.await.expect("the waiter does not panic").expect("every waiter wakes up");
    }
}

async fn does_not_miss_a_change_before_it_waits(fixture: StoreFixture) {
    let dead = fixture.in_state(State::Dead).await;
    let job = fixture.running().await;
    let other = fixture.running().await;
    let wake = current_wake(&fixture).await;
    fixture.redrive(dead.id).await;
    assert_returns(&fixture, wake).await;
    let wake = current_wake(&fixture).await;
    fixture.settle(job.lease(), Verdict::Retry(ms(1_000))).await;
    assert_returns(&fixture, wake).await;
    let wake = current_wake(&fixture).await;
    fixture.settle(other.lease(), Verdict::Release).await;
    assert_returns(&fixture, wake).await;
    let wake = current_wake(&fixture).await;
    fixture.pause(None).await;
    assert_returns(&fixture, wake).await;
    let wake = current_wake(&fixture).await;
    fixture.enqueue(fixture.new_job()).await;
    assert_returns(&fixture, wake).await;
}

async fn an_outdated_wake_token_returns_at_once(fixture: StoreFixture) {
    let old = current_wake(&fixture).await;
    fixture.enqueue_some(3).await;
    fixture.claim(3).await;
    fixture.store.settle(Vec::new()).await.expect("settle");
    for _ in 0..2 {
        assert_returns(&fixture, old).await;
    }
}

async fn current_wake(fixture: &StoreFixture) -> WakeToken {
    fixture.claim_by(claim_request(0)).await.wake
}

async fn settle(fixture: &StoreFixture, job: &Job, verdict: Verdict) {
    fixture.settle(job.lease(), verdict).await;
}

/// Asserts that a waiter wakes up when `event` happens.
async fn assert_wakes(fixture: &StoreFixture, event: impl Future<Output = ()>) {
    let waiter = spawn_waiter(fixture.store.clone(), current_wake(fixture).await);
    tokio::task::yield_now().await;
    event.await;
    waiter.await.expect("the waiter does not panic").expect("the waiter wakes up");
}

fn spawn_waiter(
    store: Arc<dyn Backend>,
    wake: WakeToken,
) -> tokio::task::JoinHandle<Result<(), tokio::time::error::Elapsed>> {
    tokio::spawn(async move { tokio::time::timeout(WAKE_UP_MAX, store.wait(wake)).await })
}

async fn assert_returns(fixture: &StoreFixture, wake: WakeToken) {
    let waited = tokio::time::timeout(WAKE_UP_MAX, fixture.store.wait(wake)).await;
    waited.expect("a change between claim and wait wakes the waiter too");
}
