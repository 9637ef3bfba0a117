//! When the worker claims, how many jobs, and what happens when a claim fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redrive_core::{NewJob, Outcome, Queue, Start, State};
use redrive_worker::{Context, Worker, WorkerError};
use tokio::time::Instant;

use crate::fixture::{Fixture, MS, S, id, kind, unavailable};

async fn done(_: Context) -> Outcome {
    Outcome::Done(None)
}

#[tokio::test(start_paused = true)]
async fn no_more_attempts_run_at_once_than_the_concurrency_allows() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(60).await;
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = (running.clone(), most.clone());
    let worker = fixture.start_with(Fixture::settings().with_concurrency(7), move |cx: Context| {
        let (running, most) = seen.clone();
        async move {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(MS * u32::from(cx.job.payload[0] % 11)).await;
            running.fetch_sub(1, Ordering::SeqCst);
            Outcome::Done(None)
        }
    });
    fixture.wait_until(|fixture| fixture.count_in_state(State::Succeeded) == 60).await;
    worker.stop().await;
    assert_eq!((running.load(Ordering::SeqCst), most.load(Ordering::SeqCst)), (0, 7));
}

#[tokio::test(start_paused = true)]
async fn many_jobs_are_claimed_and_settled_in_few_calls() {
    let fixture = Fixture::new().await;
    for start in (0..5_000).step_by(1_000) {
        fixture.enqueue((start..start + 1_000).map(|n| fixture.new_job(n))).await;
    }
    let worker = fixture.start_with(Fixture::settings().with_concurrency(1_000), done);
    fixture.wait_until(|fixture| fixture.count_in_state(State::Succeeded) == 5_000).await;
    let summary = worker.stop().await;
    assert_eq!((summary.claimed, summary.succeeded), (5_000, 5_000));
    let (claims, settles) = (fixture.store.calls("claim").len(), fixture.store.calls("settle").len());
    assert!(claims <= 12 && settles <= 12, "{claims} claims, {settles} settles");
}

#[tokio::test(start_paused = true)]
async fn up_to_three_claims_run_at_once_during_a_backlog() {
    let fixture = Fixture::new().await;
    for start in (0..9_000).step_by(1_000) {
        fixture.enqueue((start..start + 1_000).map(|n| fixture.new_job(n))).await;
    }
    let delay = 10 * MS;
    fixture.store.delay("claim", delay);
    let worker = fixture.start_with(Fixture::settings().with_concurrency(6_000), done);
    fixture.wait_until(|fixture| fixture.count_in_state(State::Succeeded) == 9_000).await;
    worker.stop().await;
    let claims = fixture.store.calls("claim");
    let during = |at: Instant| claims.iter().filter(|call| call.at <= at && at < call.at + delay).count();
    assert_eq!(claims.iter().map(|call| during(call.at)).max(), Some(3));
}

#[tokio::test(start_paused = true)]
async fn one_claim_at_a_time_takes_few_jobs() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(200).await;
    fixture.store.delay("claim", 10 * MS);
    let worker = fixture.start_with(Fixture::settings().with_concurrency(50), done);
    fixture.wait_until(|fixture| fixture.count_in_state(State::Succeeded) == 200).await;
    worker.stop().await;
    let claims = fixture.store.calls("claim");
    assert!(claims.windows(2).all(|pair| pair[1].at - pair[0].at >= 10 * MS), "{claims:?}");
}

#[tokio::test(start_paused = true)]
async fn claims_of_large_payloads_are_smaller() {
    let fixture = Fixture::new().await;
    let large = |n| NewJob { payload: vec![7; 64 * 1024], ..fixture.new_job(n) };
    fixture.enqueue((0..900).map(large)).await;
    let worker = fixture.start_with(Fixture::settings().with_concurrency(600), done);
    fixture.wait_until(|fixture| fixture.count_in_state(State::Succeeded) == 900).await;
    worker.stop().await;
    let items: Vec<usize> = fixture.store.calls("claim").iter().map(|call| call.items).collect();
    assert_eq!(items[0], 170, "the sizes are not known yet: 16 MiB of the largest payloads");
    assert!(items[1..].iter().all(|items| *items <= 256), "16 MiB at most: {items:?}");
    assert!(items[1..].contains(&256), "{items:?}");
}

#[tokio::test(start_paused = true)]
async fn slots_that_become_free_one_by_one_share_claims() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(400).await;
    // Each attempt takes 10 ms, and they end 0.1 ms apart.
    let worker = fixture.start_with(Fixture::settings().with_concurrency(100), async |cx: Context| {
        let n = u64::from(cx.job.payload[0]) % 100;
        tokio::time::sleep(10 * MS + Duration::from_micros(100 * n)).await;
        Outcome::Done(None)
    });
    fixture.wait_until(|fixture| fixture.count_in_state(State::Succeeded) == 400).await;
    worker.stop().await;
    let claims = fixture.store.calls("claim").len();
    assert!(claims <= 40, "{claims} claims for 400 jobs");
}

#[tokio::test(start_paused = true)]
async fn a_job_starts_within_a_millisecond_of_its_due_time() {
    let fixture = Fixture::new().await;
    let waits = [1, 2, 3, 50, 999, 1_000, 1_001, 12_345];
    let jobs = waits.iter().zip(1..);
    fixture
        .enqueue(
            jobs.map(|(ms, n)| NewJob {
                start: Start::After(Duration::from_millis(*ms)),
                ..fixture.new_job(n)
            }),
        )
        .await;
    let due: Vec<_> = (1..=waits.len() as u128).map(|n| fixture.job(n).next_run_at).collect();
    let worker = fixture.start(done);
    fixture.wait_until(|fixture| fixture.count_in_state(State::Succeeded) == waits.len()).await;
    worker.stop().await;
    for (n, due) in (1..).zip(due) {
        let lag = fixture.job(n).started_at.unwrap().since(due);
        assert!(lag <= MS, "{lag:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_worker_is_woken_by_an_enqueue_and_otherwise_only_polls() {
    let fixture = Fixture::new().await;
    let worker = fixture.start(done);
    tokio::time::sleep(10 * S + 500 * MS).await;
    assert!(fixture.store.calls("claim").len() <= 12);
    let enqueued = Instant::now();
    fixture.enqueue_many(1).await;
    fixture.wait_for_state(1, State::Succeeded).await;
    assert!(enqueued.elapsed() <= 2 * MS);
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn claims_are_retried_at_intervals_while_the_store_is_down() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(1).await;
    fixture.store.fail("claim", usize::MAX, unavailable);
    let worker = fixture.start(done);
    tokio::time::sleep(60 * S).await;
    // Three tries within 1.2 to 1.8 s, then a wait of a second.
    let claims = fixture.store.calls("claim").len();
    assert!((60..=84).contains(&claims), "{claims}");
    fixture.store.fail("claim", 0, unavailable);
    fixture.wait_for_state(1, State::Succeeded).await;
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn damaged_rows_become_dead_letters_that_name_the_problem() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(3).await;
    fixture.store.damage(id(2));
    let worker = fixture.start(done);
    fixture
        .wait_until(|fixture| {
            fixture.count_in_state(State::Succeeded) == 2 && fixture.state(2) == State::Dead
        })
        .await;
    worker.stop().await;
    let error = "the job cannot be read: column payload is not a blob";
    assert_eq!(fixture.job(2).last_error.unwrap(), error);
    assert_eq!(fixture.outcomes(2), ["rejected"]);
}

#[tokio::test(start_paused = true)]
async fn only_jobs_of_known_kinds_in_the_chosen_queues_are_claimed() {
    let fixture = Fixture::new().await;
    let other = Queue::new("other").unwrap();
    fixture.enqueue([NewJob { kind: kind("unknown"), ..fixture.new_job(1) }]).await;
    fixture.enqueue([NewJob { queue: other, ..fixture.new_job(2) }, fixture.new_job(3)]).await;
    let worker = fixture.start_with(Fixture::settings().with_queues([Queue::default()]), done);
    fixture.wait_for_state(3, State::Succeeded).await;
    tokio::time::sleep(60 * S).await;
    worker.stop().await;
    assert_eq!((fixture.state(1), fixture.state(2)), (State::Pending, State::Pending));
}

#[tokio::test(start_paused = true)]
async fn a_worker_without_handlers_claims_nothing_and_a_duplicate_handler_is_an_error() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(1).await;
    let idle = Worker::new(fixture.store.clone(), Fixture::settings()).unwrap();
    idle.run_until(tokio::time::sleep(60 * S)).await.unwrap();
    assert_eq!(fixture.state(1), State::Pending);
    let twice = fixture.worker(Fixture::settings(), done).on(kind("test"), done);
    let error = twice.run_until(std::future::ready(())).await.unwrap_err();
    assert!(matches!(error, WorkerError::DuplicateHandler(duplicate) if duplicate == kind("test")));
}

#[tokio::test(start_paused = true)]
async fn a_seed_replays_a_run_exactly() {
    let (first, second, other) = (trace(7).await, trace(7).await, trace(8).await);
    assert_eq!(first, second);
    assert_ne!(first, other);
}

/// Returns all calls to the store, with their times, of a worker whose attempts often fail.
async fn trace(seed: u64) -> Vec<(&'static str, Duration, usize)> {
    let policy = redrive_core::policy::presets::standard().with_total_budget(None);
    let fixture = Fixture::with_policy(&policy).await;
    fixture.enqueue_many(50).await;
    fixture.store.fail("settle", 3, unavailable);
    let began = Instant::now();
    let settings = Fixture::settings().with_seed(seed).with_concurrency(8);
    let worker = fixture.start_with(settings, async |cx: Context| {
        tokio::time::sleep(MS * u32::from(cx.job.payload[0])).await;
        if cx.job.attempt < 4 { Outcome::fail("boom") } else { Outcome::Done(None) }
    });
    fixture.wait_until(|fixture| fixture.count_in_state(State::Succeeded) == 50).await;
    worker.stop().await;
    let calls = fixture.store.all_calls();
    calls.into_iter().map(|call| (call.verb, call.at - began, call.items)).collect()
}
