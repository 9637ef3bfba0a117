//! Many nodes on one database: they start at once, maintain the same rows at once, and have different versions.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redrive_core::policy::presets;
use redrive_core::store::{
    ClaimRequest, Filter, PageRequest, ReclaimRequest, Retention, SettleResult, Settlement,
};
use redrive_core::{Job, JobId, Kind, NewJob, State, Store, StoreError, Verdict, WorkerId, catalog};
use redrive_store_postgres::{Options, PostgresStore};
use redrive_testkit::servers::Postgres;
use tokio::task::JoinSet;

/// The timeout of every wait.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Jobs whose worker died, jobs after their retention, and due jobs.
const ORPHANS: usize = 400;
const EXPIRED: usize = 300;
const DUE: usize = 500;

/// Counts the differences between the table of counts and the rows, in one snapshot.
const DIFFERENCE: &str = "SELECT count(*) FROM \
    (SELECT lane, state, sum(jobs) AS jobs FROM redrive.counts GROUP BY lane, state HAVING sum(jobs) <> 0) AS kept \
    FULL JOIN (SELECT lane, state, count(*) AS jobs FROM redrive.all_jobs GROUP BY lane, state) AS real USING (lane, state) \
    WHERE kept.jobs IS DISTINCT FROM real.jobs";

/// The jobs that a node got.
#[derive(Default)]
struct Share {
    reclaimed: Vec<JobId>,
    claimed: Vec<JobId>,
    pruned: usize,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_maintenance_takes_each_row_once() {
    let server = quick_server();
    let first = node(&server).await;
    set_up(&first).await;
    let left = Arc::new(AtomicUsize::new(ORPHANS + EXPIRED + DUE));
    let mut nodes = JoinSet::new();
    for number in 0..8 {
        let (store, left) = (node(&server).await, left.clone());
        nodes.spawn(async move { maintain(&store, &format!("node-{number}"), &left).await });
    }
    let began = Instant::now();
    while left.load(Ordering::Relaxed) > 0 && began.elapsed() < TIMEOUT {
        assert_eq!(server.run(DIFFERENCE), "0", "the counts differ from the rows");
    }
    let mut all = Share::default();
    for share in nodes.join_all().await {
        all.reclaimed.extend(share.reclaimed);
        all.claimed.extend(share.claimed);
        all.pruned += share.pruned;
    }
    let distinct = |ids: &[JobId]| ids.iter().collect::<BTreeSet<_>>().len();
    assert_eq!((all.reclaimed.len(), distinct(&all.reclaimed)), (ORPHANS, ORPHANS), "reclaimed");
    assert_eq!((all.claimed.len(), distinct(&all.claimed)), (DUE, DUE), "claimed");
    assert_eq!(all.pruned, EXPIRED, "pruned");
    let stats = first.stats().await.expect("stats");
    assert_eq!(stats.in_state(State::Running), (ORPHANS + DUE) as u64);
    assert_eq!((stats.counts.len(), server.run(DIFFERENCE)), (1, "0".to_owned()), "{stats:?}");
}

async fn set_up(store: &PostgresStore) {
    enqueue(store, ORPHANS).await;
    assert_eq!(claim(store, "gone", 1000, Duration::from_millis(1)).await.len(), ORPHANS);
    enqueue(store, EXPIRED).await;
    let done = claim(store, "done", 1000, TIMEOUT).await;
    let settlements = done.iter().map(|job| Settlement::new(job.lease(), Verdict::Complete(None)));
    let settled = store.settle(settlements.collect()).await.expect("settled");
    assert_eq!(settled, [SettleResult::Applied(State::Succeeded); EXPIRED]);
    enqueue(store, DUE).await;
    tokio::time::sleep(Duration::from_millis(2)).await;
}

/// Reclaims, prunes and claims in small batches until no rows are left for any node.
async fn maintain(store: &PostgresStore, name: &str, left: &AtomicUsize) -> Share {
    let mut share = Share::default();
    let began = Instant::now();
    while left.load(Ordering::Relaxed) > 0 {
        assert!(began.elapsed() < TIMEOUT, "{} rows are left", left.load(Ordering::Relaxed));
        let reclaimed = store.reclaim(reclaim(7)).await.expect("reclaimed").jobs;
        assert!(reclaimed.iter().all(|job| (job.lease_count(), job.attempt) == (2, 1)), "{reclaimed:?}");
        let retention = Retention { succeeded: Duration::ZERO, ..Retention::default() };
        let pruned = store.prune(retention, 9).await.expect("pruned");
        let claimed = claim(store, name, 11, TIMEOUT).await;
        assert!(claimed.iter().all(|job| (job.lease_count(), job.attempt) == (1, 1)), "{claimed:?}");
        let taken = reclaimed.len() + pruned + claimed.len();
        share.reclaimed.extend(reclaimed.iter().map(|job| job.id));
        share.claimed.extend(claimed.iter().map(|job| job.id));
        share.pruned += pruned;
        // If too many jobs are taken, the assertions at the end fail.
        let _ =
            left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(taken)));
    }
    share
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_start_at_once_create_the_tables_once() {
    let server = quick_server();
    let mut nodes = JoinSet::new();
    for _ in 0..16 {
        let address = server.address();
        nodes.spawn(async move { PostgresStore::open(&address, Options::default()).await });
    }
    let stores = nodes.join_all().await.into_iter().collect::<Result<Vec<_>, _>>();
    let stores = stores.unwrap_or_else(|error| panic!("{error:?}"));
    assert_eq!(server.run("SELECT count(*) = max(version) FROM redrive.schema"), "t", "each migration once");
    assert_eq!(server.run("SELECT count(*) FROM redrive.records"), "0", "a migrated store is empty");
    for store in &stores {
        enqueue(store, 1).await;
    }
    assert_eq!(stores[0].stats().await.expect("stats").in_state(State::Pending), 16);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_schema_is_accepted_while_it_is_compatible() {
    let server = quick_server();
    let old = node(&server).await;
    server.run("ALTER TABLE redrive.jobs ADD COLUMN later text");
    server.run(NEWER_SCHEMA);
    for store in [old.clone(), node(&server).await] {
        enqueue(&store, 1).await;
        let job = claim(&store, "old", 1, TIMEOUT).await.pop().expect("the job is due");
        let settled = store.settle(vec![Settlement::new(job.lease(), Verdict::Complete(None))]).await;
        assert_eq!(settled.expect("settled"), [SettleResult::Applied(State::Succeeded)]);
        assert!(store.get(vec![job.id]).await.expect("read")[0].is_some());
        assert_eq!(store.reclaim(reclaim(9)).await.expect("reclaimed").jobs, []);
        assert!(
            !store.list(Filter::default(), PageRequest::first(9)).await.expect("listed").items.is_empty()
        );
    }
    server.run(NEWER_SCHEMA);
    let before = server.run(TABLES_AND_MIGRATIONS);
    for migrate in [true, false] {
        let options = Options { migrate, ..Options::default() };
        let error =
            PostgresStore::open(&server.address(), options).await.expect_err("this version is too old");
        assert!(matches!(&error, StoreError::Refused(text) if text.contains("upgrade redrive")), "{error:?}");
    }
    let error = PostgresStore::migrate(&server.address()).await.expect_err("this version is too old");
    assert!(matches!(error, StoreError::Refused(_)), "{error:?}");
    assert_eq!(server.run(TABLES_AND_MIGRATIONS), before, "a refused database was changed");
}

/// Records one more migration, which nodes with the previous schema version accept.
const NEWER_SCHEMA: &str =
    "INSERT INTO redrive.schema SELECT max(version) + 1, max(version) FROM redrive.schema";

/// The tables with their columns, and the recorded migrations.
const TABLES_AND_MIGRATIONS: &str = "SELECT attrelid::regclass, attname FROM pg_attribute WHERE attrelid IN \
    (SELECT oid FROM pg_class WHERE relnamespace = 'redrive'::regnamespace) \
    UNION ALL SELECT 'redrive.schema', version::text FROM redrive.schema ORDER BY 1, 2";

/// A fast server, without protection against a power cut.
fn quick_server() -> Postgres {
    Postgres::start_with(&[("fsync", "off"), ("max_connections", "200")])
}

async fn node(server: &Postgres) -> PostgresStore {
    PostgresStore::open(&server.address(), Options::default()).await.expect("the store opens")
}

async fn enqueue(store: &PostgresStore, count: usize) {
    let policy = catalog::put_inline(store, &presets::once(), redrive_core::Timestamp::default())
        .await
        .expect("stored");
    let kind = Kind::new("nodes").expect("legal");
    let job = |_| NewJob::new(JobId(uuid::Uuid::now_v7()), kind.clone(), policy.clone(), vec![]);
    store.enqueue((0..count).map(job).collect()).await.expect("enqueued");
}

async fn claim(store: &PostgresStore, name: &str, limit: usize, lease: Duration) -> Vec<Job> {
    let request = ClaimRequest { worker: worker(name), queues: vec![], kinds: vec![], limit, lease };
    store.claim(request).await.expect("claimed").jobs
}

fn reclaim(limit: usize) -> ReclaimRequest {
    ReclaimRequest { kinds: vec![], limit, lease: TIMEOUT, held: vec![] }
}

fn worker(name: &str) -> WorkerId {
    WorkerId::new(name).expect("legal")
}
