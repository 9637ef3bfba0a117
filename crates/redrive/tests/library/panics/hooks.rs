//! Panics in middleware, hooks and observers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redrive::{
    Context, Error, Job, NewJob, Next, Observer, Policy, Redrive, Schedule, State, Task, Timestamp,
};
use redrive_core::store::{SettleResult, Settlement};
use serde::{Deserialize, Serialize};

use super::{failures, panicked, quick_policy, work_beside};
use crate::fixture::{Add, job, open, work};

#[derive(Serialize, Deserialize)]
struct Count {}

impl Task for Count {
    const KIND: &'static str = "count";
    type Output = u32;

    fn policy() -> Policy {
        quick_policy()
    }
}

#[tokio::test]
async fn a_panic_in_middleware_or_a_handler_is_a_failed_attempt_that_names_it() {
    let redrive = open().await;
    let id = redrive.enqueue(Count {}).await.unwrap().id();
    let worker = redrive
        .worker()
        .middleware(|cx: Context, next: Next| async move {
            assert!(cx.job.kind.as_str() != Count::KIND || cx.job.attempt != 1, "not the first");
            next.run(cx).await
        })
        .on(|_: Count, cx: Context| async move {
            assert_ne!(cx.job.attempt, 2, "not the second");
            Ok(cx.job.attempt)
        });
    work_beside(&redrive, worker, &[id]).await;
    assert_eq!(job(&redrive, id).await.output.as_deref(), Some(b"3".as_slice()));
    let [first, second] =
        [("middleware", "not the first"), ("handler", "assertion `left != right` failed: not")];
    let failures = failures(&redrive, id).await;
    assert_eq!(failures[0], panicked(&format!("{} panicked: {}", first.0, first.1)));
    assert!(failures[1].1.starts_with(&format!("{} panicked: {}", second.0, second.1)), "{failures:?}");
}

/// A handle whose middleware panics for the queue "closed".
fn guarded(redrive: &Redrive) -> Redrive {
    redrive.clone().with_enqueue_middleware(|job: NewJob| {
        assert_ne!(job.queue.as_str(), "closed");
        Ok(job)
    })
}

#[tokio::test]
async fn a_panic_in_enqueue_middleware_is_an_error_and_nothing_is_enqueued() {
    let redrive = guarded(&open().await);
    let refused = [
        redrive.enqueue(Add { a: 1, b: 1 }).queue("closed").await.map(drop),
        redrive.enqueue(Add { a: 1, b: 1 }).queue("closed").prepare().await.map(drop),
        redrive.enqueue_all([redrive.enqueue(Add { a: 1, b: 1 }).queue("closed")]).await.map(drop),
    ];
    for refused in refused {
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::Panicked(_)), "{error:?}");
        assert!(error.to_string().starts_with("enqueue middleware panicked: assertion"), "{error}");
    }
    assert_eq!(redrive.backend().stats().await.unwrap().in_state(State::Pending), 0);
    redrive.enqueue(Add { a: 1, b: 1 }).await.unwrap();
}

/// The worker itself enqueues for schedules.
#[tokio::test]
async fn a_schedule_whose_enqueue_panics_does_not_end_the_worker() {
    let plain = open().await;
    let called = Arc::new(AtomicU32::new(0));
    let calls = called.clone();
    let redrive = plain.clone().with_enqueue_middleware(move |job: NewJob| {
        if job.queue.as_str() == "closed" {
            calls.fetch_add(1, Ordering::SeqCst);
            panic!("closed for today");
        }
        Ok(job)
    });
    let steps = Schedule::every(Duration::from_millis(100)).unwrap();
    plain.schedule("steps", steps, Count {}).queue("closed").await.unwrap();
    let worker = redrive.worker().on(|add: Add, _: Context| async move { Ok(add.a) });
    let id = tokio::sync::OnceCell::new();
    let after_it_panicked = async {
        while called.load(Ordering::SeqCst) < 2 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        id.set(redrive.enqueue(Add { a: 1, b: 1 }).await.unwrap().id()).unwrap();
        while !job(&redrive, *id.get().unwrap()).await.state.is_final() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let limited = tokio::time::timeout(Duration::from_secs(20), after_it_panicked);
    worker.run_until(async { limited.await.expect("the job ends") }).await.unwrap();
    assert_eq!(job(&redrive, *id.get().unwrap()).await.state, State::Succeeded);
}

/// Panics at every call, and counts the calls.
#[derive(Default)]
struct PanickingObserver(AtomicU32);

impl PanickingObserver {
    fn panic(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("too much");
    }
}

impl Observer for PanickingObserver {
    fn claimed(&self, _: &[Arc<Job>], _: Timestamp) {
        self.panic();
    }

    fn settled(&self, _: &Job, _: &Settlement, _: SettleResult) {
        self.panic();
    }

    fn store_call(&self, _: &'static str, _: usize, _: Duration, _: bool) {
        self.panic();
    }
}

/// Counts its calls.
#[derive(Default)]
struct CountingObserver(AtomicU32);

impl Observer for CountingObserver {
    fn settled(&self, _: &Job, _: &Settlement, _: SettleResult) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_panic_in_an_observer_affects_neither_the_worker_nor_other_observers() {
    let redrive = open().await;
    let (panicking, counting) =
        (Arc::new(PanickingObserver::default()), Arc::new(CountingObserver::default()));
    let mut jobs = Vec::new();
    for _ in 0..5 {
        jobs.push(redrive.enqueue(Add { a: 1, b: 2 }).await.unwrap().id());
    }
    let worker = redrive
        .worker()
        .observe(panicking.clone())
        .observe(counting.clone())
        .on(|add: Add, _: Context| async move { Ok(add.a) });
    let summary = work(&redrive, worker, &jobs).await;
    assert_eq!((summary.succeeded, counting.0.load(Ordering::SeqCst)), (5, 5));
    assert!(panicking.0.load(Ordering::SeqCst) > 5);
}

#[derive(Serialize, Deserialize)]
struct PanickingPolicy {}

impl Task for PanickingPolicy {
    const KIND: &'static str = "unruly";
    type Output = ();

    fn policy() -> Policy {
        panic!("no rule")
    }
}

#[tokio::test]
async fn a_panic_in_a_task_s_policy_is_an_error_of_its_enqueue() {
    let redrive = open().await;
    let error = redrive.enqueue(PanickingPolicy {}).await.unwrap_err();
    assert_eq!(error.to_string(), "the policy of a unruly panicked: no rule");
    assert_eq!(redrive.backend().stats().await.unwrap().in_state(State::Pending), 0);
}
