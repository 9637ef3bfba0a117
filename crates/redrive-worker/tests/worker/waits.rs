//! Jobs that wait: who resumes them, and what happens when nobody could.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use redrive_core::steps::{Signal, Steps};
use redrive_core::{Await, NewJob, Outcome, Parent, SignalName, State, Wait};
use redrive_worker::{Context, Handler};
use uuid::Uuid;

use crate::stage::{S, Stage, id, unavailable};

/// Waits for `until` on its first attempt and is done on its second.
fn waits_once(until: Await) -> impl Handler {
    move |cx: Context| {
        let first = cx.job.epoch == 1;
        let wait = Outcome::Wait(Wait::until(until.clone()));
        async move { if first && cx.job.parent.is_none() { wait } else { Outcome::Done(None) } }
    }
}

fn go() -> Await {
    Await::Signal(SignalName::new("go").unwrap())
}

async fn signal(stage: &Stage) {
    let name = SignalName::new("go").unwrap();
    let signal = Signal { job: id(1), id: Uuid::from_u128(1), name, value: Vec::new() };
    stage.store.model.signal(vec![signal]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_last_child_resumes_its_parent() {
    let stage = Stage::new().await;
    let parent = Some(Parent::new(id(1), 0));
    stage.enqueue([stage.new_job(1)]).await;
    let children =
        (2..=5).map(|n| NewJob { parent, start: redrive_core::Start::After(S), ..stage.new_job(n) });
    stage.enqueue(children).await;
    let worker = stage.start(waits_once(Await::Children { branch: 0, failures_max: 0 }));
    stage.until(1, State::Waiting).await;
    stage.until(1, State::Succeeded).await;
    assert_eq!((stage.job(1).epoch, stage.in_state(State::Succeeded)), (2, 5));
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_has_come_before_the_wait_ends_it_at_once() {
    let stage = Stage::new().await;
    stage.enqueue_many(1).await;
    signal(&stage).await;
    let worker = stage.start(waits_once(go()));
    let began = tokio::time::Instant::now();
    stage.until(1, State::Succeeded).await;
    assert!(began.elapsed() < S, "{:?}", began.elapsed());
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_nobody_could_resume_is_found_by_the_next_sweep() {
    let stage = Stage::new().await;
    stage.enqueue_many(1).await;
    signal(&stage).await;
    stage.store.fail("resume", usize::MAX, unavailable);
    let worker = stage.start(waits_once(go()));
    let began = tokio::time::Instant::now();
    stage.until(1, State::Succeeded).await;
    assert!(began.elapsed() > S && began.elapsed() < 20 * S, "{:?}", began.elapsed());
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_held_while_it_runs_makes_no_further_attempt() {
    let stage = Stage::new().await;
    stage.enqueue_many(1).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let worker = stage.start(move |_: Context| {
        let call = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            tokio::time::sleep(S).await;
            if call == 0 { Outcome::fail("once") } else { Outcome::Done(None) }
        }
    });
    stage.until(1, State::Running).await;
    stage.store.model.hold(vec![id(1)]).await.unwrap();
    stage.until(1, State::Waiting).await;
    tokio::time::sleep(100 * S).await;
    assert_eq!((calls.load(Ordering::SeqCst), stage.job(1).attempt), (1, 1));
    stage.store.model.unhold(vec![id(1)]).await.unwrap();
    stage.until(1, State::Succeeded).await;
    assert_eq!((calls.load(Ordering::SeqCst), stage.job(1).attempt), (2, 2));
    worker.stop().await;
}
