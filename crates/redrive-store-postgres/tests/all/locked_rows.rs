//! A row that a session of somebody else has locked stops nothing but its own job.

use std::time::{Duration, Instant};

use redrive_core::store::{ExtendResult, Retention, SettleResult, Settlement};
use redrive_core::{Job, JobId, Lease, State, Store, Verdict};
use redrive_store_postgres::PostgresStore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_postgres::Client;

use crate::harness::{Cluster, TIMEOUT, claim};

/// The time in which a call must return that waits for no lock, even on a busy machine.
const SOON: Duration = Duration::from_secs(5);
/// More calls than the store has connections.
const CALLS: usize = 24;

/// Locks rows until the session is dropped.
async fn lock(cluster: &Cluster, table: &str, condition: &str) -> Client {
    let session = cluster.session().await;
    let sql = format!("BEGIN; SELECT FROM redrive.{table} WHERE {condition} FOR UPDATE");
    session.batch_execute(&sql).await.expect("locked");
    let count = format!("SELECT count(*) FROM redrive.{table} WHERE {condition}");
    let rows: i64 = session.query_one(&count, &[]).await.expect("counted").get(0);
    assert_eq!(rows, 1, "{condition}");
    session
}

async fn soon<T>(what: &str, call: impl Future<Output = T>) -> T {
    let began = Instant::now();
    let answer = timeout(SOON, call).await;
    answer.unwrap_or_else(|_| panic!("{what} did not return within {:?}", began.elapsed()))
}

/// Runs a hundred jobs in many concurrent calls: enqueue, claim, extend, settle.
async fn run_others(cluster: &Cluster) {
    let enqueued = soon("an enqueue", cluster.enqueue(100)).await;
    let mut claims = JoinSet::new();
    for _ in 0..CALLS {
        let store = cluster.store.clone();
        claims.spawn(async move { soon("a claim", claim(&store, 5, TIMEOUT)).await });
    }
    let jobs: Vec<Job> = claims.join_all().await.into_iter().flatten().collect();
    let mut claimed: Vec<JobId> = jobs.iter().map(|job| job.id).filter(|id| enqueued.contains(id)).collect();
    claimed.sort();
    assert_eq!(claimed, enqueued);
    let mut ends = JoinSet::new();
    for batch in jobs.chunks(4) {
        let (store, leases) = (cluster.store.clone(), batch.iter().map(Job::lease).collect::<Vec<_>>());
        ends.spawn(async move { extend_and_settle(&store, leases).await });
    }
    ends.join_all().await;
}

async fn extend_and_settle(store: &PostgresStore, leases: Vec<Lease>) {
    let extended = soon("an extend", store.extend(leases.clone(), TIMEOUT)).await.expect("extended");
    assert_eq!(extended, vec![ExtendResult::Renewed; leases.len()]);
    let settlements = leases.iter().map(|lease| Settlement::new(*lease, Verdict::Complete(None)));
    let settled = soon("a settlement", store.settle(settlements.collect())).await.expect("settled");
    assert_eq!(settled, vec![SettleResult::Applied(State::Succeeded); leases.len()]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_job_stops_no_claim_settlement_or_heartbeat_and_no_prune() {
    let cluster = Cluster::open(&[]).await;
    let id = cluster.enqueue(1).await[0];
    let session = lock(&cluster, "jobs", &format!("id = '{id}'")).await;
    run_others(&cluster).await;
    // The row of the job itself is only written once, so the job has ended too.
    let all = Retention { succeeded: Duration::ZERO, ..Retention::default() };
    assert_eq!(soon("a prune", cluster.store.prune(all, 1_000)).await.expect("pruned"), 100);
    drop(session);
    // The server ends the transaction soon.
    while cluster.store.prune(all, 1_000).await.expect("pruned") == 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(cluster.store.get(vec![id]).await.expect("read"), [None]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_row_of_a_ready_job_stops_no_claim_of_others() {
    let cluster = Cluster::open(&[]).await;
    let id = cluster.enqueue(1).await[0];
    let session = lock(&cluster, "ready", &format!("id = '{id}'")).await;
    run_others(&cluster).await;
    drop(session);
    let next = async {
        loop {
            if let Some(job) = claim(&cluster.store, 1, TIMEOUT).await.pop() {
                break job;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert_eq!(soon("the claim of the job", next).await.id, id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_claim_stops_no_heartbeat_of_others() {
    let cluster = Cluster::open(&[]).await;
    let ids = cluster.enqueue(2).await;
    let (first, second) = (claim(&cluster.store, 1, TIMEOUT).await, claim(&cluster.store, 1, TIMEOUT).await);
    let claims = [first[0].lease(), second[0].lease()];
    let session = lock(&cluster, "claims", &format!("'{}' = ANY (ids)", ids[0])).await;
    run_others(&cluster).await;
    // A renewal of both, as a heartbeat makes, does not wait either. The locked one has time left.
    let extended =
        soon("an extend", cluster.store.extend(claims.to_vec(), 2 * TIMEOUT)).await.expect("extended");
    assert_eq!(extended, [ExtendResult::Renewed; 2]);
    let until = second[0].lease_until.expect("the job runs").as_ms();
    let longer = format!(
        "SELECT lease_until > {until} FROM redrive.claims WHERE ids && ARRAY['{}', '{}']::uuid[] ORDER BY claim",
        ids[0], ids[1]
    );
    assert_eq!(cluster.server.run(&longer), "f\nt");
    drop(session);
}
