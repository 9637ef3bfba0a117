//! When the worker claims, how much, and what it does when that fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redrive_core::{NewJob, Outcome, Queue, Start, State};
use redrive_worker::{Context, Worker, WorkerError};
use tokio::time::Instant;

use crate::stage::{MS, S, Stage, id, kind, unavailable};

async fn done(_: Context) -> Outcome {
    Outcome::Done(None)
}

#[tokio::test(start_paused = true)]
async fn no_more_run_at_once_than_asked_for() {
    let stage = Stage::new().await;
    stage.enqueue_many(60).await;
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = (now.clone(), most.clone());
    let worker = stage.start_with(Stage::settings().with_concurrency(7), move |cx: Context| {
        let (now, most) = seen.clone();
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(MS * u32::from(cx.job.payload[0] % 11)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            Outcome::Done(None)
        }
    });
    stage.when(|stage| stage.in_state(State::Succeeded) == 60).await;
    worker.stop().await;
    assert_eq!((now.load(Ordering::SeqCst), most.load(Ordering::SeqCst)), (0, 7));
}

#[tokio::test(start_paused = true)]
async fn many_jobs_come_and_go_in_few_calls() {
    let stage = Stage::new().await;
    for start in (0..5_000).step_by(1_000) {
        stage.enqueue((start..start + 1_000).map(|n| stage.new_job(n))).await;
    }
    let worker = stage.start_with(Stage::settings().with_concurrency(1_000), done);
    stage.when(|stage| stage.in_state(State::Succeeded) == 5_000).await;
    let summary = worker.stop().await;
    assert_eq!((summary.claimed, summary.succeeded), (5_000, 5_000));
    let (claims, settles) = (stage.store.calls("claim").len(), stage.store.calls("settle").len());
    assert!(claims <= 12 && settles <= 12, "{claims} claims, {settles} settles");
}

#[tokio::test(start_paused = true)]
async fn slots_that_become_free_one_by_one_are_gathered() {
    let stage = Stage::new().await;
    stage.enqueue_many(400).await;
    // Each attempt takes 10 ms, and they end 0.1 ms apart.
    let worker = stage.start_with(Stage::settings().with_concurrency(100), async |cx: Context| {
        let n = u64::from(cx.job.payload[0]) % 100;
        tokio::time::sleep(10 * MS + Duration::from_micros(100 * n)).await;
        Outcome::Done(None)
    });
    stage.when(|stage| stage.in_state(State::Succeeded) == 400).await;
    worker.stop().await;
    let claims = stage.store.calls("claim").len();
    assert!(claims <= 40, "{claims} claims for 400 jobs");
}

#[tokio::test(start_paused = true)]
async fn a_job_starts_in_the_millisecond_in_which_it_is_due() {
    let stage = Stage::new().await;
    let waits = [1, 2, 3, 50, 999, 1_000, 1_001, 12_345];
    let jobs = waits.iter().zip(1..);
    stage
        .enqueue(
            jobs.map(|(ms, n)| NewJob {
                start: Start::After(Duration::from_millis(*ms)),
                ..stage.new_job(n)
            }),
        )
        .await;
    let due: Vec<_> = (1..=waits.len() as u128).map(|n| stage.job(n).next_run_at).collect();
    let worker = stage.start(done);
    stage.when(|stage| stage.in_state(State::Succeeded) == waits.len()).await;
    worker.stop().await;
    for (n, due) in (1..).zip(due) {
        let lag = stage.job(n).started_at.unwrap().since(due);
        assert!(lag <= MS, "{lag:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_worker_is_woken_by_an_enqueue_and_otherwise_only_polls() {
    let stage = Stage::new().await;
    let worker = stage.start(done);
    tokio::time::sleep(10 * S + 500 * MS).await;
    assert!(stage.store.calls("claim").len() <= 12);
    let enqueued = Instant::now();
    stage.enqueue_many(1).await;
    stage.until(1, State::Succeeded).await;
    assert!(enqueued.elapsed() <= 2 * MS);
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_is_asked_now_and_then() {
    let stage = Stage::new().await;
    stage.enqueue_many(1).await;
    stage.store.fail("claim", usize::MAX, unavailable);
    let worker = stage.start(done);
    tokio::time::sleep(60 * S).await;
    // Three tries within 1.2 to 1.8 s, then a second's rest.
    let claims = stage.store.calls("claim").len();
    assert!((60..=84).contains(&claims), "{claims}");
    stage.store.fail("claim", 0, unavailable);
    stage.until(1, State::Succeeded).await;
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn rows_that_cannot_be_read_end_dead_with_the_problem() {
    let stage = Stage::new().await;
    stage.enqueue_many(3).await;
    stage.store.garble(id(2));
    let worker = stage.start(done);
    stage.when(|stage| stage.in_state(State::Succeeded) == 2 && stage.state(2) == State::Dead).await;
    worker.stop().await;
    let error = "the job cannot be read: column payload is not a blob";
    assert_eq!(stage.job(2).last_error.unwrap(), error);
    assert_eq!(stage.outcomes(2), ["rejected"]);
}

#[tokio::test(start_paused = true)]
async fn only_what_has_a_handler_and_stands_in_its_queues_is_claimed() {
    let stage = Stage::new().await;
    let other = Queue::new("other").unwrap();
    stage.enqueue([NewJob { kind: kind("unknown"), ..stage.new_job(1) }]).await;
    stage.enqueue([NewJob { queue: other, ..stage.new_job(2) }, stage.new_job(3)]).await;
    let worker = stage.start_with(Stage::settings().with_queues([Queue::default()]), done);
    stage.until(3, State::Succeeded).await;
    tokio::time::sleep(60 * S).await;
    worker.stop().await;
    assert_eq!((stage.state(1), stage.state(2)), (State::Pending, State::Pending));
}

#[tokio::test(start_paused = true)]
async fn a_worker_without_handlers_claims_nothing_and_two_for_one_kind_are_refused() {
    let stage = Stage::new().await;
    stage.enqueue_many(1).await;
    let idle = Worker::new(stage.store.clone(), Stage::settings()).unwrap();
    idle.run_until(tokio::time::sleep(60 * S)).await.unwrap();
    assert_eq!(stage.state(1), State::Pending);
    let twice = stage.worker(Stage::settings(), done).on(kind("test"), done);
    let error = twice.run_until(std::future::ready(())).await.unwrap_err();
    assert!(matches!(error, WorkerError::TwoHandlers(twice) if twice == kind("test")));
}

#[tokio::test(start_paused = true)]
async fn a_seed_replays_a_run_exactly() {
    let (first, second, other) = (trace(7).await, trace(7).await, trace(8).await);
    assert_eq!(first, second);
    assert_ne!(first, other);
}

/// Everything the store was asked, and when, by a worker that often fails.
async fn trace(seed: u64) -> Vec<(&'static str, Duration, usize)> {
    let policy = redrive_core::policy::presets::standard().with_total_budget(None);
    let stage = Stage::with_policy(&policy).await;
    stage.enqueue_many(50).await;
    stage.store.fail("settle", 3, unavailable);
    let began = Instant::now();
    let settings = Stage::settings().with_seed(seed).with_concurrency(8);
    let worker = stage.start_with(settings, async |cx: Context| {
        tokio::time::sleep(MS * u32::from(cx.job.payload[0])).await;
        if cx.job.attempt < 4 { Outcome::fail("boom") } else { Outcome::Done(None) }
    });
    stage.when(|stage| stage.in_state(State::Succeeded) == 50).await;
    worker.stop().await;
    let calls = stage.store.all_calls();
    calls.into_iter().map(|call| (call.verb, call.at - began, call.items)).collect()
}
