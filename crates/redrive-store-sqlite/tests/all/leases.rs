//! The running jobs, which the file keeps as ranges of rows: after a crash, a rollback and an upgrade.

use std::path::{Path, PathBuf};
use std::time::Duration;

use redrive_core::store::{ClaimRequest, Filter, PageRequest, ReclaimRequest, SettleResult, Settlement};
use redrive_core::{Job, JobId, Kind, NewJob, PolicyName, PolicyRef, State, Store, Verdict, WorkerId};
use redrive_store_sqlite::{Options, SqliteStore};
use redrive_testkit::ManualClock;
use rusqlite::Connection;
use uuid::Uuid;

const LEASE: Duration = Duration::from_secs(30);

/// A file, and the clock of the stores that open it.
struct File {
    folder: tempfile::TempDir,
    clock: ManualClock,
}

impl File {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder"), clock: ManualClock::new() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("redrive.db")
    }

    fn open(&self) -> SqliteStore {
        self.open_path(&self.path())
    }

    fn open_path(&self, path: &Path) -> SqliteStore {
        let options = Options::default().with_clock(self.clock.clone());
        SqliteStore::open(path, options).expect("the store opens")
    }

    /// Copies the file and its log as they are now, and opens the copy: the state after a crash.
    fn open_after_crash(&self) -> SqliteStore {
        let copy = self.folder.path().join("copy.db");
        for suffix in ["", "-wal"] {
            let name = |path: &Path| format!("{}{suffix}", path.display());
            std::fs::copy(name(&self.path()), name(&copy)).expect("copied");
        }
        self.open_path(&copy)
    }
}

fn id(number: u128) -> JobId {
    JobId(Uuid::from_u128(number))
}

fn job(number: u128) -> NewJob {
    let policy = PolicyRef::first(PolicyName::new("default").expect("legal"));
    NewJob::new(id(number), Kind::new("k").expect("legal"), policy, vec![7; 64])
}

async fn claim(store: &SqliteStore, limit: usize) -> Vec<Job> {
    let worker = WorkerId::new("w").expect("legal");
    let request = ClaimRequest { worker, queues: vec![], kinds: vec![], limit, lease: LEASE };
    store.claim(request).await.expect("claimed").jobs
}

async fn reclaim(store: &SqliteStore) -> Vec<u128> {
    let request = ReclaimRequest { kinds: vec![], limit: 1000, lease: LEASE, held: vec![] };
    numbers(&store.reclaim(request).await.expect("reclaimed").jobs)
}

fn complete(jobs: &[Job]) -> Vec<Settlement> {
    jobs.iter().map(|job| Settlement::new(job.lease(), Verdict::Complete(None))).collect()
}

async fn search_running(store: &SqliteStore) -> Vec<u128> {
    let filter = Filter { states: vec![State::Running], ..Filter::default() };
    let found = store.search(filter, PageRequest::first(100), 1000).await.expect("found");
    let mut found = numbers(&found.page.items);
    found.sort_unstable();
    found
}

fn numbers(jobs: &[Job]) -> Vec<u128> {
    jobs.iter().map(|job| job.id.0.as_u128()).collect()
}

#[tokio::test]
async fn a_crash_loses_no_lease() {
    let file = File::new();
    let store = file.open();
    store.enqueue((1..=12).map(job).collect()).await.expect("enqueued");
    let jobs = [claim(&store, 10).await, claim(&store, 1).await].concat();
    // Leaves parts of a range at its start, in its middle and at its end.
    store.settle(complete(&[&jobs[1..4], &jobs[6..7]].concat())).await.expect("settled");
    let running = [1, 5, 6, 8, 9, 10, 11];
    let copy = file.open_after_crash();
    assert_eq!(search_running(&copy).await, running);
    assert_eq!(reclaim(&copy).await, [], "no lease has expired");
    file.clock.advance(LEASE);
    for store in [&copy, &store] {
        assert_eq!(reclaim(store).await, running);
        assert_eq!(reclaim(store).await, [], "the new leases have not expired");
        let late = store.settle(complete(&jobs[..1])).await.expect("settled");
        assert_eq!(late, [SettleResult::LeaseLost]);
    }
}

#[tokio::test]
async fn a_lease_that_was_extended_expires_later() {
    let file = File::new();
    let store = file.open();
    store.enqueue((1..=3).map(job).collect()).await.expect("enqueued");
    let jobs = claim(&store, 3).await;
    assert_eq!(reclaim(&store).await, []);
    store.extend(vec![jobs[1].lease()], 2 * LEASE).await.expect("extended");
    store.extend(vec![jobs[2].lease()], LEASE / 2).await.expect("extended");
    file.clock.advance(LEASE / 2);
    assert_eq!(reclaim(&store).await, [3]);
    file.clock.advance(LEASE / 2);
    // The lease of the reclaim has the same length and ends half a lease later.
    assert_eq!(reclaim(&store).await, [1]);
    file.clock.advance(LEASE);
    assert_eq!(reclaim(&store).await, [3, 1, 2]);
}

#[tokio::test]
async fn a_rollback_of_the_application_keeps_the_lease() {
    let file = File::new();
    let store = file.open();
    store.enqueue((1..=4).map(job).collect()).await.expect("enqueued");
    let jobs = claim(&store, 4).await;
    let settlements = complete(&jobs[1..3]);
    let outcome = store
        .transact(move |tx| {
            tx.settle(&settlements).map_err(|_| "the settlement failed")?;
            Err::<(), _>("the application failed")
        })
        .await;
    assert_eq!(outcome.expect("the store works"), Err("the application failed"));
    assert_eq!(search_running(&store).await, [1, 2, 3, 4]);
    file.clock.advance(LEASE);
    assert_eq!(reclaim(&store).await, [1, 2, 3, 4]);
}

#[tokio::test]
async fn the_running_jobs_of_an_older_schema_are_reclaimed() {
    let file = File::new();
    let conn = Connection::open(file.path()).expect("opens");
    conn.execute_batch(include_str!("../../migrations/0001_jobs.sql")).expect("the first schema");
    conn.execute_batch(
        "CREATE TABLE redrive_schema (version INTEGER NOT NULL) STRICT;
         INSERT INTO redrive_schema VALUES (1);
         INSERT INTO redrive_lanes VALUES (1, 'default', 'k', 5);
         INSERT INTO redrive_counts VALUES (1, 2, 2), (1, 4, 1);",
    )
    .expect("content");
    for (number, state, lease_until) in [(1, 2, Some(20)), (2, 4, None), (3, 2, Some(10))] {
        conn.execute(
            "INSERT INTO redrive_jobs (id, lane, state, next_run_at, attempt, epoch, created_at, began_at, started_at,
               lease_until, tenant, policy, worker, payload)
             VALUES (?1, 1, ?2, 1, 1, 1, 1, 1, 1, ?3, '', 'default@1', 'w', x'')",
            (id(number).0.as_bytes(), state, lease_until),
        )
        .expect("a job");
    }
    drop(conn);
    let store = file.open();
    assert_eq!(search_running(&store).await, [1, 3]);
    assert_eq!(reclaim(&store).await, [3, 1]);
}

#[tokio::test]
async fn a_large_claim_returns_the_jobs_in_order_and_as_they_are_after_the_claim() {
    let file = File::new();
    let store = file.open();
    // The order of the rows is not the order of the ids.
    store.enqueue((1..=200).rev().map(job).collect()).await.expect("enqueued");
    let jobs = claim(&store, 150).await;
    assert_eq!(numbers(&jobs), (1..=150).collect::<Vec<_>>());
    let stored = store.get(jobs.iter().map(|job| job.id).collect()).await.expect("get");
    assert_eq!(jobs, stored.into_iter().flatten().collect::<Vec<_>>());
    assert!(jobs.iter().all(|job| (job.state, job.attempt, job.epoch) == (State::Running, 1, 1)));
}

/// Concurrent calls share a transaction. A reclaim that looks for the first end of a lease must not overlook those of a claim before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_shares_its_transaction_with_a_reclaim_expires() {
    for _ in 0..200 {
        let file = File::new();
        let store = file.open();
        store.enqueue(vec![job(1)]).await.expect("enqueued");
        let (claimed, _) = tokio::join!(biased; claim(&store, 1), reclaim(&store));
        assert_eq!(claimed.len(), 1);
        file.clock.advance(2 * LEASE);
        assert_eq!(reclaim(&store).await.len(), 1, "nobody takes over the job");
    }
}
