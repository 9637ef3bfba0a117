//! Leases: how they are renewed, what ends them, and what happens to an attempt that has lost its lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use redrive_core::store::{ClaimRequest, ReclaimRequest, Store, StoreError};
use redrive_core::{NewJob, Outcome, State, WorkerId};
use redrive_worker::{Context, HeartbeatSource, Settings};
use tokio::time::Instant;

use crate::faulty_store::Call;
use crate::fixture::{Fixture, MS, S, id, unavailable};

/// Returns a handler that runs until it is dropped, and then sets `dropped`.
fn run_until_dropped(
    dropped: &Arc<AtomicBool>,
) -> impl Fn(Context) -> std::pin::Pin<Box<dyn Future<Output = Outcome> + Send>> + use<> {
    struct Flag(Arc<AtomicBool>);
    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let dropped = dropped.clone();
    move |_| {
        let flag = Flag(dropped.clone());
        Box::pin(async move {
            let _flag = flag;
            std::future::pending::<()>().await;
            unreachable!("a pending future never returns")
        })
    }
}

async fn done(_: Context) -> Outcome {
    Outcome::Done(None)
}

#[tokio::test(start_paused = true)]
async fn one_heartbeat_call_renews_the_leases_of_all_long_attempts() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(50).await;
    let worker = fixture.start(async |_| {
        tokio::time::sleep(300 * S).await;
        Outcome::Done(None)
    });
    fixture.wait_until(|fixture| fixture.count_in_state(State::Succeeded) == 50).await;
    let summary = worker.stop().await;
    assert_eq!((summary.claimed, summary.reclaimed), (50, 0));
    let renewals = fixture.store.calls("extend");
    assert!((29..=31).contains(&renewals.len()), "{}", renewals.len());
    assert!(renewals.iter().all(|call| call.items == 50));
}

/// Runs for a minute.
async fn a_minute(_: Context) -> Outcome {
    tokio::time::sleep(60 * S).await;
    Outcome::Done(None)
}

#[tokio::test(start_paused = true)]
async fn a_short_lease_is_renewed_more_often_than_the_others() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(50).await;
    let settings = Fixture::settings().with_concurrency(100);
    let worker = fixture.start_with(settings, a_minute);
    fixture.wait_until(|fixture| fixture.count_in_state(State::Running) == 50).await;
    // The heartbeat is asleep when this job is claimed.
    tokio::time::sleep(5 * S).await;
    fixture.enqueue([NewJob { lease: Some(S), ..fixture.new_job(51) }]).await;
    fixture.wait_until(|fixture| fixture.count_in_state(State::Succeeded) == 51).await;
    let summary = worker.stop().await;
    assert_eq!((summary.claimed, summary.reclaimed, summary.lease_lost), (51, 0, 0));
    let renewals = fixture.store.calls("extend");
    let (long, short): (Vec<&Call>, Vec<&Call>) = renewals.iter().partition(|call| call.items == 50);
    assert!((5..=6).contains(&long.len()), "a third of 30 s in 60 s: {}", long.len());
    assert!(short.iter().all(|call| call.items == 1), "{short:?}");
    assert!((175..=185).contains(&short.len()), "a third of 1 s in 60 s: {}", short.len());
}

#[tokio::test(start_paused = true)]
async fn leases_that_were_claimed_one_after_the_other_are_renewed_together() {
    let fixture = Fixture::new().await;
    let worker = fixture.start(a_minute);
    for n in 1..=50 {
        fixture.enqueue([fixture.new_job(n)]).await;
        tokio::time::sleep(200 * MS).await;
    }
    fixture.wait_until(|fixture| fixture.count_in_state(State::Succeeded) == 50).await;
    assert_eq!(worker.stop().await.reclaimed, 0);
    let renewals = fixture.store.calls("extend");
    assert!(renewals.len() <= 35, "{} calls in 70 s", renewals.len());
    assert!(renewals.windows(2).all(|pair| pair[1].at - pair[0].at >= 2 * S), "{renewals:?}");
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_is_retried_before_the_lease_runs_out() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(1).await;
    let settings = Fixture::settings().with_reclaim_every(100_000 * S);
    let worker = fixture.start_with(settings, a_minute);
    fixture.wait_for_state(1, State::Running).await;
    tokio::time::sleep(9 * S).await;
    fixture.store.fail("extend", usize::MAX, unavailable);
    tokio::time::sleep(18 * S).await;
    fixture.store.fail("extend", 0, unavailable);
    let request = ReclaimRequest { kinds: Vec::new(), limit: 1, lease: S, held: Vec::new() };
    // A lease of 30 s survives an outage of 18 s.
    while fixture.state(1) == State::Running {
        assert_eq!(fixture.store.model.reclaim(request.clone()).await.unwrap().jobs, []);
        tokio::time::sleep(100 * MS).await;
    }
    assert_eq!(worker.stop().await.succeeded, 1);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_whose_settlement_is_retried_keeps_its_lease() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(1).await;
    fixture.store.fail("settle", 20, unavailable);
    // Settlements fail for 100 s, three times the lease.
    let many_retries = redrive_core::policy::presets::storage().with_max_attempts(30).unwrap();
    let worker = fixture.start_with(Fixture::settings().with_storage_retry(many_retries), done);
    fixture.wait_for_state(1, State::Succeeded).await;
    let summary = worker.stop().await;
    assert_eq!((summary.succeeded, summary.reclaimed, fixture.job(1).attempt), (1, 0, 1));
    assert!(!fixture.store.calls("extend").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_cancel_aborts_the_attempt_at_the_next_heartbeat() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(1).await;
    let dropped = Arc::new(AtomicBool::new(false));
    let worker = fixture.start(run_until_dropped(&dropped));
    fixture.wait_for_state(1, State::Running).await;
    fixture.store.cancel(vec![id(1)]).await.unwrap();
    let requested = Instant::now();
    fixture.wait_for_state(1, State::Cancelled).await;
    assert!(requested.elapsed() <= 10 * S, "{:?}", requested.elapsed());
    assert!(dropped.load(Ordering::SeqCst));
    assert_eq!(worker.stop().await.cancelled, 1);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_a_handler_started_sees_the_abort() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(1).await;
    let aborted = Arc::new(AtomicBool::new(false));
    let seen = aborted.clone();
    let worker = fixture.start(move |cx: Context| {
        let seen = seen.clone();
        tokio::spawn(async move {
            cx.cancelled().await;
            seen.store(true, Ordering::SeqCst);
        });
        std::future::pending()
    });
    fixture.wait_for_state(1, State::Running).await;
    worker.crash().await;
    fixture.wait_until(|_| aborted.load(Ordering::SeqCst)).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_aborts_the_attempt_and_settles_nothing() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(1).await;
    fixture.store.fail("extend", usize::MAX, || StoreError::Failed("partition".into()));
    let dropped = Arc::new(AtomicBool::new(false));
    let settings = Fixture::settings().with_reclaim_every(100_000 * S);
    let worker = fixture.start_with(settings, run_until_dropped(&dropped));
    fixture.wait_for_state(1, State::Running).await;
    tokio::time::sleep(35 * S).await;
    let request = ReclaimRequest { kinds: Vec::new(), limit: 10, lease: 100_000 * S, held: Vec::new() };
    assert_eq!(fixture.store.reclaim(request).await.unwrap().jobs.len(), 1);
    assert!(!dropped.load(Ordering::SeqCst));
    fixture.store.fail("extend", 0, unavailable);
    fixture.wait_until(|_| dropped.load(Ordering::SeqCst)).await;
    let summary = worker.stop().await;
    assert_eq!((summary.lease_lost, summary.settled()), (1, 0));
    assert_eq!(
        (fixture.state(1), fixture.job(1).epoch),
        (State::Running, 2),
        "the job still belongs to the worker that reclaimed it"
    );
    assert!(fixture.store.calls("settle").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_settlement_that_comes_too_late_changes_nothing() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(1).await;
    fixture.store.fail("extend", usize::MAX, || StoreError::Failed("partition".into()));
    let settings = Fixture::settings().with_reclaim_every(100_000 * S);
    let worker = fixture.start_with(settings, async |_| {
        tokio::time::sleep(40 * S).await;
        Outcome::Done(None)
    });
    tokio::time::sleep(35 * S).await;
    let request = ReclaimRequest { kinds: Vec::new(), limit: 10, lease: 100_000 * S, held: Vec::new() };
    fixture.store.reclaim(request).await.unwrap();
    tokio::time::sleep(10 * S).await;
    assert_eq!(worker.stop().await.lease_lost, 1);
    assert_eq!(fixture.state(1), State::Running);
}

/// A crash and a failed attempt lead to the same row.
#[tokio::test(start_paused = true)]
async fn a_worker_that_starts_reclaims_a_crashed_job_as_a_failed_attempt() {
    let (failed, crashed) = (Fixture::new().await, Fixture::new().await);
    failed.enqueue_many(1).await;
    let worker = failed.start(async |_| Outcome::fail("boom"));
    failed.wait_for_state(1, State::Retrying).await;
    worker.crash().await;

    crashed.enqueue_many(1).await;
    let dropped = Arc::new(AtomicBool::new(false));
    let worker = crashed.start(run_until_dropped(&dropped));
    crashed.wait_for_state(1, State::Running).await;
    worker.crash().await;
    tokio::time::sleep(30 * S).await;
    let started = Instant::now();
    let worker = crashed.start(run_until_dropped(&dropped));
    crashed.wait_for_state(1, State::Retrying).await;
    assert!(started.elapsed() <= 10 * MS);
    worker.crash().await;

    let (failed, reclaimed) = (failed.job(1), crashed.job(1));
    assert_eq!((reclaimed.attempt, reclaimed.run, reclaimed.wait), (failed.attempt, failed.run, failed.wait));
    let log = crashed.log(1);
    assert_eq!((log.len(), log[0].entry.outcome.as_str()), (1, "lease_expired"));
    assert_eq!(log[0].entry.error.as_deref(), Some("worker lease expired"));
    assert!(log[0].entry.duration >= 30 * S, "{:?}", log[0].entry.duration);
}

#[tokio::test(start_paused = true)]
async fn thousands_of_jobs_without_attempts_left_are_reclaimed_as_dead() {
    let fixture = Fixture::with_policy(&redrive_core::policy::presets::once()).await;
    for start in [0, 1_000, 2_000] {
        fixture.enqueue((start..start + 1_000).map(|n| fixture.new_job(n))).await;
    }
    let worker = WorkerId::new("gone").unwrap();
    for _ in 0..3 {
        let request =
            ClaimRequest { worker: worker.clone(), queues: vec![], kinds: vec![], limit: 1_000, lease: S };
        fixture.store.claim(request).await.unwrap();
    }
    tokio::time::sleep(2 * S).await;
    let started = Instant::now();
    let worker = fixture.start(done);
    fixture.wait_until(|fixture| fixture.count_in_state(State::Dead) == 3_000).await;
    assert!(started.elapsed() <= 10 * MS);
    assert_eq!(worker.stop().await.reclaimed, 3_000);
}

#[tokio::test(start_paused = true)]
async fn workers_of_one_process_do_not_reclaim_jobs_from_each_other() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(20).await;
    // No lease is renewed, and each runs out during its attempt.
    fixture.store.fail("extend", usize::MAX, || StoreError::Failed("partition".into()));
    let workers = [(); 2].map(|()| fixture.start_with(Fixture::settings().with_concurrency(10), a_minute));
    fixture.wait_until(|fixture| fixture.count_in_state(State::Succeeded) == 20).await;
    for worker in workers {
        let summary = worker.stop().await;
        assert_eq!((summary.succeeded, summary.reclaimed, summary.lease_lost), (10, 0, 0));
    }
    assert!((1..=20).all(|n| (fixture.job(n).attempt, fixture.job(n).epoch) == (1, 1)));
}

#[tokio::test(start_paused = true)]
async fn jobs_of_a_worker_that_crashed_in_an_outage_are_reclaimed_by_another_of_the_process() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(20).await;
    fixture.store.fail("settle", usize::MAX, unavailable);
    let worker = fixture.start(done);
    fixture.wait_until(|fixture| fixture.count_in_state(State::Running) == 20).await;
    tokio::time::sleep(3 * S).await;
    worker.crash().await;
    fixture.store.fail("settle", 0, unavailable);
    let worker = fixture.start(done);
    fixture.wait_until(|fixture| fixture.count_in_state(State::Succeeded) == 20).await;
    assert_eq!(worker.stop().await.reclaimed, 20);
}

#[tokio::test(start_paused = true)]
async fn a_settlement_that_fails_for_good_is_dropped_and_its_job_is_reclaimed() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(1).await;
    fixture.store.fail("settle", 1, || StoreError::Failed("bug".into()));
    let worker = fixture.start(done);
    fixture.wait_for_state(1, State::Succeeded).await;
    let summary = worker.stop().await;
    assert_eq!((summary.dropped, summary.reclaimed, summary.succeeded), (1, 1, 1));
    assert_eq!(fixture.outcomes(1), ["lease_expired"]);
}

#[tokio::test(start_paused = true)]
async fn one_invalid_settlement_does_not_fail_the_others() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(50).await;
    fixture.store.reject_completion(id(17));
    let worker = fixture.start(done);
    fixture
        .wait_until(|fixture| {
            fixture.count_in_state(State::Succeeded) == 49 && fixture.state(17) == State::Dead
        })
        .await;
    worker.stop().await;
    assert_eq!(fixture.job(17).last_error.unwrap(), "its result cannot be stored: output: is not accepted");
    assert!(fixture.store.calls("settle").len() <= 16);
}

#[tokio::test(start_paused = true)]
async fn nothing_runs_after_a_crash() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(20).await;
    let steps = Arc::new(AtomicUsize::new(0));
    let seen = steps.clone();
    let worker = fixture.start_with(Fixture::settings().with_concurrency(10), move |_| {
        let steps = seen.clone();
        async move {
            loop {
                steps.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(10 * MS).await;
            }
        }
    });
    tokio::time::sleep(25 * S).await;
    worker.crash().await;
    let (before, calls) = (steps.load(Ordering::SeqCst), fixture.store.all_calls().len());
    assert!(before > 0);
    tokio::time::sleep(600 * S).await;
    assert_eq!((steps.load(Ordering::SeqCst), fixture.store.all_calls().len()), (before, calls));
    assert_eq!(Arc::strong_count(&fixture.store), 1);
}

#[test]
fn the_heartbeat_thread_ends_with_the_worker() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let fixture = runtime.block_on(Fixture::new());
    let weak = Arc::downgrade(&fixture.store);
    runtime.block_on(async {
        let run = fixture.worker(Settings::default(), done).run_until(std::future::pending());
        tokio::select! {
            biased;
            _ = run => panic!("the worker ended by itself"),
            () = tokio::task::yield_now() => {}
        }
    });
    drop((runtime, fixture));
    // Only the heartbeat thread may still own the store, and it ends at once.
    while weak.strong_count() > 0 {
        std::thread::yield_now();
    }
}

/// Tests in real time, which a busy machine could delay beyond a lease.
mod quiet {
    use super::*;

    /// The handlers block every thread of the runtime for three leases.
    #[test]
    fn handlers_that_block_every_thread_keep_their_leases() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let lease = Duration::from_millis(600);
        let fixture = runtime.block_on(Fixture::new());
        runtime.block_on(fixture.enqueue_many(4));
        let settings = Settings::default().with_lease(lease).with_reclaim_every(100 * MS);
        assert_eq!(settings.heartbeat_source, HeartbeatSource::OwnThread);
        let worker = {
            let _entered = runtime.enter();
            fixture.start_with(settings, move |_| {
                std::thread::sleep(3 * lease);
                std::future::ready(Outcome::Done(None))
            })
        };
        let other = ReclaimRequest { kinds: Vec::new(), limit: 10, lease, held: Vec::new() };
        let reclaimed = runtime.block_on(async {
            let mut reclaimed = 0;
            while fixture.count_in_state(State::Succeeded) < 4 && reclaimed == 0 {
                tokio::time::sleep(20 * MS).await;
                reclaimed += fixture.store.model.reclaim(other.clone()).await.unwrap().jobs.len();
            }
            reclaimed
        });
        assert_eq!(reclaimed, 0);
        let summary = runtime.block_on(worker.stop());
        assert_eq!((summary.succeeded, summary.lease_lost, summary.reclaimed), (4, 0, 0));
    }
}
