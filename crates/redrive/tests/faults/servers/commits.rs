//! Connections that are cut during a commit. The node does not know whether the server has committed, and a repeat is harmless.

use redrive_core::store::{ClaimRequest, ClaimedJobs, EnqueueResult, SettleResult};
use redrive_core::{
    IdempotencyKey, Job, JobId, NewJob, PolicyRef, Queue, State, Store, StoreError, WorkerId,
};
use redrive_testkit::history::HistoryEvent;
use redrive_testkit::servers::Proxy;
use redrive_testkit::{History, RecordingStore};

use super::fixture::{self, Fixture};
use crate::workload::LEASE;
use crate::{runner, workload};

/// Texts by which the proxy recognises statements. Each occurs only in statements of its kind.
const ENQUEUE: &[u8] = b"INSERT INTO redrive.jobs";
const CLAIM: &[u8] = b"FROM redrive.claim_";
const SETTLE: &[u8] = b"INSERT INTO redrive.attempts";

/// Cuts a connection at the next statement of a kind.
#[derive(Clone, Copy)]
struct Cut {
    plan: fn(&Proxy, &[u8]),
    /// Whether the server has executed the statement.
    done: bool,
}

const CUTS: [Cut; 2] = [
    Cut { plan: Proxy::cut_after_request, done: true },
    Cut { plan: Proxy::cut_before_request, done: false },
];

pub(crate) fn cut_in_the_middle_of_a_commit() {
    runner::runtime().block_on(async {
        let fixture = Fixture::open(&[]).await;
        let cuts = Cuts::open(&fixture).await;
        for cut in CUTS {
            cuts.check_enqueue(cut).await;
            cuts.check_enqueue_with_key(cut).await;
            cuts.check_settlement(cut).await;
            cuts.check_settlement_of_worker(cut).await;
            cuts.check_claim(cut).await;
        }
        workload::drain(cuts.store.clone(), cuts.history.clone()).await;
        let (end, _) = fixture.check().await;
        println!(
            "  {} connections cut, {} jobs in the store, all ended",
            cuts.proxy.requests_cut(),
            end.jobs.len()
        );
    });
}

/// A node whose connections go through a proxy.
struct Cuts<'a> {
    fixture: &'a Fixture,
    proxy: Proxy,
    store: RecordingStore,
    history: History,
    policy: PolicyRef,
}

impl<'a> Cuts<'a> {
    async fn open(fixture: &'a Fixture) -> Self {
        let proxy = Proxy::start(([127, 0, 0, 1], fixture.server.port()).into());
        let address = format!("postgres://redrive@{}/redrive", proxy.address());
        let (store, history) = fixture.local_at(&address, "cut").await;
        let policy = fixture::policy(&store).await;
        // Creates the lane first, so that no cut interrupts that.
        store.enqueue(vec![workload::job(&policy, "ok")]).await.expect("enqueued");
        Self { fixture, proxy, store, history, policy }
    }

    async fn check_enqueue(&self, cut: Cut) {
        let job = workload::job(&self.policy, "ok");
        self.enqueue_twice(cut, job.clone()).await;
    }

    /// The repeat comes from a process that does not know the id any more.
    async fn check_enqueue_with_key(&self, cut: Cut) {
        let key = format!("{}", uuid::Uuid::now_v7());
        let job =
            workload::job(&self.policy, "ok").with_key(IdempotencyKey::new(key.as_str()).expect("legal"));
        self.enqueue_twice(cut, job.clone()).await;
        let other = NewJob { id: JobId(uuid::Uuid::now_v7()), ..job.clone() };
        assert_eq!(
            self.store.enqueue(vec![other]).await.expect("the server answers"),
            [EnqueueResult::Existing(job.id)]
        );
        assert_eq!(self.rows(&format!("key = '{key}'")), "1", "a second job with the same key");
    }

    async fn enqueue_twice(&self, cut: Cut, job: NewJob) {
        let id = job.id;
        self.cut(cut, ENQUEUE, self.store.enqueue(vec![job.clone()])).await;
        assert_eq!(self.rows(&format!("id = '{id}'")), u8::from(cut.done).to_string());
        let again = self.store.enqueue(vec![job]).await.expect("the server answers now");
        assert_eq!(again, [if cut.done { EnqueueResult::Existing(id) } else { EnqueueResult::Created(id) }]);
        assert_eq!(self.rows(&format!("id = '{id}'")), "1", "a second job with the same id");
    }

    async fn check_settlement(&self, cut: Cut) {
        let id = self.add("ok", "settled").await;
        let job = self.claim("settled").await.expect("claimed").jobs.pop().expect("the job is due");
        let settlement = fixture::done(&job);
        self.cut(cut, SETTLE, self.store.settle(vec![settlement.clone()])).await;
        let expected = if cut.done { State::Succeeded } else { State::Running };
        assert_eq!(self.job(id).await.state, expected);
        let again = self.store.settle(vec![settlement]).await.expect("the server answers now");
        assert_eq!(
            again,
            [if cut.done { SettleResult::LeaseLost } else { SettleResult::Applied(State::Succeeded) }]
        );
        self.check_ended_once(id, 1).await;
    }

    async fn check_settlement_of_worker(&self, cut: Cut) {
        let id = self.add("ok", "worked").await;
        (cut.plan)(&self.proxy, SETTLE);
        let before = self.proxy.requests_cut();
        workload::drain(self.store.clone(), self.history.clone()).await;
        assert_eq!(self.proxy.requests_cut(), before + 1, "no connection was cut");
        self.check_ended_once(id, 1).await;
    }

    /// A claim whose result was lost is reclaimed when its lease ends. It costs an attempt.
    async fn check_claim(&self, cut: Cut) {
        let id = self.add("ok", "claimed").await;
        self.cut(cut, CLAIM, self.claim("claimed")).await;
        let job = self.job(id).await;
        let expected = if cut.done { (State::Running, 1, 1) } else { (State::Pending, 0, 0) };
        assert_eq!((job.state, job.lease_count(), job.attempt), expected);
        workload::drain(self.store.clone(), self.history.clone()).await;
        self.check_ended_once(id, 1 + u32::from(cut.done)).await;
    }

    /// Checks that the call fails because of the cut.
    async fn cut<T: std::fmt::Debug>(
        &self,
        cut: Cut,
        needle: &[u8],
        call: impl Future<Output = Result<T, StoreError>>,
    ) {
        let before = self.proxy.requests_cut();
        (cut.plan)(&self.proxy, needle);
        let error = call.await.expect_err("the connection was cut");
        assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
        assert_eq!(self.proxy.requests_cut(), before + 1, "no connection was cut");
    }

    /// Checks that the job has succeeded in this attempt, and that its handler started at most once.
    async fn check_ended_once(&self, id: JobId, attempt: u32) {
        let job = self.job(id).await;
        assert_eq!((job.state, job.attempt), (State::Succeeded, attempt), "ONE-OUTCOME: {job:?}");
        let starts =
            |(_, event): &(_, HistoryEvent)| matches!(event, HistoryEvent::Started(lease) if lease.id == id);
        assert!(
            self.history.all().iter().filter(|each| starts(each)).count() <= 1,
            "{:?}",
            self.history.describe_job(id)
        );
    }

    async fn add(&self, script: &str, queue: &str) -> JobId {
        let queue = Queue::new(queue).expect("legal");
        let job = NewJob { queue, ..workload::job(&self.policy, script) };
        let id = job.id;
        self.store.enqueue(vec![job]).await.expect("enqueued");
        id
    }

    async fn claim(&self, queue: &str) -> Result<ClaimedJobs, StoreError> {
        let request = ClaimRequest {
            worker: WorkerId::new("cut").expect("legal"),
            queues: vec![Queue::new(queue).expect("legal")],
            kinds: vec![],
            limit: 10,
            lease: LEASE,
        };
        self.store.claim(request).await
    }

    async fn job(&self, id: JobId) -> Job {
        self.store.get(vec![id]).await.expect("read").pop().flatten().expect("the job exists")
    }

    fn rows(&self, condition: &str) -> String {
        self.fixture.server.run(&format!("SELECT count(*) FROM redrive.jobs WHERE {condition}"))
    }
}
