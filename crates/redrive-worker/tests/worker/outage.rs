//! What becomes of results while the store is down: they wait, with their leases, and nothing runs twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::{ReclaimRequest, Settled, Settlement, Store, StoreError};
use redrive_core::{Job, NewJob, Outcome, State};
use redrive_worker::{Context, Handler, Settler};
use tokio::time::Instant;

use crate::rigged::{Fault, Rigged};
use crate::stage::{MS, S, Stage, id, kind, unavailable};

/// What a worker calls while it has work.
const VERBS: [&str; 6] = ["claim", "settle", "extend", "reclaim", "prune", "sweep"];

fn go_down(store: &Rigged, fault: Fault) {
    VERBS.into_iter().for_each(|verb| store.fail(verb, usize::MAX, fault));
}

fn come_back(store: &Rigged) {
    VERBS.into_iter().for_each(|verb| store.fail(verb, 0, unavailable));
}

/// Counts its runs, each of which takes a second.
fn counted(runs: &Arc<AtomicUsize>) -> impl Handler + use<> {
    let runs = runs.clone();
    move |_: Context| {
        runs.fetch_add(1, Ordering::SeqCst);
        async {
            tokio::time::sleep(S).await;
            Outcome::Done(None)
        }
    }
}

#[tokio::test(start_paused = true)]
async fn results_wait_for_the_store_and_are_settled_under_the_same_lease() {
    let faults: [Fault; 4] = [
        unavailable,
        || StoreError::Busy("a lock".into()),
        || StoreError::Full("disk".into()),
        || StoreError::Refused("wrong password".into()),
    ];
    // Within the lease, and beyond it.
    for (fault, outage) in faults.into_iter().flat_map(|fault| [(fault, 20 * S), (fault, 90 * S)]) {
        let stage = Stage::new().await;
        stage.enqueue_many(50).await;
        let runs = Arc::new(AtomicUsize::new(0));
        let worker = stage.start(counted(&runs));
        stage.when(|stage| stage.in_state(State::Running) == 50).await;
        go_down(&stage.store, fault);
        tokio::time::sleep(outage).await;
        assert_eq!(stage.in_state(State::Running), 50);
        come_back(&stage.store);
        let back = Instant::now();
        stage.when(|stage| stage.in_state(State::Succeeded) == 50).await;
        assert!(back.elapsed() <= 6 * S, "{:?}", back.elapsed());
        let summary = worker.stop().await;
        assert_eq!(
            (summary.succeeded, summary.dropped, summary.lease_lost, summary.reclaimed),
            (50, 0, 0, 0)
        );
        assert_eq!(runs.load(Ordering::SeqCst), 50);
        assert!((1..=50).all(|n| (stage.job(n).epoch, stage.job(n).attempt) == (1, 1)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_is_not_hammered() {
    let stage = Stage::new().await;
    stage.enqueue_many(50).await;
    let worker = stage.start(counted(&Arc::default()));
    stage.when(|stage| stage.in_state(State::Running) == 50).await;
    go_down(&stage.store, unavailable);
    tokio::time::sleep(600 * S).await;
    let calls = stage.store.calls("settle").len();
    assert!((100..=160).contains(&calls), "one call in 5 s, {calls} in 600 s");
    come_back(&stage.store);
    stage.when(|stage| stage.in_state(State::Succeeded) == 50).await;
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_lost_during_the_outage_is_reported_as_lost() {
    let stage = Stage::new().await;
    stage.enqueue_many(2).await;
    let worker = stage.start(counted(&Arc::default()));
    stage.until(2, State::Running).await;
    go_down(&stage.store, unavailable);
    tokio::time::sleep(35 * S).await;
    let request = ReclaimRequest { kinds: Vec::new(), limit: 1, lease: 1_000 * S, held: Vec::new() };
    assert_eq!(stage.store.model.reclaim(request).await.unwrap().jobs.len(), 1);
    come_back(&stage.store);
    stage.until(2, State::Succeeded).await;
    let summary = worker.stop().await;
    assert_eq!((summary.succeeded, summary.lease_lost, summary.dropped), (1, 1, 0));
    assert_eq!(
        (stage.state(1), stage.job(1).epoch),
        (State::Running, 2),
        "whoever took it over still has it"
    );
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_during_an_outage_ends_in_time_and_settles_what_it_can() {
    for (back_after, settled) in [(None, 0), (Some(10 * S), 50)] {
        let stage = Stage::new().await;
        stage.enqueue_many(50).await;
        let worker = stage.start(counted(&Arc::default()));
        stage.when(|stage| stage.in_state(State::Running) == 50).await;
        go_down(&stage.store, unavailable);
        tokio::time::sleep(5 * S).await;
        let asked = Instant::now();
        let store = stage.store.clone();
        if let Some(after) = back_after {
            tokio::spawn(async move {
                tokio::time::sleep(after).await;
                come_back(&store);
            });
        }
        let summary = worker.stop().await;
        assert!(asked.elapsed() <= 32 * S, "{:?}", asked.elapsed());
        assert_eq!((summary.succeeded, summary.dropped), (settled, 50 - settled));
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_stops_claims_before_results_pile_up() {
    const JOBS: usize = 8_000;
    let stage = Stage::new().await;
    for batch in (0..JOBS as u128).collect::<Vec<_>>().chunks(BATCH_ITEMS_MAX) {
        stage.enqueue(batch.iter().map(|n| stage.new_job(*n))).await;
    }
    stage.store.fail("settle", usize::MAX, unavailable);
    let runs = Arc::new(AtomicUsize::new(0));
    let settings = Stage::settings().with_concurrency(500);
    let worker = stage.start_with(settings, counted(&runs));
    tokio::time::sleep(120 * S).await;
    let running = stage.in_state(State::Running);
    // A batch on its way, the backlog, the lane and the slots.
    assert!(running <= 5 * BATCH_ITEMS_MAX + 500, "{running}");
    stage.store.fail("settle", 0, unavailable);
    stage.when(|stage| stage.in_state(State::Succeeded) == JOBS).await;
    assert_eq!((worker.stop().await.reclaimed, runs.load(Ordering::SeqCst)), (0, JOBS));
}

#[tokio::test(start_paused = true)]
async fn a_row_that_cannot_be_settled_now_does_not_hold_up_the_others() {
    let stage = Stage::new().await;
    stage.enqueue_many(50).await;
    stage.store.lock_row(id(17));
    let worker = stage.start(counted(&Arc::default()));
    let began = Instant::now();
    stage.when(|stage| stage.in_state(State::Succeeded) == 49).await;
    assert!(began.elapsed() <= 30 * S, "{:?}", began.elapsed());
    // New results are not held up either.
    stage.enqueue([stage.new_job(51)]).await;
    let began = Instant::now();
    stage.until(51, State::Succeeded).await;
    assert!(began.elapsed() <= 2 * S, "{:?}", began.elapsed());
    tokio::time::sleep(300 * S).await;
    stage.store.unlock_row(id(17));
    stage.until(17, State::Succeeded).await;
    assert_eq!((worker.stop().await.reclaimed, stage.job(17).epoch), (0, 1));
}

/// Settles through something that is down, and counts how often it was asked.
struct OwnEnd {
    asked: Arc<AtomicUsize>,
}

#[async_trait]
impl Handler for OwnEnd {
    async fn run(&self, _: Context) -> Outcome {
        Outcome::Done(None)
    }

    fn settler(&self) -> Option<&dyn Settler> {
        Some(self)
    }
}

#[async_trait]
impl Settler for OwnEnd {
    async fn settle(&self, _: &[Arc<Job>], _: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        Err(unavailable())
    }
}

#[tokio::test(start_paused = true)]
async fn a_settler_that_fails_does_not_hold_up_other_kinds() {
    let stage = Stage::new().await;
    stage.enqueue((1..=200).map(|n| NewJob { kind: kind("own"), ..stage.new_job(n) })).await;
    stage.enqueue((201..=210).map(|n| stage.new_job(n))).await;
    let asked = Arc::new(AtomicUsize::new(0));
    let settings = Stage::settings().with_concurrency(300).with_drain(S);
    let worker = stage
        .worker(settings, async |_: Context| Outcome::Done(None))
        .on(kind("own"), OwnEnd { asked: asked.clone() });
    let began = Instant::now();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(worker.run_until(async {
        let _ = stopped.await;
    }));
    stage.when(|stage| stage.in_state(State::Succeeded) == 10).await;
    assert!(began.elapsed() <= 50 * MS, "{:?}", began.elapsed());
    tokio::time::sleep(60 * S).await;
    assert!((5..=40).contains(&asked.load(Ordering::SeqCst)), "{asked:?}");
    assert_eq!(stage.in_state(State::Running), 200, "their leases are kept");
    drop(stop);
    assert_eq!(running.await.unwrap().unwrap().dropped, 200);
}
