//! Outages of the store: settlements wait and keep their leases, and no job runs twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::{ReclaimRequest, SettleResult, Settlement, Store, StoreError};
use redrive_core::{Job, NewJob, Outcome, State};
use redrive_worker::{Context, Handler, Settler};
use tokio::time::Instant;

use crate::faulty_store::{Fault, FaultyStore};
use crate::fixture::{Fixture, MS, S, id, kind, unavailable};

/// The calls of a busy worker.
const VERBS: [&str; 6] = ["claim", "settle", "extend", "reclaim", "prune", "sweep"];

fn go_down(store: &FaultyStore, fault: Fault) {
    VERBS.into_iter().for_each(|verb| store.fail(verb, usize::MAX, fault));
}

fn come_back(store: &FaultyStore) {
    VERBS.into_iter().for_each(|verb| store.fail(verb, 0, unavailable));
}

/// Returns a handler that counts its calls, each of which takes a second.
fn counting(runs: &Arc<AtomicUsize>) -> impl Handler + use<> {
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
    // Shorter than the lease, and longer.
    for (fault, outage) in faults.into_iter().flat_map(|fault| [(fault, 20 * S), (fault, 90 * S)]) {
        let fixture = Fixture::new().await;
        fixture.enqueue_many(50).await;
        let runs = Arc::new(AtomicUsize::new(0));
        let worker = fixture.start(counting(&runs));
        fixture.wait_until(|fixture| fixture.count_in_state(State::Running) == 50).await;
        go_down(&fixture.store, fault);
        tokio::time::sleep(outage).await;
        assert_eq!(fixture.count_in_state(State::Running), 50);
        come_back(&fixture.store);
        let back = Instant::now();
        fixture.wait_until(|fixture| fixture.count_in_state(State::Succeeded) == 50).await;
        assert!(back.elapsed() <= 6 * S, "{:?}", back.elapsed());
        let summary = worker.stop().await;
        assert_eq!(
            (summary.succeeded, summary.dropped, summary.lease_lost, summary.reclaimed),
            (50, 0, 0, 0)
        );
        assert_eq!(runs.load(Ordering::SeqCst), 50);
        assert!((1..=50).all(|n| (fixture.job(n).epoch, fixture.job(n).attempt) == (1, 1)));
    }
}

#[tokio::test(start_paused = true)]
async fn settlements_are_retried_every_five_seconds_while_the_store_is_down() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(50).await;
    let worker = fixture.start(counting(&Arc::default()));
    fixture.wait_until(|fixture| fixture.count_in_state(State::Running) == 50).await;
    go_down(&fixture.store, unavailable);
    tokio::time::sleep(600 * S).await;
    let calls = fixture.store.calls("settle").len();
    assert!((100..=160).contains(&calls), "one call in 5 s, {calls} in 600 s");
    come_back(&fixture.store);
    fixture.wait_until(|fixture| fixture.count_in_state(State::Succeeded) == 50).await;
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_lost_during_the_outage_is_reported_as_lost() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(2).await;
    let worker = fixture.start(counting(&Arc::default()));
    fixture.wait_for_state(2, State::Running).await;
    go_down(&fixture.store, unavailable);
    tokio::time::sleep(35 * S).await;
    let request = ReclaimRequest { kinds: Vec::new(), limit: 1, lease: 1_000 * S, held: Vec::new() };
    assert_eq!(fixture.store.model.reclaim(request).await.unwrap().jobs.len(), 1);
    come_back(&fixture.store);
    fixture.wait_for_state(2, State::Succeeded).await;
    let summary = worker.stop().await;
    assert_eq!((summary.succeeded, summary.lease_lost, summary.dropped), (1, 1, 0));
    assert_eq!(
        (fixture.state(1), fixture.job(1).epoch),
        (State::Running, 2),
        "the job still belongs to the worker that reclaimed it"
    );
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_during_an_outage_ends_in_time_and_settles_what_it_can() {
    for (back_after, settled) in [(None, 0), (Some(10 * S), 50)] {
        let fixture = Fixture::new().await;
        fixture.enqueue_many(50).await;
        let worker = fixture.start(counting(&Arc::default()));
        fixture.wait_until(|fixture| fixture.count_in_state(State::Running) == 50).await;
        go_down(&fixture.store, unavailable);
        tokio::time::sleep(5 * S).await;
        let requested = Instant::now();
        let store = fixture.store.clone();
        if let Some(after) = back_after {
            tokio::spawn(async move {
                tokio::time::sleep(after).await;
                come_back(&store);
            });
        }
        let summary = worker.stop().await;
        assert!(requested.elapsed() <= 32 * S, "{:?}", requested.elapsed());
        assert_eq!((summary.succeeded, summary.dropped), (settled, 50 - settled));
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_stops_claims_once_the_backlog_is_full() {
    const JOBS: usize = 8_000;
    let fixture = Fixture::new().await;
    for batch in (0..JOBS as u128).collect::<Vec<_>>().chunks(BATCH_ITEMS_MAX) {
        fixture.enqueue(batch.iter().map(|n| fixture.new_job(*n))).await;
    }
    fixture.store.fail("settle", usize::MAX, unavailable);
    let runs = Arc::new(AtomicUsize::new(0));
    let settings = Fixture::settings().with_concurrency(500);
    let worker = fixture.start_with(settings, counting(&runs));
    tokio::time::sleep(120 * S).await;
    let running = fixture.count_in_state(State::Running);
    // The batch being written, the backlog, the queue of the writer, and the slots.
    assert!(running <= 5 * BATCH_ITEMS_MAX + 500, "{running}");
    fixture.store.fail("settle", 0, unavailable);
    fixture.wait_until(|fixture| fixture.count_in_state(State::Succeeded) == JOBS).await;
    assert_eq!((worker.stop().await.reclaimed, runs.load(Ordering::SeqCst)), (0, JOBS));
}

#[tokio::test(start_paused = true)]
async fn a_locked_row_does_not_delay_the_other_settlements() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(50).await;
    fixture.store.lock_row(id(17));
    let worker = fixture.start(counting(&Arc::default()));
    let began = Instant::now();
    fixture.wait_until(|fixture| fixture.count_in_state(State::Succeeded) == 49).await;
    assert!(began.elapsed() <= 30 * S, "{:?}", began.elapsed());
    // New settlements are not delayed either.
    fixture.enqueue([fixture.new_job(51)]).await;
    let began = Instant::now();
    fixture.wait_for_state(51, State::Succeeded).await;
    assert!(began.elapsed() <= 2 * S, "{:?}", began.elapsed());
    tokio::time::sleep(300 * S).await;
    fixture.store.unlock_row(id(17));
    fixture.wait_for_state(17, State::Succeeded).await;
    assert_eq!((worker.stop().await.reclaimed, fixture.job(17).epoch), (0, 1));
}

/// A handler whose settler always fails, and counts its calls.
struct FailingSettler {
    calls: Arc<AtomicUsize>,
}

#[async_trait]
impl Handler for FailingSettler {
    async fn run(&self, _: Context) -> Outcome {
        Outcome::Done(None)
    }

    fn settler(&self) -> Option<&dyn Settler> {
        Some(self)
    }
}

#[async_trait]
impl Settler for FailingSettler {
    async fn settle(&self, _: &[Arc<Job>], _: &[Settlement]) -> Result<Vec<SettleResult>, StoreError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        Err(unavailable())
    }
}

#[tokio::test(start_paused = true)]
async fn a_failing_settler_does_not_delay_other_kinds() {
    let fixture = Fixture::new().await;
    fixture.enqueue((1..=200).map(|n| NewJob { kind: kind("own"), ..fixture.new_job(n) })).await;
    fixture.enqueue((201..=210).map(|n| fixture.new_job(n))).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let settings = Fixture::settings().with_concurrency(300).with_drain(S);
    let worker = fixture
        .worker(settings, async |_: Context| Outcome::Done(None))
        .on(kind("own"), FailingSettler { calls: calls.clone() });
    let began = Instant::now();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(worker.run_until(async {
        let _ = stopped.await;
    }));
    fixture.wait_until(|fixture| fixture.count_in_state(State::Succeeded) == 10).await;
    assert!(began.elapsed() <= 50 * MS, "{:?}", began.elapsed());
    tokio::time::sleep(60 * S).await;
    assert!((5..=40).contains(&calls.load(Ordering::SeqCst)), "{calls:?}");
    assert_eq!(fixture.count_in_state(State::Running), 200, "their leases are kept");
    drop(stop);
    assert_eq!(running.await.unwrap().unwrap().dropped, 200);
}
