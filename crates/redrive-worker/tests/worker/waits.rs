//! Jobs that wait: what resumes them, and how the sweep finds those that were not resumed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use redrive_core::steps::{Signal, Steps};
use redrive_core::{NewJob, Outcome, Parent, SignalName, State, Wait, WaitCondition};
use redrive_worker::{Context, Handler};
use uuid::Uuid;

use crate::fixture::{Fixture, S, id, unavailable};

/// Returns a handler that waits for `until` in its first attempt and succeeds in its second.
fn waits_once(until: WaitCondition) -> impl Handler {
    move |cx: Context| {
        let first = cx.job.epoch == 1;
        let wait = Outcome::Wait(Wait::until(until.clone()));
        async move { if first && cx.job.parent.is_none() { wait } else { Outcome::Done(None) } }
    }
}

fn go_signal() -> WaitCondition {
    WaitCondition::Signal(SignalName::new("go").unwrap())
}

async fn signal(fixture: &Fixture) {
    let name = SignalName::new("go").unwrap();
    let signal = Signal { job: id(1), id: Uuid::from_u128(1), name, value: Vec::new() };
    fixture.store.model.signal(vec![signal]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_last_child_resumes_its_parent() {
    let fixture = Fixture::new().await;
    let parent = Some(Parent::new(id(1), 0));
    fixture.enqueue([fixture.new_job(1)]).await;
    let children =
        (2..=5).map(|n| NewJob { parent, start: redrive_core::Start::After(S), ..fixture.new_job(n) });
    fixture.enqueue(children).await;
    let worker = fixture.start(waits_once(WaitCondition::Children { branch: 0, failures_max: 0 }));
    fixture.wait_for_state(1, State::Waiting).await;
    fixture.wait_for_state(1, State::Succeeded).await;
    assert_eq!((fixture.job(1).epoch, fixture.count_in_state(State::Succeeded)), (2, 5));
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_signal_that_arrived_before_the_wait_ends_it_at_once() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(1).await;
    signal(&fixture).await;
    let worker = fixture.start(waits_once(go_signal()));
    let began = tokio::time::Instant::now();
    fixture.wait_for_state(1, State::Succeeded).await;
    assert!(began.elapsed() < S, "{:?}", began.elapsed());
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_next_sweep_resumes_a_job_whose_resume_failed() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(1).await;
    signal(&fixture).await;
    fixture.store.fail("resume", usize::MAX, unavailable);
    let worker = fixture.start(waits_once(go_signal()));
    let began = tokio::time::Instant::now();
    fixture.wait_for_state(1, State::Succeeded).await;
    assert!(began.elapsed() > S && began.elapsed() < 20 * S, "{:?}", began.elapsed());
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_paused_while_it_runs_makes_no_further_attempt() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(1).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let worker = fixture.start(move |_: Context| {
        let call = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            tokio::time::sleep(S).await;
            if call == 0 { Outcome::fail("once") } else { Outcome::Done(None) }
        }
    });
    fixture.wait_for_state(1, State::Running).await;
    fixture.store.model.pause(vec![id(1)]).await.unwrap();
    fixture.wait_for_state(1, State::Waiting).await;
    tokio::time::sleep(100 * S).await;
    assert_eq!((calls.load(Ordering::SeqCst), fixture.job(1).attempt), (1, 1));
    fixture.store.model.unpause(vec![id(1)]).await.unwrap();
    fixture.wait_for_state(1, State::Succeeded).await;
    assert_eq!((calls.load(Ordering::SeqCst), fixture.job(1).attempt), (2, 2));
    worker.stop().await;
}
