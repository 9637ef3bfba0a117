//! Steps, waits and unique keys beside open transactions: what one connection is in the middle of, another must not get wrong.

use std::time::Duration;

use redrive_core::policy::presets;
use redrive_core::steps::{Await, Memory, Remembered, Signal, Signalled, Step, StepKind};
use redrive_core::store::{Cancelled, ClaimRequest, Enqueued, Settled, Settlement};
use redrive_core::{
    Job, JobId, Kind, NewJob, Parent, PolicyRef, SignalName, State, StepName, Steps, Store, StoreError,
    Unique, UniqueKey, UniqueRule, Verdict, Wait, WorkerId, catalog,
};
use redrive_store_postgres::{Options, PostgresStore};
use redrive_testkit::servers::Postgres;
use sqlx_core::connection::Connection as _;
use sqlx_postgres::PgConnection;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

/// How long what waits for an open transaction is watched.
const WHILE: Duration = Duration::from_millis(300);
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server, a store on it, and a connection beside the store.
struct Scene {
    server: Postgres,
    store: PostgresStore,
    client: Client,
    policy: PolicyRef,
}

impl Scene {
    async fn open() -> Self {
        let server = Postgres::start_with(&[("fsync", "off")]);
        let store = PostgresStore::open(&server.address(), Options::default()).await.expect("it opens");
        let policy = catalog::put_inline(&store, &presets::once()).await.expect("stored");
        let (client, connection) =
            tokio_postgres::connect(&server.address(), NoTls).await.expect("it answers");
        tokio::spawn(connection);
        Self { server, store, client, policy }
    }

    fn job(&self) -> NewJob {
        let kind = Kind::new("steps").expect("legal");
        NewJob::new(JobId(Uuid::now_v7()), kind, self.policy.clone(), vec![])
    }

    fn child(&self, parent: JobId, branch: u32) -> NewJob {
        NewJob { parent: Some(Parent::new(parent, branch)), ..self.job() }
    }

    fn unique(&self, rule: UniqueRule) -> NewJob {
        let key = UniqueKey::new(format!("{rule:?}")).expect("legal");
        NewJob { unique: Some(Unique { key, rule }), ..self.job() }
    }

    async fn enqueue(&self, job: NewJob) -> Enqueued {
        self.store.enqueue(vec![job]).await.expect("enqueued")[0]
    }

    /// A new job, claimed for this long.
    async fn running(&self, lease: Duration) -> Job {
        self.enqueue(self.job()).await;
        self.claim(lease).await
    }

    async fn claim(&self, lease: Duration) -> Job {
        let worker = WorkerId::new("w").expect("legal");
        let request = ClaimRequest { worker, queues: vec![], kinds: vec![], limit: 1, lease };
        self.store.claim(request).await.expect("claimed").jobs.pop().expect("it is due")
    }

    async fn settle(&self, job: &Job, verdict: Verdict) -> Settled {
        self.store.settle(vec![Settlement::new(job.lease(), verdict)]).await.expect("settled")[0]
    }

    async fn get(&self, id: JobId) -> Option<Job> {
        self.store.get(vec![id]).await.expect("read").pop().flatten()
    }

    async fn begin(&self) {
        self.client.batch_execute("BEGIN").await.expect("begun");
    }

    async fn run(&self, sql: &str) -> u64 {
        self.client.execute(sql, &[]).await.expect(sql)
    }

    async fn commit(&self) {
        self.client.batch_execute("COMMIT").await.expect("committed");
    }

    /// Runs something on the store, which must wait for the open transaction beside it.
    async fn waits<T: Send + 'static>(&self, call: impl AsyncCall<T>) -> JoinHandle<Result<T, StoreError>> {
        let mut calling = tokio::spawn(call.call(self.store.clone()));
        let early = timeout(WHILE, &mut calling).await;
        assert!(early.is_err(), "it did not wait for the open transaction");
        calling
    }
}

/// A call on a store of its own.
trait AsyncCall<T>: Send + 'static {
    fn call(self, store: PostgresStore) -> impl Future<Output = Result<T, StoreError>> + Send;
}

impl<T, F, C> AsyncCall<T> for C
where
    C: FnOnce(PostgresStore) -> F + Send + 'static,
    F: Future<Output = Result<T, StoreError>> + Send + 'static,
{
    fn call(self, store: PostgresStore) -> impl Future<Output = Result<T, StoreError>> + Send {
        self(store)
    }
}

async fn answer<T>(calling: JoinHandle<Result<T, StoreError>>) -> T {
    timeout(PATIENCE, calling).await.expect("it ends").expect("no panic").expect("it works")
}

fn step(place: u32) -> Step {
    let name = StepName::new("step").expect("legal");
    Step { place, name, kind: StepKind::Done, value: b"x".to_vec() }
}

fn go() -> SignalName {
    SignalName::new("go").expect("legal")
}

async fn signal(scene: &Scene, job: JobId) -> Uuid {
    let id = Uuid::now_v7();
    let signal = Signal { job, id, name: go(), value: b"v".to_vec() };
    assert_eq!(scene.store.signal(vec![signal]).await.expect("signalled"), [Signalled::Kept]);
    id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_memory_waits_for_a_reclaim_and_is_shut_out() {
    let scene = Scene::open().await;
    for sort in ["a step", "a signal", "children"] {
        let job = scene.running(Duration::from_millis(1)).await;
        let signalled = signal(&scene, job.id).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
        scene.begin().await;
        assert_eq!(reclaim(&scene.client).await, job.id.0);
        let child = scene.child(job.id, 0);
        let memory = Memory {
            takes: (sort == "a signal").then_some(signalled),
            children: (sort == "children").then(|| child.clone()).into_iter().collect(),
            ..Memory::new(job.lease(), step(0))
        };
        let calling =
            scene.waits(move |store: PostgresStore| async move { store.remember(vec![memory]).await });
        let calling = calling.await;
        scene.commit().await;
        assert_eq!(answer(calling).await, [Remembered::LeaseLost], "{sort}");
        assert_eq!(scene.store.recall(job.id, 0, 9).await.expect("recalled"), [], "{sort}");
        assert_eq!(scene.get(child.id).await, None, "{sort}");
        let untaken = "SELECT count(*) FROM redrive.signals WHERE NOT taken";
        assert_eq!(scene.server.run(untaken), "1", "{sort}");
        scene.server.run("TRUNCATE redrive.jobs, redrive.signals");
    }
}

/// Takes over the only lease that has run out, in the transaction that is open.
async fn reclaim(client: &Client) -> Uuid {
    let (now, kinds): (Option<i64>, Vec<&str>) = (None, vec![]);
    let (held, epochs): (Vec<Uuid>, Vec<i64>) = (vec![], vec![]);
    let parameters: [(&(dyn ToSql + Sync), Type); 7] = [
        (&now, Type::INT8),
        (&kinds, Type::TEXT_ARRAY),
        (&9_i64, Type::INT8),
        (&i64::MIN, Type::INT8),
        (&30_000_i64, Type::INT8),
        (&held, Type::UUID_ARRAY),
        (&epochs, Type::INT8_ARRAY),
    ];
    client.query_typed(include_str!("../sql/reclaim.sql"), &parameters).await.expect("reclaimed")[0].get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_step_is_being_remembered_is_not_reclaimed_meanwhile() {
    let scene = Scene::open().await;
    let job = scene.running(Duration::from_millis(1)).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    scene.begin().await;
    let (jobs, epochs) = (vec![job.id.0], vec![job.epoch as i64]);
    let parameters: [(&(dyn ToSql + Sync), Type); 6] = [
        (&jobs, Type::UUID_ARRAY),
        (&epochs, Type::INT8_ARRAY),
        (&vec![0_i64], Type::INT8_ARRAY),
        (&vec![0_i16], Type::INT2_ARRAY),
        (&vec!["step"], Type::TEXT_ARRAY),
        (&vec![&b"x"[..]], Type::BYTEA_ARRAY),
    ];
    let kept =
        scene.client.query_typed(include_str!("../sql/remember.sql"), &parameters).await.expect("kept");
    assert!(kept[0].get::<_, bool>("kept"));
    let request =
        redrive_core::store::ReclaimRequest { kinds: vec![], limit: 9, lease: PATIENCE, held: vec![] };
    assert_eq!(scene.store.reclaim(request.clone()).await.expect("reclaimed").jobs, []);
    // Another step for the same place waits, and then finds this one.
    let again = Memory::new(job.lease(), Step { value: b"y".to_vec(), ..step(0) });
    let calling =
        scene.waits(move |store: PostgresStore| async move { store.remember(vec![again]).await }).await;
    scene.commit().await;
    assert_eq!(answer(calling).await, [Remembered::Before(step(0))]);
    assert_eq!(scene.store.reclaim(request).await.expect("reclaimed").jobs.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resume_that_was_overtaken_leaves_the_next_wait_alone() {
    let scene = Scene::open().await;
    let parent = scene.running(PATIENCE).await;
    let none = Await::Children { branch: 0, failures_max: 0 };
    scene.settle(&parent, Verdict::Wait(Wait::until(none))).await;
    // Someone else resumed it, and it waits for a child by now that this resume cannot see yet.
    scene.begin().await;
    scene.run("UPDATE redrive.jobs SET epoch = epoch + 1, awaits_branch = 1 WHERE awaits = 1").await;
    let child = format!(
        "INSERT INTO redrive.jobs (id, lane, next_run_at, began_at, created_at, tenant, policy, payload, parent, branch) \
         SELECT gen_random_uuid(), lane, 0, 0, 0, '', policy, '', id, 1 FROM redrive.jobs WHERE id = '{}'",
        parent.id
    );
    scene.run(&child).await;
    let id = parent.id;
    let calling = scene.waits(move |store: PostgresStore| async move { store.resume(vec![id]).await }).await;
    scene.commit().await;
    assert_eq!(answer(calling).await, [false]);
    assert_eq!(scene.get(id).await.expect("it is there").state, State::Waiting);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_of_a_job_that_ends_just_now_leaves_its_children() {
    let scene = Scene::open().await;
    let parent = scene.running(PATIENCE).await.id;
    let child = scene.child(parent, 0);
    scene.enqueue(child.clone()).await;
    scene.begin().await;
    scene.run("UPDATE redrive.jobs SET state = 4, finished_at = 0 WHERE state = 2").await;
    let calling =
        scene.waits(move |store: PostgresStore| async move { store.cancel(vec![parent]).await }).await;
    scene.commit().await;
    assert_eq!(answer(calling).await, [Cancelled::Ended(State::Succeeded)]);
    assert_eq!(scene.get(child.id).await.expect("it is there").state, State::Pending);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_unique_key_is_one_job_beside_an_open_transaction() {
    for commits in [true, false] {
        let mut scene = Scene::open().await;
        for rule in [UniqueRule::Live, UniqueRule::For(PATIENCE), UniqueRule::Replace] {
            let (first, second) = (scene.unique(rule), scene.unique(rule));
            let mut transaction = scene.client.transaction().await.expect("begun");
            let created = scene.store.enqueue_in(&mut transaction, vec![first.clone()]).await;
            assert_eq!(created.expect("enqueued"), [Enqueued::Created(first.id)]);
            let (store, job) = (scene.store.clone(), second.clone());
            let mut calling = tokio::spawn(async move { store.enqueue(vec![job]).await });
            assert!(timeout(WHILE, &mut calling).await.is_err(), "it did not wait");
            if commits {
                transaction.commit().await.expect("committed");
            } else {
                transaction.rollback().await.expect("rolled back");
            }
            let expected = match (commits, rule) {
                (true, UniqueRule::Replace) => Enqueued::Replaced(first.id),
                (true, _) => Enqueued::Existing(first.id),
                (false, _) => Enqueued::Created(second.id),
            };
            assert_eq!(answer(calling).await, [expected], "{rule:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_honour_unique_keys_and_parents() {
    let mut scene = Scene::open().await;
    let parent = Parent::new(scene.job().id, u32::MAX);
    let unique = || NewJob { parent: Some(parent), ..scene.unique(UniqueRule::Live) };
    let (first, again, later) = (unique(), unique(), unique());
    let plain = NewJob { parent: Some(parent), ..scene.job() };
    let mut transaction = scene.client.transaction().await.expect("begun");
    let jobs = vec![first.clone(), plain.clone(), again];
    let answers = scene.store.enqueue_in(&mut transaction, jobs).await.expect("enqueued");
    let expected = [Enqueued::Created(first.id), Enqueued::Created(plain.id), Enqueued::Existing(first.id)];
    assert_eq!(answers, expected);
    transaction.commit().await.expect("committed");
    let mut connection = PgConnection::connect(&scene.server.address()).await.expect("it answers");
    let mut transaction = connection.begin().await.expect("begun");
    let answers = scene.store.enqueue_in_sqlx(&mut transaction, vec![later]).await.expect("enqueued");
    assert_eq!(answers, [Enqueued::Existing(first.id)]);
    transaction.commit().await.expect("committed");
    for id in [first.id, plain.id] {
        assert_eq!(scene.get(id).await.expect("it is there").parent, Some(parent));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn follow_ups_and_children_go_by_unique_keys() {
    let scene = Scene::open().await;
    let rule = UniqueRule::Live;
    let (holder, twin, other) = (scene.unique(rule), scene.unique(rule), scene.unique(UniqueRule::Replace));
    let job = scene.running(PATIENCE).await;
    let follow_ups = vec![holder.clone(), twin.clone(), other.clone()];
    let settlement = Settlement { follow_ups, ..Settlement::new(job.lease(), Verdict::Complete(None)) };
    let again = Settlement { follow_ups: vec![scene.unique(rule)], ..settlement.clone() };
    let settled = scene.store.settle(vec![settlement]).await.expect("settled");
    assert_eq!(settled, [Settled::Applied(State::Succeeded)]);
    assert!(scene.get(holder.id).await.is_some() && scene.get(twin.id).await.is_none());
    scene.settle(&scene.claim(PATIENCE).await, Verdict::Complete(None)).await;
    let late = again.follow_ups[0].id;
    assert_eq!(scene.store.settle(vec![again]).await.expect("settled"), [Settled::LeaseLost]);
    assert_eq!(scene.get(late).await, None, "a follow-up of a lost lease");

    let job = scene.claim(PATIENCE).await;
    assert_eq!(job.id, other.id);
    let children = vec![scene.unique(rule), scene.unique(rule), scene.child(job.id, 0)];
    let ids: Vec<JobId> = children.iter().map(|child| child.id).collect();
    let memory = Memory { children, ..Memory::new(job.lease(), step(0)) };
    assert_eq!(scene.store.remember(vec![memory]).await.expect("kept"), [Remembered::Kept(step(0))]);
    let there: Vec<bool> = scene.store.get(ids).await.expect("read").iter().map(Option::is_some).collect();
    assert_eq!(there, [true, false, true]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_outlive_their_jobs_are_removed_when_their_time_has_passed() {
    let scene = Scene::open().await;
    let jobs =
        vec![scene.unique(UniqueRule::For(Duration::from_millis(1_000))), scene.unique(UniqueRule::Live)];
    let ids = jobs.iter().map(|job| job.id).collect();
    scene.store.enqueue(jobs).await.expect("enqueued");
    scene.store.cancel(ids).await.expect("cancelled");
    let at_once = redrive_core::store::Retention {
        succeeded: Duration::ZERO,
        dead: Duration::ZERO,
        cancelled: Duration::ZERO,
    };
    let keys = "SELECT count(*) FROM redrive.uniques";
    assert_eq!(scene.store.prune(at_once, 9).await.expect("pruned"), 2);
    assert_eq!(scene.server.run(keys), "1");
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!(scene.store.prune(at_once, 9).await.expect("pruned"), 0);
    assert_eq!(scene.server.run(keys), "0");
}
