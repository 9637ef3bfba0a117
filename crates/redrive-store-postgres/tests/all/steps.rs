//! Steps, waits and unique keys while other transactions are open.

use std::time::Duration;

use redrive_core::policy::presets;
use redrive_core::steps::{NewStep, RememberResult, Signal, SignalResult, Step, StepKind, WaitCondition};
use redrive_core::store::{CancelResult, ClaimRequest, EnqueueResult, SettleResult, Settlement};
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

use crate::sql;

/// A call that waits for an open transaction must not return within this time.
const BLOCKED_FOR: Duration = Duration::from_millis(300);
/// The timeout of every wait.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A server, a store, and another connection.
struct Fixture {
    server: Postgres,
    store: PostgresStore,
    client: Client,
    policy: PolicyRef,
}

impl Fixture {
    async fn open() -> Self {
        let server = Postgres::start_with(&[("fsync", "off")]);
        let store =
            PostgresStore::open(&server.address(), Options::default()).await.expect("the store opens");
        let policy = catalog::put_inline(&store, &presets::once(), redrive_core::Timestamp::default())
            .await
            .expect("stored");
        let (client, connection) =
            tokio_postgres::connect(&server.address(), NoTls).await.expect("the server answers");
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

    async fn enqueue(&self, job: NewJob) -> EnqueueResult {
        self.store.enqueue(vec![job]).await.expect("enqueued")[0]
    }

    /// Enqueues a job and claims it for this long.
    async fn running(&self, lease: Duration) -> Job {
        self.enqueue(self.job()).await;
        self.claim(lease).await
    }

    async fn claim(&self, lease: Duration) -> Job {
        let worker = WorkerId::new("w").expect("legal");
        let request = ClaimRequest { worker, queues: vec![], kinds: vec![], limit: 1, lease };
        self.store.claim(request).await.expect("claimed").jobs.pop().expect("the job is due")
    }

    async fn settle(&self, job: &Job, verdict: Verdict) -> SettleResult {
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

    /// Starts a call on the store, which must wait for the open transaction.
    async fn start_blocked<T: Send + 'static>(
        &self,
        call: impl AsyncCall<T>,
    ) -> JoinHandle<Result<T, StoreError>> {
        let mut calling = tokio::spawn(call.call(self.store.clone()));
        let early = timeout(BLOCKED_FOR, &mut calling).await;
        assert!(early.is_err(), "the call did not wait for the open transaction");
        calling
    }
}

/// A call on a clone of the store.
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
    timeout(TIMEOUT, calling).await.expect("the call ends").expect("no panic").expect("the call succeeds")
}

fn step(place: u32) -> Step {
    let name = StepName::new("step").expect("legal");
    Step { place, name, kind: StepKind::Done, value: b"x".to_vec() }
}

fn go() -> SignalName {
    SignalName::new("go").expect("legal")
}

async fn signal(fixture: &Fixture, job: JobId) -> Uuid {
    let id = Uuid::now_v7();
    let signal = Signal { job, id, name: go(), value: b"v".to_vec() };
    assert_eq!(fixture.store.signal(vec![signal]).await.expect("signalled"), [SignalResult::Stored]);
    id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_under_a_lost_lease_waits_for_the_reclaim_and_is_rejected() {
    let fixture = Fixture::open().await;
    for content in ["a step", "a signal", "children"] {
        let job = fixture.running(Duration::from_millis(1)).await;
        let signalled = signal(&fixture, job.id).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
        fixture.begin().await;
        assert_eq!(reclaim(&fixture.client).await, job.id.0);
        let child = fixture.child(job.id, 0);
        let new_step = NewStep {
            takes: (content == "a signal").then_some(signalled),
            children: (content == "children").then(|| child.clone()).into_iter().collect(),
            ..NewStep::new(job.lease(), step(0))
        };
        let calling = fixture
            .start_blocked(move |store: PostgresStore| async move { store.remember(vec![new_step]).await });
        let calling = calling.await;
        fixture.commit().await;
        assert_eq!(answer(calling).await, [RememberResult::LeaseLost], "{content}");
        assert_eq!(fixture.store.recall(job.id, 0, 9).await.expect("recalled"), [], "{content}");
        assert_eq!(fixture.get(child.id).await, None, "{content}");
        let untaken = "SELECT count(*) FROM redrive.signals WHERE NOT taken";
        assert_eq!(fixture.server.run(untaken), "1", "{content}");
        fixture
            .server
            .run("TRUNCATE redrive.jobs, redrive.ready, redrive.claims, redrive.progress, redrive.signals");
    }
}

/// Takes over the only expired lease, in the open transaction.
async fn reclaim(client: &Client) -> Uuid {
    let (now, kinds): (Option<i64>, Vec<&str>) = (None, vec![]);
    let (held, epochs): (Vec<Uuid>, Vec<i64>) = (vec![], vec![]);
    let seen: Vec<i64> = vec![];
    let expired: [(&(dyn ToSql + Sync), Type); 4] =
        [(&now, Type::INT8), (&9_i64, Type::INT8), (&i64::MIN, Type::INT8), (&seen, Type::INT8_ARRAY)];
    let locked = client.query_typed(&sql::SETTLE.statement("lock_expired"), &expired).await.expect("locked");
    let claims: Vec<i64> = locked.iter().map(|row| row.get("claim")).collect();
    let parts: Vec<i64> = locked.iter().map(|row| row.get("part")).collect();
    let parameters: [(&(dyn ToSql + Sync), Type); 8] = [
        (&now, Type::INT8),
        (&kinds, Type::TEXT_ARRAY),
        (&9_i64, Type::INT8),
        (&30_000_i64, Type::INT8),
        (&claims, Type::INT8_ARRAY),
        (&parts, Type::INT8_ARRAY),
        (&held, Type::UUID_ARRAY),
        (&epochs, Type::INT8_ARRAY),
    ];
    client.query_typed(&sql::SETTLE.statement("reclaim"), &parameters).await.expect("reclaimed")[0].get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_not_reclaimed_while_its_step_is_stored() {
    let fixture = Fixture::open().await;
    let job = fixture.running(Duration::from_millis(1)).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    fixture.begin().await;
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
        fixture.client.query_typed(&sql::STEPS.statement("remember"), &parameters).await.expect("kept");
    assert!(kept[0].get::<_, bool>("kept"));
    let request =
        redrive_core::store::ReclaimRequest { kinds: vec![], limit: 9, lease: TIMEOUT, held: vec![] };
    assert_eq!(fixture.store.reclaim(request.clone()).await.expect("reclaimed").jobs, []);
    // Another step for the same place waits, and then returns this one.
    let again = NewStep::new(job.lease(), Step { value: b"y".to_vec(), ..step(0) });
    let calling = fixture
        .start_blocked(move |store: PostgresStore| async move { store.remember(vec![again]).await })
        .await;
    fixture.commit().await;
    assert_eq!(answer(calling).await, [RememberResult::AlreadyStored(step(0))]);
    assert_eq!(fixture.store.reclaim(request).await.expect("reclaimed").jobs.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_resume_does_not_end_the_next_wait() {
    let fixture = Fixture::open().await;
    let parent = fixture.running(TIMEOUT).await;
    let none = WaitCondition::Children { branch: 0, failures_max: 0 };
    fixture.settle(&parent, Verdict::Wait(Wait::until(none))).await;
    // Another node resumed the job, which now waits for a child that this resume cannot see yet.
    fixture.begin().await;
    fixture.run("DELETE FROM redrive.waiting").await;
    fixture.run("UPDATE redrive.progress SET epoch = epoch + 65537").await;
    let waiting = format!(
        "INSERT INTO redrive.waiting (id, due, lane, awaits, awaits_branch, awaits_failures) \
         SELECT id, due, lane, 1, 1, 0 FROM redrive.jobs WHERE id = '{}'",
        parent.id
    );
    fixture.run(&waiting).await;
    let child = format!(
        "WITH child AS (INSERT INTO redrive.jobs (id, lane, due, created_at, tenant, policy, payload, parent, branch) \
           SELECT gen_random_uuid(), lane, 0, 0, '', policy, '', id, 1 FROM redrive.jobs WHERE id = '{}' RETURNING *), \
         ready AS (INSERT INTO redrive.ready (id, lane, due) SELECT id, lane, due FROM child) \
         INSERT INTO redrive.children (parent, id, branch) SELECT parent, id, branch FROM child",
        parent.id
    );
    fixture.run(&child).await;
    let id = parent.id;
    let calling =
        fixture.start_blocked(move |store: PostgresStore| async move { store.resume(vec![id]).await }).await;
    fixture.commit().await;
    assert_eq!(answer(calling).await, [false]);
    assert_eq!(fixture.get(id).await.expect("the job exists").state, State::Waiting);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_of_a_job_that_succeeds_meanwhile_leaves_its_children() {
    let fixture = Fixture::open().await;
    let parent = fixture.running(TIMEOUT).await.id;
    let child = fixture.child(parent, 0);
    fixture.enqueue(child.clone()).await;
    fixture.begin().await;
    // A settlement writes this.
    fixture.run("SELECT FROM redrive.claims FOR KEY SHARE").await;
    let ended = format!(
        "INSERT INTO redrive.ended (id, epoch, finished_at, attempt, state) \
         SELECT id, epoch, 0, 1, 4 FROM redrive.all_jobs WHERE id = '{parent}'"
    );
    fixture.run(&ended).await;
    fixture.run("DELETE FROM redrive.claims").await;
    let calling = fixture
        .start_blocked(move |store: PostgresStore| async move { store.cancel(vec![parent]).await })
        .await;
    fixture.commit().await;
    assert_eq!(answer(calling).await, [CancelResult::Ended(State::Succeeded)]);
    assert_eq!(fixture.get(child.id).await.expect("the job exists").state, State::Pending);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unique_key_is_one_job_despite_an_open_transaction() {
    for commits in [true, false] {
        let mut fixture = Fixture::open().await;
        for rule in [UniqueRule::Live, UniqueRule::For(TIMEOUT), UniqueRule::Replace] {
            let (first, second) = (fixture.unique(rule), fixture.unique(rule));
            let mut transaction = fixture.client.transaction().await.expect("begun");
            let created = fixture.store.enqueue_in(&mut transaction, vec![first.clone()]).await;
            assert_eq!(created.expect("enqueued"), [EnqueueResult::Created(first.id)]);
            let (store, job) = (fixture.store.clone(), second.clone());
            let mut calling = tokio::spawn(async move { store.enqueue(vec![job]).await });
            assert!(timeout(BLOCKED_FOR, &mut calling).await.is_err(), "the call did not wait");
            if commits {
                transaction.commit().await.expect("committed");
            } else {
                transaction.rollback().await.expect("rolled back");
            }
            let expected = match (commits, rule) {
                (true, UniqueRule::Replace) => EnqueueResult::Replaced(first.id),
                (true, _) => EnqueueResult::Existing(first.id),
                (false, _) => EnqueueResult::Created(second.id),
            };
            assert_eq!(answer(calling).await, [expected], "{rule:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_honour_unique_keys_and_parents() {
    let mut fixture = Fixture::open().await;
    let parent = Parent::new(fixture.job().id, u32::MAX);
    let unique = || NewJob { parent: Some(parent), ..fixture.unique(UniqueRule::Live) };
    let (first, again, later) = (unique(), unique(), unique());
    let plain = NewJob { parent: Some(parent), ..fixture.job() };
    let mut transaction = fixture.client.transaction().await.expect("begun");
    let jobs = vec![first.clone(), plain.clone(), again];
    let answers = fixture.store.enqueue_in(&mut transaction, jobs).await.expect("enqueued");
    let expected = [
        EnqueueResult::Created(first.id),
        EnqueueResult::Created(plain.id),
        EnqueueResult::Existing(first.id),
    ];
    assert_eq!(answers, expected);
    transaction.commit().await.expect("committed");
    let mut connection = PgConnection::connect(&fixture.server.address()).await.expect("the server answers");
    let mut transaction = connection.begin().await.expect("begun");
    let answers = fixture.store.enqueue_in_sqlx(&mut transaction, vec![later]).await.expect("enqueued");
    assert_eq!(answers, [EnqueueResult::Existing(first.id)]);
    transaction.commit().await.expect("committed");
    for id in [first.id, plain.id] {
        assert_eq!(fixture.get(id).await.expect("the job exists").parent, Some(parent));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn follow_ups_and_children_honour_unique_keys() {
    let fixture = Fixture::open().await;
    let rule = UniqueRule::Live;
    let (holder, twin, other) =
        (fixture.unique(rule), fixture.unique(rule), fixture.unique(UniqueRule::Replace));
    let job = fixture.running(TIMEOUT).await;
    let follow_ups = vec![holder.clone(), twin.clone(), other.clone()];
    let settlement = Settlement { follow_ups, ..Settlement::new(job.lease(), Verdict::Complete(None)) };
    let again = Settlement { follow_ups: vec![fixture.unique(rule)], ..settlement.clone() };
    let settled = fixture.store.settle(vec![settlement]).await.expect("settled");
    assert_eq!(settled, [SettleResult::Applied(State::Succeeded)]);
    assert!(fixture.get(holder.id).await.is_some() && fixture.get(twin.id).await.is_none());
    fixture.settle(&fixture.claim(TIMEOUT).await, Verdict::Complete(None)).await;
    let late = again.follow_ups[0].id;
    assert_eq!(fixture.store.settle(vec![again]).await.expect("settled"), [SettleResult::LeaseLost]);
    assert_eq!(fixture.get(late).await, None, "a follow-up of a lost lease");

    let job = fixture.claim(TIMEOUT).await;
    assert_eq!(job.id, other.id);
    let children = vec![fixture.unique(rule), fixture.unique(rule), fixture.child(job.id, 0)];
    let ids: Vec<JobId> = children.iter().map(|child| child.id).collect();
    let new_step = NewStep { children, ..NewStep::new(job.lease(), step(0)) };
    assert_eq!(
        fixture.store.remember(vec![new_step]).await.expect("kept"),
        [RememberResult::Stored(step(0))]
    );
    let exist: Vec<bool> = fixture.store.get(ids).await.expect("read").iter().map(Option::is_some).collect();
    assert_eq!(exist, [true, false, true]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reserved_keys_are_removed_after_their_time() {
    let fixture = Fixture::open().await;
    let jobs =
        vec![fixture.unique(UniqueRule::For(Duration::from_millis(1_000))), fixture.unique(UniqueRule::Live)];
    let ids = jobs.iter().map(|job| job.id).collect();
    fixture.store.enqueue(jobs).await.expect("enqueued");
    fixture.store.cancel(ids).await.expect("cancelled");
    let at_once = redrive_core::store::Retention {
        succeeded: Duration::ZERO,
        dead: Duration::ZERO,
        cancelled: Duration::ZERO,
    };
    let keys = "SELECT count(*) FROM redrive.uniques";
    assert_eq!(fixture.store.prune(at_once, 9).await.expect("pruned"), 2);
    assert_eq!(fixture.server.run(keys), "1");
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!(fixture.store.prune(at_once, 9).await.expect("pruned"), 0);
    assert_eq!(fixture.server.run(keys), "0");
}
