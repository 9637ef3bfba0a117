//! Settlements that fail because of a lock or deadlock with another session, and succeed after a retry.

use std::sync::Arc;
use std::time::Instant;

use redrive_core::store::{ClaimRequest, SettleResult, Settlement};
use redrive_core::{Job, JobId, NewJob, State, Store, StoreError, WorkerId};
use redrive_testkit::RecordingStore;
use redrive_testkit::history::HistoryEvent;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use super::fixture::{self, Fixture, TIMEOUT};
use super::node::default_settings;
use crate::workload;

/// How many statements of nodes wait for a lock.
const WAITING: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'redrive' AND wait_event_type = 'Lock'";

/// First a settlement without a worker, to check its error, then one by a worker.
pub(crate) fn settlements_survive_a_deadlock() {
    runtime().block_on(async {
        let fixture = Fixture::open(&[]).await;
        let (store, _) = fixture.local("bare").await;
        let jobs = claim_two_jobs(&store).await;
        let session = lock_claim(&fixture, jobs[1].id).await;
        let (error, ()) =
            tokio::join!(store.settle(settlements(&jobs)), cause_deadlock(&fixture, &session, jobs[0].id));
        assert!(matches!(error, Err(StoreError::Busy(_))), "{error:?}");
        assert_eq!(deadlocks(&fixture), 1);
        let settled = store.settle(settlements(&jobs)).await.expect("no lock blocks the settlement");
        assert_eq!(settled, [SettleResult::Applied(State::Succeeded); 2]);

        let worked = work_on(&fixture, async |[first, second]| {
            let session = lock_claim(&fixture, second).await;
            cause_deadlock(&fixture, &session, first).await;
        });
        worked.await;
        assert_eq!(deadlocks(&fixture), 2, "the worker had no deadlock");
    });
}

/// The same with a lock timeout, as an operator sets it for a role.
pub(crate) fn settlements_survive_a_lock_timeout() {
    runtime().block_on(async {
        for (limit, message) in [
            ("lock_timeout", "canceling statement due to lock timeout"),
            ("statement_timeout", "canceling statement due to statement timeout"),
        ] {
            let fixture = Fixture::open(&[]).await;
            fixture.server.run(&format!("ALTER ROLE redrive SET {limit} = '300ms'"));
            let seen = || fixture.server.log().matches(message).count();
            let (store, _) = fixture.local("bare").await;
            let jobs = claim_two_jobs(&store).await;
            let session = lock_claim(&fixture, jobs[0].id).await;
            let error = store.settle(settlements(&jobs)).await.expect_err("the lock blocks the settlement");
            assert!(matches!(error, StoreError::Busy(_)), "{error:?}");
            assert_eq!(seen(), 1, "{limit}");
            session.batch_execute("COMMIT").await.expect("released");
            store.settle(settlements(&jobs)).await.expect("no lock blocks the settlement");

            let worked = work_on(&fixture, async |[first, _]| {
                let session = lock_claim(&fixture, first).await;
                let began = Instant::now();
                while seen() < 2 {
                    assert!(began.elapsed() < TIMEOUT, "the worker had no {limit}");
                    tokio::task::yield_now().await;
                }
                session.batch_execute("COMMIT").await.expect("released");
            });
            worked.await;
        }
    });
}

/// Lets a worker run two jobs that end at the same moment, and calls `disturb` before that moment, with the jobs in the order in
/// which a settlement locks their claims. Each must have ended with its first attempt.
async fn work_on(fixture: &Fixture, disturb: impl AsyncFnOnce([JobId; 2])) {
    let (store, history) = fixture.local("worker").await;
    let policy = fixture::policy(&store).await;
    let [first, second] = [(); 2].map(|()| workload::job(&policy, "take 700"));
    // Jobs with different leases are in different claims.
    let jobs = [first, NewJob { lease: Some(2 * TIMEOUT), ..second }];
    let ids = [jobs[0].id, jobs[1].id];
    store.enqueue(jobs.to_vec()).await.expect("enqueued");
    let stop = CancellationToken::new();
    let worker = workload::worker(Arc::new(store.clone()), history, default_settings("worker", TIMEOUT));
    let working = tokio::spawn(worker.run_until(stop.clone().cancelled_owned()));
    fixture
        .wait_for_events(
            "the jobs start",
            2,
            |event| matches!(event, HistoryEvent::Started(lease) if ids.contains(&lease.id)),
        )
        .await;
    let running = store.get(ids.to_vec()).await.expect("read");
    let mut running: Vec<Job> = running.into_iter().flatten().collect();
    running.sort_by_key(|job| job.epoch);
    assert_ne!(running[0].epoch, running[1].epoch, "one claim has both jobs");
    disturb([running[0].id, running[1].id]).await;
    fixture.wait_until_ended(&store).await;
    stop.cancel();
    let summary = working.await.expect("no panic").expect("the worker shuts down cleanly");
    assert_eq!((summary.succeeded, summary.dropped), (2, 0), "{summary:?}");
    let (end, history) = fixture.check().await;
    for id in ids {
        let job = &end.jobs[&id];
        assert_eq!((job.state, job.lease_count(), job.attempt), (State::Succeeded, 1, 1), "{job:?}");
        assert_eq!(end.logs[&id].len(), 1, "{:?}", history.describe_job(id));
    }
}

/// Locks the claim of a running job in another session. The session checks for a deadlock much later than the node, so that the node is the victim.
async fn lock_claim(fixture: &Fixture, id: JobId) -> Client {
    let session = fixture.session().await;
    session.batch_execute("BEGIN; SET LOCAL deadlock_timeout = '20s'").await.expect("begun");
    session.batch_execute(&lock(id)).await.expect("locked");
    session
}

/// Waits until a node waits for the lock of the session. Then makes the session wait for a lock of the node.
async fn cause_deadlock(fixture: &Fixture, session: &Client, id: JobId) {
    let watcher = fixture.session().await;
    let began = Instant::now();
    while watcher.query_one(WAITING, &[]).await.expect("the server answers").get::<_, i64>(0) == 0 {
        assert!(began.elapsed() < TIMEOUT, "no node waits");
        tokio::task::yield_now().await;
    }
    session
        .batch_execute(&format!("{}; COMMIT", lock(id)))
        .await
        .expect("the server chooses the node as the victim");
}

fn lock(id: JobId) -> String {
    format!("SELECT FROM redrive.claims WHERE '{id}' = ANY (ids) FOR UPDATE")
}

fn deadlocks(fixture: &Fixture) -> usize {
    fixture.server.log().matches("deadlock detected").count()
}

/// Claims two jobs, one after the other, so that each has a claim of its own.
async fn claim_two_jobs(store: &RecordingStore) -> Vec<Job> {
    let policy = fixture::policy(store).await;
    let jobs = [(); 2].map(|()| workload::job(&policy, "ok"));
    store.enqueue(jobs.to_vec()).await.expect("enqueued");
    let worker = WorkerId::new("bare").expect("legal");
    let request = ClaimRequest { worker, queues: vec![], kinds: vec![], limit: 1, lease: TIMEOUT };
    let mut claimed = store.claim(request.clone()).await.expect("claimed").jobs;
    claimed.extend(store.claim(request).await.expect("claimed").jobs);
    assert_eq!(claimed.iter().map(|job| job.id).collect::<Vec<_>>(), jobs.map(|job| job.id));
    claimed
}

fn settlements(jobs: &[Job]) -> Vec<Settlement> {
    jobs.iter().map(fixture::done).collect()
}

/// One thread: jobs that end at the same moment are settled together.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}
