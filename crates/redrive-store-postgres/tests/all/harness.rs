//! A server with nodes, for tests of this store.

use std::time::{Duration, Instant};

use redrive_core::policy::presets;
use redrive_core::store::{ClaimRequest, ReclaimRequest, SettleResult, Settlement};
use redrive_core::{Job, JobId, Kind, NewJob, PolicyRef, Store, Timestamp, Verdict, WorkerId, catalog};
use redrive_store_postgres::{Options, PostgresStore};
use redrive_testkit::servers::Postgres;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

/// The timeout of every wait, and the lease of jobs that are not reclaimed.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Counts the differences between the table of counts and the jobs, in one snapshot.
pub(crate) const DIFFERENCE: &str = "SELECT count(*) FROM \
    (SELECT lane, state, sum(jobs) AS jobs FROM redrive.counts GROUP BY lane, state HAVING sum(jobs) <> 0) AS kept \
    FULL JOIN (SELECT lane, state, count(*) AS jobs FROM redrive.all_jobs GROUP BY lane, state) AS real USING (lane, state) \
    WHERE kept.jobs IS DISTINCT FROM real.jobs";

/// A server with one node.
pub(crate) struct Cluster {
    pub(crate) server: Postgres,
    pub(crate) store: PostgresStore,
    policy: PolicyRef,
}

impl Cluster {
    /// Starts a fast server, without protection against a power cut, with these settings.
    pub(crate) async fn open(settings: &[(&str, &str)]) -> Self {
        Self::open_with(settings, Options::default()).await
    }

    pub(crate) async fn open_with(settings: &[(&str, &str)], options: Options) -> Self {
        let fast = [("fsync", "off"), ("max_connections", "200")];
        let server = Postgres::start_with(&[&fast, settings].concat());
        let store = PostgresStore::open(&server.address(), options).await.expect("the store opens");
        let policy =
            catalog::put_inline(&store, &presets::once(), Timestamp::default()).await.expect("stored");
        Self { server, store, policy }
    }

    /// Another node.
    pub(crate) async fn node(&self) -> PostgresStore {
        PostgresStore::open(&self.server.address(), Options::default()).await.expect("the store opens")
    }

    /// A session of somebody else.
    pub(crate) async fn session(&self) -> Client {
        let address = self.server.address();
        let (client, connection) =
            tokio_postgres::connect(&address, NoTls).await.expect("the server answers");
        tokio::spawn(connection);
        client
    }

    /// Waits until a session waits for a lock of another one.
    pub(crate) async fn wait_for_blocked_session(&self) {
        let began = Instant::now();
        let blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        while self.server.run(blocked) == "0" {
            assert!(began.elapsed() < TIMEOUT, "no session waits for a lock");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// A job that is due at once.
    pub(crate) fn job(&self) -> NewJob {
        self.job_of_kind("work")
    }

    pub(crate) fn job_of_kind(&self, kind: &str) -> NewJob {
        let kind = Kind::new(kind).expect("legal");
        NewJob::new(JobId(Uuid::now_v7()), kind, self.policy.clone(), vec![])
    }

    pub(crate) async fn enqueue(&self, count: usize) -> Vec<JobId> {
        self.enqueue_with_payload(count, &[]).await
    }

    pub(crate) async fn enqueue_with_payload(&self, count: usize, payload: &[u8]) -> Vec<JobId> {
        let job = || NewJob { payload: payload.to_vec(), ..self.job() };
        let jobs: Vec<NewJob> = std::iter::repeat_with(job).take(count).collect();
        let ids = jobs.iter().map(|job| job.id).collect();
        self.store.enqueue(jobs).await.expect("enqueued");
        ids
    }
}

pub(crate) fn claim_request(limit: usize, lease: Duration) -> ClaimRequest {
    ClaimRequest { worker: WorkerId::new("w").expect("legal"), queues: vec![], kinds: vec![], limit, lease }
}

pub(crate) async fn claim(store: &PostgresStore, limit: usize, lease: Duration) -> Vec<Job> {
    store.claim(claim_request(limit, lease)).await.expect("claimed").jobs
}

/// Takes over the leases that have run out, and returns the jobs in the order of their ids.
pub(crate) async fn reclaim(store: &PostgresStore) -> Vec<JobId> {
    let request = ReclaimRequest { kinds: vec![], limit: 100, lease: TIMEOUT, held: vec![] };
    let mut ids: Vec<JobId> =
        store.reclaim(request).await.expect("reclaimed").jobs.iter().map(|job| job.id).collect();
    ids.sort();
    ids
}

pub(crate) async fn settle(store: &PostgresStore, job: &Job, verdict: Verdict) -> SettleResult {
    store.settle(vec![Settlement::new(job.lease(), verdict)]).await.expect("settled")[0]
}
