//! What keeps a lease, what ends it, and what becomes of an attempt without one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use redrive_core::store::{ClaimRequest, ReclaimRequest, Store, StoreError};
use redrive_core::{NewJob, Outcome, State, WorkerId};
use redrive_worker::{Context, Pulse, Settings};
use tokio::time::Instant;

use crate::rigged::Call;
use crate::stage::{MS, S, Stage, id, unavailable};

/// Runs until it is dropped, and tells when that happens.
fn endless(
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
            unreachable!("it is pending for ever")
        })
    }
}

async fn done(_: Context) -> Outcome {
    Outcome::Done(None)
}

#[tokio::test(start_paused = true)]
async fn heartbeats_keep_a_long_attempt_alive_in_one_call_for_all() {
    let stage = Stage::new().await;
    stage.enqueue_many(50).await;
    let worker = stage.start(async |_| {
        tokio::time::sleep(300 * S).await;
        Outcome::Done(None)
    });
    stage.when(|stage| stage.in_state(State::Succeeded) == 50).await;
    let summary = worker.stop().await;
    assert_eq!((summary.claimed, summary.reclaimed), (50, 0));
    let beats = stage.store.calls("extend");
    assert!((29..=31).contains(&beats.len()), "{}", beats.len());
    assert!(beats.iter().all(|call| call.items == 50));
}

/// Runs for a minute.
async fn a_minute(_: Context) -> Outcome {
    tokio::time::sleep(60 * S).await;
    Outcome::Done(None)
}

#[tokio::test(start_paused = true)]
async fn each_lease_is_renewed_when_it_is_due_and_a_short_one_hurries_no_other() {
    let stage = Stage::new().await;
    stage.enqueue_many(50).await;
    let settings = Stage::settings().with_concurrency(100);
    let worker = stage.start_with(settings, a_minute);
    stage.when(|stage| stage.in_state(State::Running) == 50).await;
    // The heartbeat sleeps when this one comes.
    tokio::time::sleep(5 * S).await;
    stage.enqueue([NewJob { lease: Some(S), ..stage.new_job(51) }]).await;
    stage.when(|stage| stage.in_state(State::Succeeded) == 51).await;
    let summary = worker.stop().await;
    assert_eq!((summary.claimed, summary.reclaimed, summary.lease_lost), (51, 0, 0));
    let beats = stage.store.calls("extend");
    let (long, short): (Vec<&Call>, Vec<&Call>) = beats.iter().partition(|call| call.items == 50);
    assert!((5..=6).contains(&long.len()), "a third of 30 s in 60 s: {}", long.len());
    assert!(short.iter().all(|call| call.items == 1), "{short:?}");
    assert!((175..=185).contains(&short.len()), "a third of 1 s in 60 s: {}", short.len());
}

#[tokio::test(start_paused = true)]
async fn leases_that_were_taken_one_after_the_other_are_renewed_together() {
    let stage = Stage::new().await;
    let worker = stage.start(a_minute);
    for n in 1..=50 {
        stage.enqueue([stage.new_job(n)]).await;
        tokio::time::sleep(200 * MS).await;
    }
    stage.when(|stage| stage.in_state(State::Succeeded) == 50).await;
    assert_eq!(worker.stop().await.reclaimed, 0);
    let beats = stage.store.calls("extend");
    assert!(beats.len() <= 35, "{} calls in 70 s", beats.len());
    assert!(beats.windows(2).all(|pair| pair[1].at - pair[0].at >= 2 * S), "{beats:?}");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_failed_is_tried_again_soon() {
    let stage = Stage::new().await;
    stage.enqueue_many(1).await;
    let settings = Stage::settings().with_reclaim_every(100_000 * S);
    let worker = stage.start_with(settings, a_minute);
    stage.until(1, State::Running).await;
    tokio::time::sleep(9 * S).await;
    stage.store.fail("extend", usize::MAX, unavailable);
    tokio::time::sleep(18 * S).await;
    stage.store.fail("extend", 0, unavailable);
    let request = ReclaimRequest { kinds: Vec::new(), limit: 1, lease: S, held: Vec::new() };
    // A lease of 30 s is still in force when the store has been away for 18 s of them.
    while stage.state(1) == State::Running {
        assert_eq!(stage.store.model.reclaim(request.clone()).await.unwrap().jobs, []);
        tokio::time::sleep(100 * MS).await;
    }
    assert_eq!(worker.stop().await.succeeded, 1);
}

#[tokio::test(start_paused = true)]
async fn a_result_that_is_not_settled_yet_keeps_its_lease() {
    let stage = Stage::new().await;
    stage.enqueue_many(1).await;
    stage.store.fail("settle", 20, unavailable);
    // The store takes no settlement for 100 s, three times the lease.
    let patient = redrive_core::policy::presets::storage().with_max_attempts(30).unwrap();
    let worker = stage.start_with(Stage::settings().with_storage_retry(patient), done);
    stage.until(1, State::Succeeded).await;
    let summary = worker.stop().await;
    assert_eq!((summary.succeeded, summary.reclaimed, stage.job(1).attempt), (1, 0, 1));
    assert!(!stage.store.calls("extend").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_cancel_aborts_the_attempt_at_the_next_heartbeat() {
    let stage = Stage::new().await;
    stage.enqueue_many(1).await;
    let dropped = Arc::new(AtomicBool::new(false));
    let worker = stage.start(endless(&dropped));
    stage.until(1, State::Running).await;
    stage.store.cancel(vec![id(1)]).await.unwrap();
    let asked = Instant::now();
    stage.until(1, State::Cancelled).await;
    assert!(asked.elapsed() <= 10 * S, "{:?}", asked.elapsed());
    assert!(dropped.load(Ordering::SeqCst));
    assert_eq!(worker.stop().await.cancelled, 1);
}

#[tokio::test(start_paused = true)]
async fn what_a_handler_started_elsewhere_hears_of_the_abort() {
    let stage = Stage::new().await;
    stage.enqueue_many(1).await;
    let heard = Arc::new(AtomicBool::new(false));
    let told = heard.clone();
    let worker = stage.start(move |cx: Context| {
        let told = told.clone();
        tokio::spawn(async move {
            cx.cancelled().await;
            told.store(true, Ordering::SeqCst);
        });
        std::future::pending()
    });
    stage.until(1, State::Running).await;
    worker.crash().await;
    stage.when(|_| heard.load(Ordering::SeqCst)).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_aborts_the_attempt_and_settles_nothing() {
    let stage = Stage::new().await;
    stage.enqueue_many(1).await;
    stage.store.fail("extend", usize::MAX, || StoreError::Failed("partition".into()));
    let dropped = Arc::new(AtomicBool::new(false));
    let settings = Stage::settings().with_reclaim_every(100_000 * S);
    let worker = stage.start_with(settings, endless(&dropped));
    stage.until(1, State::Running).await;
    tokio::time::sleep(35 * S).await;
    let request = ReclaimRequest { kinds: Vec::new(), limit: 10, lease: 100_000 * S, held: Vec::new() };
    assert_eq!(stage.store.reclaim(request).await.unwrap().jobs.len(), 1);
    assert!(!dropped.load(Ordering::SeqCst));
    stage.store.fail("extend", 0, unavailable);
    stage.when(|_| dropped.load(Ordering::SeqCst)).await;
    let summary = worker.stop().await;
    assert_eq!((summary.lease_lost, summary.settled()), (1, 0));
    assert_eq!(
        (stage.state(1), stage.job(1).epoch),
        (State::Running, 2),
        "whoever took it over still has it"
    );
    assert!(stage.store.calls("settle").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_settlement_that_comes_too_late_changes_nothing() {
    let stage = Stage::new().await;
    stage.enqueue_many(1).await;
    stage.store.fail("extend", usize::MAX, || StoreError::Failed("partition".into()));
    let settings = Stage::settings().with_reclaim_every(100_000 * S);
    let worker = stage.start_with(settings, async |_| {
        tokio::time::sleep(40 * S).await;
        Outcome::Done(None)
    });
    tokio::time::sleep(35 * S).await;
    let request = ReclaimRequest { kinds: Vec::new(), limit: 10, lease: 100_000 * S, held: Vec::new() };
    stage.store.reclaim(request).await.unwrap();
    tokio::time::sleep(10 * S).await;
    assert_eq!(worker.stop().await.lease_lost, 1);
    assert_eq!(stage.state(1), State::Running);
}

/// A crash and a reported failure lead to the same row.
#[tokio::test(start_paused = true)]
async fn an_orphan_takes_the_path_of_a_failure_soon_after_a_start() {
    let (failed, orphaned) = (Stage::new().await, Stage::new().await);
    failed.enqueue_many(1).await;
    let worker = failed.start(async |_| Outcome::fail("boom"));
    failed.until(1, State::Retrying).await;
    worker.crash().await;

    orphaned.enqueue_many(1).await;
    let dropped = Arc::new(AtomicBool::new(false));
    let worker = orphaned.start(endless(&dropped));
    orphaned.until(1, State::Running).await;
    worker.crash().await;
    tokio::time::sleep(30 * S).await;
    let started = Instant::now();
    let worker = orphaned.start(endless(&dropped));
    orphaned.until(1, State::Retrying).await;
    assert!(started.elapsed() <= 10 * MS);
    worker.crash().await;

    let (failed, orphan) = (failed.job(1), orphaned.job(1));
    assert_eq!((orphan.attempt, orphan.run, orphan.wait), (failed.attempt, failed.run, failed.wait));
    let log = orphaned.log(1);
    assert_eq!((log.len(), log[0].entry.outcome.as_str()), (1, "lease_expired"));
    assert_eq!(log[0].entry.error.as_deref(), Some("worker lease expired"));
    assert!(log[0].entry.duration >= 30 * S, "{:?}", log[0].entry.duration);
}

#[tokio::test(start_paused = true)]
async fn orphans_run_out_of_attempts_too_and_come_in_any_number() {
    let stage = Stage::with_policy(&redrive_core::policy::presets::once()).await;
    for start in [0, 1_000, 2_000] {
        stage.enqueue((start..start + 1_000).map(|n| stage.new_job(n))).await;
    }
    let worker = WorkerId::new("gone").unwrap();
    for _ in 0..3 {
        let request =
            ClaimRequest { worker: worker.clone(), queues: vec![], kinds: vec![], limit: 1_000, lease: S };
        stage.store.claim(request).await.unwrap();
    }
    tokio::time::sleep(2 * S).await;
    let started = Instant::now();
    let worker = stage.start(done);
    stage.when(|stage| stage.in_state(State::Dead) == 3_000).await;
    assert!(started.elapsed() <= 10 * MS);
    assert_eq!(worker.stop().await.reclaimed, 3_000);
}

#[tokio::test(start_paused = true)]
async fn workers_of_one_process_take_over_nothing_that_they_hold() {
    let stage = Stage::new().await;
    stage.enqueue_many(20).await;
    // No lease is renewed, and each runs out in the middle of its attempt.
    stage.store.fail("extend", usize::MAX, || StoreError::Failed("partition".into()));
    let workers = [(); 2].map(|()| stage.start_with(Stage::settings().with_concurrency(10), a_minute));
    stage.when(|stage| stage.in_state(State::Succeeded) == 20).await;
    for worker in workers {
        let summary = worker.stop().await;
        assert_eq!((summary.succeeded, summary.reclaimed, summary.lease_lost), (10, 0, 0));
    }
    assert!((1..=20).all(|n| (stage.job(n).attempt, stage.job(n).epoch) == (1, 1)));
}

#[tokio::test(start_paused = true)]
async fn what_a_crash_leaves_during_an_outage_is_taken_over_by_another_worker_of_the_process() {
    let stage = Stage::new().await;
    stage.enqueue_many(20).await;
    stage.store.fail("settle", usize::MAX, unavailable);
    let worker = stage.start(done);
    stage.when(|stage| stage.in_state(State::Running) == 20).await;
    tokio::time::sleep(3 * S).await;
    worker.crash().await;
    stage.store.fail("settle", 0, unavailable);
    let worker = stage.start(done);
    stage.when(|stage| stage.in_state(State::Succeeded) == 20).await;
    assert_eq!(worker.stop().await.reclaimed, 20);
}

#[tokio::test(start_paused = true)]
async fn results_that_the_store_never_takes_are_dropped_and_the_job_is_reclaimed() {
    let stage = Stage::new().await;
    stage.enqueue_many(1).await;
    stage.store.fail("settle", 1, || StoreError::Failed("bug".into()));
    let worker = stage.start(done);
    stage.until(1, State::Succeeded).await;
    let summary = worker.stop().await;
    assert_eq!((summary.dropped, summary.reclaimed, summary.succeeded), (1, 1, 1));
    assert_eq!(stage.outcomes(1), ["lease_expired"]);
}

#[tokio::test(start_paused = true)]
async fn one_illegal_settlement_does_not_take_the_others_down() {
    let stage = Stage::new().await;
    stage.enqueue_many(50).await;
    stage.store.forbid(id(17));
    let worker = stage.start(done);
    stage.when(|stage| stage.in_state(State::Succeeded) == 49 && stage.state(17) == State::Dead).await;
    worker.stop().await;
    assert_eq!(
        stage.job(17).last_error.unwrap(),
        "its result cannot be stored: output: is not to its liking"
    );
    assert!(stage.store.calls("settle").len() <= 16);
}

#[tokio::test(start_paused = true)]
async fn nothing_goes_on_after_a_crash() {
    let stage = Stage::new().await;
    stage.enqueue_many(20).await;
    let steps = Arc::new(AtomicUsize::new(0));
    let seen = steps.clone();
    let worker = stage.start_with(Stage::settings().with_concurrency(10), move |_| {
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
    let (before, calls) = (steps.load(Ordering::SeqCst), stage.store.all_calls().len());
    assert!(before > 0);
    tokio::time::sleep(600 * S).await;
    assert_eq!((steps.load(Ordering::SeqCst), stage.store.all_calls().len()), (before, calls));
    assert_eq!(Arc::strong_count(&stage.store), 1);
}

/// The one test in real time: its handlers hold every thread of the runtime for three leases.
#[test]
fn handlers_that_block_every_thread_keep_their_leases() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let lease = Duration::from_millis(600);
    let stage = runtime.block_on(Stage::new());
    runtime.block_on(stage.enqueue_many(4));
    let settings = Settings::default().with_lease(lease).with_reclaim_every(100 * MS);
    assert_eq!(settings.pulse, Pulse::OwnThread);
    let worker = {
        let _entered = runtime.enter();
        stage.start_with(settings, move |_| {
            std::thread::sleep(3 * lease);
            std::future::ready(Outcome::Done(None))
        })
    };
    let other = ReclaimRequest { kinds: Vec::new(), limit: 10, lease, held: Vec::new() };
    let stolen = runtime.block_on(async {
        let mut stolen = 0;
        while stage.in_state(State::Succeeded) < 4 && stolen == 0 {
            tokio::time::sleep(20 * MS).await;
            stolen += stage.store.model.reclaim(other.clone()).await.unwrap().jobs.len();
        }
        stolen
    });
    assert_eq!(stolen, 0);
    let summary = runtime.block_on(worker.stop());
    assert_eq!((summary.succeeded, summary.lease_lost, summary.reclaimed), (4, 0, 0));
}

#[test]
fn the_heartbeat_s_thread_ends_with_the_worker() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stage = runtime.block_on(Stage::new());
    let weak = Arc::downgrade(&stage.store);
    runtime.block_on(async {
        let run = stage.worker(Settings::default(), done).run_until(std::future::pending());
        tokio::select! {
            biased;
            _ = run => panic!("it ended by itself"),
            () = tokio::task::yield_now() => {}
        }
    });
    drop((runtime, stage));
    // Only the thread may still hold the store, and lets go of it at once.
    while weak.strong_count() > 0 {
        std::thread::yield_now();
    }
}
