//! Wait: sleeps while nothing can be claimed, and misses no wake-up that came between claim and wait.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use redrive_core::records::Expect;
use redrive_core::store::{Backend, Settlement, Wake};
use redrive_core::{Job, NewJob, Start, State, Verdict};

use super::chapter;
use super::stage::{Stage, claim_request, ms, settlement};

chapter!("wait":
    stays_asleep_while_nothing_happens,
    wakes_for_an_enqueue,
    wakes_for_a_redrive,
    wakes_for_a_retry,
    wakes_for_a_snooze,
    wakes_for_a_release,
    wakes_for_a_follow_up,
    wakes_for_run_now,
    wakes_for_a_record_and_for_its_removal,
    wakes_everyone,
    does_not_miss_what_came_before_it_waits,
    an_old_wake_returns_at_once,
);

/// How long a wake-up may take before it counts as lost.
const SOON: Duration = Duration::from_secs(10);
/// How many wake-ups may still be on their way from what happened before. One that is not needed costs a claim.
const STRAY: usize = 20;

async fn stays_asleep_while_nothing_happens(stage: Stage) {
    for _ in 0..STRAY {
        let wake = seen(&stage).await;
        if tokio::time::timeout(ms(50), stage.store.wait(wake)).await.is_err() {
            return;
        }
    }
    panic!("woke up {STRAY} times though nothing happened: a worker would spin");
}

async fn wakes_for_an_enqueue(stage: Stage) {
    let enqueue = async {
        stage.enqueue(stage.new_job()).await;
    };
    wakes(&stage, enqueue).await;
}

async fn wakes_for_a_redrive(stage: Stage) {
    let dead = stage.in_state(State::Dead).await;
    wakes(&stage, stage.redrive(dead.id)).await;
}

async fn wakes_for_a_retry(stage: Stage) {
    let job = stage.running().await;
    wakes(&stage, settle(&stage, &job, Verdict::Retry(ms(5)))).await;
}

async fn wakes_for_a_snooze(stage: Stage) {
    let job = stage.running().await;
    wakes(&stage, settle(&stage, &job, Verdict::Snooze(ms(5)))).await;
}

async fn wakes_for_a_release(stage: Stage) {
    let job = stage.running().await;
    wakes(&stage, settle(&stage, &job, Verdict::Release)).await;
}

async fn wakes_for_a_follow_up(stage: Stage) {
    let job = stage.running().await;
    let settlement =
        Settlement { follow_ups: vec![stage.new_job()], ..settlement(job.lease(), Verdict::Complete(None)) };
    wakes(&stage, async {
        let _ = stage.settle_by(settlement).await;
    })
    .await;
}

async fn wakes_for_run_now(stage: Stage) {
    let later = NewJob { start: Start::After(ms(60_000)), ..stage.new_job() };
    let id = stage.enqueue(later).await;
    wakes(&stage, async { drop(stage.store.run_now(vec![id]).await.expect("run_now")) }).await;
}

async fn wakes_for_a_record_and_for_its_removal(stage: Stage) {
    wakes(&stage, stage.pause(None)).await;
    wakes(&stage, stage.resume(None)).await;
    let write = async { drop(stage.write("other", "x", Expect::Any, Some(Vec::new())).await) };
    wakes(&stage, write).await;
}

async fn wakes_everyone(stage: Stage) {
    let wake = seen(&stage).await;
    let sleepers: Vec<_> = (0..8).map(|_| asleep(stage.store.clone(), wake)).collect();
    stage.enqueue(stage.new_job()).await;
    for sleeper in sleepers {
        sleeper.await.expect("a sleeper").expect("every sleeper wakes");
    }
}

async fn does_not_miss_what_came_before_it_waits(stage: Stage) {
    let dead = stage.in_state(State::Dead).await;
    let job = stage.running().await;
    let other = stage.running().await;
    let wake = seen(&stage).await;
    stage.redrive(dead.id).await;
    returns(&stage, wake).await;
    let wake = seen(&stage).await;
    stage.settle(job.lease(), Verdict::Retry(ms(1_000))).await;
    returns(&stage, wake).await;
    let wake = seen(&stage).await;
    stage.settle(other.lease(), Verdict::Release).await;
    returns(&stage, wake).await;
    let wake = seen(&stage).await;
    stage.pause(None).await;
    returns(&stage, wake).await;
    let wake = seen(&stage).await;
    stage.enqueue(stage.new_job()).await;
    returns(&stage, wake).await;
}

async fn an_old_wake_returns_at_once(stage: Stage) {
    let old = seen(&stage).await;
    stage.enqueue_some(3).await;
    stage.claim(3).await;
    stage.store.settle(Vec::new()).await.expect("settle");
    for _ in 0..2 {
        returns(&stage, old).await;
    }
}

async fn seen(stage: &Stage) -> Wake {
    stage.claim_by(claim_request(0)).await.wake
}

async fn settle(stage: &Stage, job: &Job, verdict: Verdict) {
    stage.settle(job.lease(), verdict).await;
}

/// A sleeper wakes up when `event` happens.
async fn wakes(stage: &Stage, event: impl Future<Output = ()>) {
    let sleeper = asleep(stage.store.clone(), seen(stage).await);
    tokio::task::yield_now().await;
    event.await;
    sleeper.await.expect("the sleeper").expect("it wakes up");
}

fn asleep(
    store: Arc<dyn Backend>,
    wake: Wake,
) -> tokio::task::JoinHandle<Result<(), tokio::time::error::Elapsed>> {
    tokio::spawn(async move { tokio::time::timeout(SOON, store.wait(wake)).await })
}

async fn returns(stage: &Stage, wake: Wake) {
    let waited = tokio::time::timeout(SOON, stage.store.wait(wake)).await;
    waited.expect("what came between claim and wait wakes too");
}
