//! Connections that are cut in the middle of a commit: nobody knows what came of it, and asking again does no harm.

use redrive_core::store::{ClaimRequest, Claimed, Enqueued, Settled};
use redrive_core::{
    IdempotencyKey, Job, JobId, NewJob, PolicyRef, Queue, State, Store, StoreError, WorkerId,
};
use redrive_testkit::history::Happening;
use redrive_testkit::servers::Proxy;
use redrive_testkit::{History, Recorded};

use crate::scene::{self, Scene};
use crate::victim::work::LEASE;
use crate::victim::{program, work};

/// What the statements have on the wire that no other statement here has.
const ENQUEUE: &[u8] = b"INSERT INTO redrive.jobs";
const CLAIM: &[u8] = b"attempt = attempt + 1";
const SETTLE: &[u8] = b"INSERT INTO redrive.attempts";

/// Cuts a connection at the next statement of a kind.
#[derive(Clone, Copy)]
struct Cut {
    plan: fn(&Proxy, &[u8]),
    /// Whether the server has done what it was asked for.
    done: bool,
}

const CUTS: [Cut; 2] = [
    Cut { plan: Proxy::cut_after_request, done: true },
    Cut { plan: Proxy::cut_before_request, done: false },
];

pub(crate) fn cut_in_the_middle_of_a_commit() {
    program::runtime().block_on(async {
        let scene = Scene::open(&[]).await;
        let cuts = Cuts::open(&scene).await;
        for cut in CUTS {
            cuts.an_enqueue(cut).await;
            cuts.an_enqueue_with_a_key(cut).await;
            cuts.a_settlement(cut).await;
            cuts.a_settlement_of_a_worker(cut).await;
            cuts.a_claim(cut).await;
        }
        work::drain(cuts.store.clone(), cuts.history.clone()).await;
        let (end, _) = scene.check().await;
        println!(
            "  {} connections cut, {} jobs in the store, all ended",
            cuts.proxy.faults(),
            end.jobs.len()
        );
    });
}

/// A node whose connections go through a proxy.
struct Cuts<'a> {
    scene: &'a Scene,
    proxy: Proxy,
    store: Recorded,
    history: History,
    policy: PolicyRef,
}

impl<'a> Cuts<'a> {
    async fn open(scene: &'a Scene) -> Self {
        let proxy = Proxy::start(([127, 0, 0, 1], scene.server.port()).into());
        let address = format!("postgres://redrive@{}/redrive", proxy.address());
        let (store, history) = scene.local_at(&address, "cut").await;
        let policy = scene::policy(&store).await;
        // So that no cut hits the making of a lane.
        store.enqueue(vec![work::job(&policy, "ok")]).await.expect("enqueued");
        Self { scene, proxy, store, history, policy }
    }

    async fn an_enqueue(&self, cut: Cut) {
        let job = work::job(&self.policy, "ok");
        self.enqueue_twice(cut, job.clone()).await;
    }

    /// The second time comes from a process that has forgotten the id.
    async fn an_enqueue_with_a_key(&self, cut: Cut) {
        let key = format!("{}", uuid::Uuid::now_v7());
        let job = work::job(&self.policy, "ok").with_key(IdempotencyKey::new(key.as_str()).expect("legal"));
        self.enqueue_twice(cut, job.clone()).await;
        let other = NewJob { id: JobId(uuid::Uuid::now_v7()), ..job.clone() };
        assert_eq!(self.store.enqueue(vec![other]).await.expect("it answers"), [Enqueued::Existing(job.id)]);
        assert_eq!(self.rows(&format!("key = '{key}'")), "1", "a double by key");
    }

    async fn enqueue_twice(&self, cut: Cut, job: NewJob) {
        let id = job.id;
        self.cut(cut, ENQUEUE, self.store.enqueue(vec![job.clone()])).await;
        assert_eq!(self.rows(&format!("id = '{id}'")), u8::from(cut.done).to_string());
        let again = self.store.enqueue(vec![job]).await.expect("it answers now");
        assert_eq!(again, [if cut.done { Enqueued::Existing(id) } else { Enqueued::Created(id) }]);
        assert_eq!(self.rows(&format!("id = '{id}'")), "1", "a double by id");
    }

    async fn a_settlement(&self, cut: Cut) {
        let id = self.add("ok", "settled").await;
        let job = self.claim("settled").await.expect("claimed").jobs.pop().expect("it is due");
        let settlement = scene::done(&job);
        self.cut(cut, SETTLE, self.store.settle(vec![settlement.clone()])).await;
        let expected = if cut.done { State::Succeeded } else { State::Running };
        assert_eq!(self.job(id).await.state, expected);
        let again = self.store.settle(vec![settlement]).await.expect("it answers now");
        assert_eq!(again, [if cut.done { Settled::LeaseLost } else { Settled::Applied(State::Succeeded) }]);
        self.ended_once(id, 1).await;
    }

    async fn a_settlement_of_a_worker(&self, cut: Cut) {
        let id = self.add("ok", "worked").await;
        (cut.plan)(&self.proxy, SETTLE);
        let before = self.proxy.faults();
        work::drain(self.store.clone(), self.history.clone()).await;
        assert_eq!(self.proxy.faults(), before + 1, "nothing was cut");
        self.ended_once(id, 1).await;
    }

    /// What was claimed without an answer comes back when its lease ends; the attempt is lost.
    async fn a_claim(&self, cut: Cut) {
        let id = self.add("ok", "claimed").await;
        self.cut(cut, CLAIM, self.claim("claimed")).await;
        let job = self.job(id).await;
        let expected = if cut.done { (State::Running, 1, 1) } else { (State::Pending, 0, 0) };
        assert_eq!((job.state, job.epoch, job.attempt), expected);
        work::drain(self.store.clone(), self.history.clone()).await;
        self.ended_once(id, 1 + u32::from(cut.done)).await;
    }

    /// The call fails, and the cut was it.
    async fn cut<T: std::fmt::Debug>(
        &self,
        cut: Cut,
        needle: &[u8],
        call: impl Future<Output = Result<T, StoreError>>,
    ) {
        let before = self.proxy.faults();
        (cut.plan)(&self.proxy, needle);
        let error = call.await.expect_err("the connection was cut");
        assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
        assert_eq!(self.proxy.faults(), before + 1, "nothing was cut");
    }

    /// It has succeeded, in this attempt, and its handler started at most once.
    async fn ended_once(&self, id: JobId, attempt: u32) {
        let job = self.job(id).await;
        assert_eq!((job.state, job.attempt), (State::Succeeded, attempt), "ONE-OUTCOME: {job:?}");
        let starts = |(_, happening): &(_, Happening)| matches!(happening, Happening::Started(lease) if lease.id == id);
        assert!(
            self.history.all().iter().filter(|each| starts(each)).count() <= 1,
            "{:?}",
            self.history.of_job(id)
        );
    }

    async fn add(&self, script: &str, queue: &str) -> JobId {
        let queue = Queue::new(queue).expect("legal");
        let job = NewJob { queue, ..work::job(&self.policy, script) };
        let id = job.id;
        self.store.enqueue(vec![job]).await.expect("enqueued");
        id
    }

    async fn claim(&self, queue: &str) -> Result<Claimed, StoreError> {
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
        self.store.get(vec![id]).await.expect("read").pop().flatten().expect("it is there")
    }

    fn rows(&self, condition: &str) -> String {
        self.scene.server.run(&format!("SELECT count(*) FROM redrive.jobs WHERE {condition}"))
    }
}
