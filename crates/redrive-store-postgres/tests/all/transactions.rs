//! Enqueues in transactions of the caller: by SQL from any language, and from Rust with tokio-postgres and sqlx.

use std::time::Duration;

use redrive_core::store::{ClaimRequest, EnqueueResult};
use redrive_core::{
    IdempotencyKey, Job, JobId, Kind, NewJob, Policy, PolicyName, PolicyRef, Priority, Queue, Start, State,
    Store, StoreError, Tenant, Timestamp, WorkerId, catalog,
};
use redrive_store_postgres::{Options, PostgresStore};
use redrive_testkit::servers::Postgres;
use sqlx_core::connection::Connection as _;
use sqlx_postgres::PgConnection;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

/// A server, a store with the default policy, and another connection.
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
        let name = PolicyName::new("default").expect("legal");
        let policy = catalog::put(&store, &name, &Policy::default()).await.expect("stored");
        let (client, connection) =
            tokio_postgres::connect(&server.address(), NoTls).await.expect("the server answers");
        tokio::spawn(connection);
        client.batch_execute("CREATE TABLE orders (id integer PRIMARY KEY)").await.expect("a table");
        Self { server, store, client, policy }
    }

    fn job(&self) -> NewJob {
        let kind = Kind::new("ship").expect("legal");
        NewJob::new(JobId(Uuid::now_v7()), kind, self.policy.clone(), br#"{"order":7}"#.to_vec())
    }

    /// Calls `redrive.enqueue` with these arguments.
    async fn call(&self, arguments: &str) -> Result<Uuid, tokio_postgres::Error> {
        let sql = format!("SELECT redrive.enqueue({arguments})");
        Ok(self.client.query_one(sql.as_str(), &[]).await?.get(0))
    }

    /// The code and the message of a call that must fail.
    async fn refusal(&self, arguments: &str) -> (String, String) {
        let error = self.call(arguments).await.expect_err(arguments);
        let error = error.as_db_error().expect("the server rejects the call");
        (error.code().code().to_owned(), error.message().to_owned())
    }

    async fn job_of(&self, id: Uuid) -> Option<Job> {
        self.store.get(vec![JobId(id)]).await.expect("get").pop().flatten()
    }

    async fn pending(&self) -> u64 {
        self.store.stats().await.expect("stats").in_state(State::Pending)
    }
}

#[tokio::test]
async fn by_sql_a_commit_enqueues_and_a_rollback_does_not() {
    let fixture = Fixture::open().await;
    let call = "SELECT redrive.enqueue('ship', '{\"order\":7}')";
    fixture.server.run(&format!("BEGIN; INSERT INTO orders VALUES (7); {call}; ROLLBACK"));
    assert_eq!(fixture.pending().await, 0);
    fixture.server.run(&format!("BEGIN; INSERT INTO orders VALUES (7); {call}; COMMIT"));
    assert_eq!(fixture.pending().await, 1);
    let request = ClaimRequest {
        worker: WorkerId::new("w").expect("legal"),
        queues: vec![],
        kinds: vec![],
        limit: 10,
        lease: Duration::from_secs(30),
    };
    let jobs = fixture.store.claim(request).await.expect("claim").jobs;
    let [job] = jobs.as_slice() else { panic!("{jobs:?}") };
    assert_eq!((job.payload.as_slice(), job.kind.as_str()), (&br#"{"order":7}"#[..], "ship"));
    assert_eq!((&job.policy, job.id.0.get_version_num()), (&fixture.policy, 7));
}

#[tokio::test]
async fn by_sql_every_argument_arrives() {
    let fixture = Fixture::open().await;
    let id = Uuid::now_v7();
    let arguments = format!(
        "kind => 'k', payload => '[1]', queue => 'q', priority => 9, run_at => now() + interval '1 hour', key => 'order-7', \
         policy => 'default', tenant => 't', timeout => interval '1.5 s', id => '{id}'"
    );
    let before = fixture.store.stats().await.expect("stats").now;
    assert_eq!(fixture.call(&arguments).await.expect("enqueued"), id);
    let job = fixture.job_of(id).await.expect("the job exists");
    assert_eq!(job.queue, Queue::new("q").expect("legal"));
    assert_eq!(job.priority, Priority::MAX);
    assert_eq!(job.tenant, Tenant::new("t").expect("legal"));
    assert_eq!(job.timeout, Some(Duration::from_millis(1500)));
    assert_eq!(job.key, Some(IdempotencyKey::new("order-7").expect("legal")));
    assert_eq!(job.payload, b"[1]");
    let wait = job.next_run_at.since(before);
    assert!((3_599..3_660).contains(&wait.as_secs()), "{wait:?}");
    assert_eq!((job.began_at, job.run, job.attempt), (job.next_run_at, 1, 0));
}

#[tokio::test]
async fn by_sql_and_from_rust_one_key_is_one_job() {
    let fixture = Fixture::open().await;
    let key = || IdempotencyKey::new("order-7").expect("legal");
    let first = fixture.call("'ship', '{\"order\":7}', key => 'order-7'").await.expect("enqueued");
    assert_eq!(fixture.call("'ship', '{\"order\":7}', key => 'order-7'").await.expect("again"), first);
    let again = fixture.store.enqueue(vec![fixture.job().with_key(key())]).await.expect("enqueue");
    assert_eq!(again, [EnqueueResult::Existing(JobId(first))]);
    let other = NewJob { payload: b"{}".to_vec(), ..fixture.job() }.with_key(key());
    let conflict = fixture.store.enqueue(vec![other]).await.expect("enqueue");
    assert_eq!(conflict, [EnqueueResult::Conflict(JobId(first))]);
    let (code, message) = fixture.refusal("'ship', '{}', key => 'order-7'").await;
    assert!(code == "23505" && message.contains(&first.to_string()), "{code} {message}");
    assert_eq!(fixture.pending().await, 1);
}

#[tokio::test]
async fn by_sql_invalid_arguments_are_rejected_with_the_reason() {
    let fixture = Fixture::open().await;
    for (arguments, code, part) in [
        ("'ship', policy => 'none'", "42704", "no policy named 'none'"),
        ("''", "22023", "kind must be from 1 to 128 bytes"),
        ("repeat('x', 129)", "22023", "kind must be from 1 to 128 bytes"),
        ("E'a\\nb'", "22023", "kind must not contain control characters"),
        ("'ship', queue => NULL", "22023", "queue must be"),
        ("'ship', priority => 10", "22023", "priority must be from 0 to 9"),
        ("'ship', run_at => now() + interval '367 days'", "22023", "run_at must be at most one year ahead"),
        ("'ship', to_json(repeat('x', 100000))", "22023", "payload is 100002 bytes long"),
        ("'ship', '{'", "22P02", "json"),
    ] {
        let refusal = fixture.refusal(arguments).await;
        assert!(refusal.0 == code && refusal.1.contains(part), "{arguments}: {refusal:?}");
    }
    assert_eq!(fixture.pending().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_tokio_postgres_a_commit_enqueues_and_wakes_and_a_rollback_does_not() {
    let mut fixture = Fixture::open().await;
    let (job, lost) = (fixture.job(), fixture.job());
    let other =
        PostgresStore::open(&fixture.server.address(), Options::default()).await.expect("the store opens");
    let wake = wait_until_quiet(&other).await;

    let mut transaction = fixture.client.transaction().await.expect("begun");
    let answer = fixture.store.enqueue_in(&mut transaction, vec![lost.clone()]).await.expect("enqueued");
    assert_eq!(answer, [EnqueueResult::Created(lost.id)]);
    transaction.rollback().await.expect("rolled back");
    assert_eq!(fixture.job_of(lost.id.0).await, None);

    let mut transaction = fixture.client.transaction().await.expect("begun");
    fixture.store.enqueue_in(&mut transaction, vec![job.clone()]).await.expect("enqueued");
    let seen = other.get(vec![job.id]).await.expect("get");
    assert_eq!(seen, [None], "the job is not visible before the commit");
    let early = tokio::time::timeout(Duration::from_millis(100), other.wait(wake)).await;
    assert!(early.is_err(), "no node wakes before the commit");
    transaction.commit().await.expect("committed");
    assert!(fixture.job_of(job.id.0).await.is_some());
    tokio::time::timeout(Duration::from_secs(5), other.wait(wake)).await.expect("other nodes wake");
    assert_eq!(fixture.pending().await, 1);
}

#[tokio::test]
async fn from_tokio_postgres_an_invalid_job_does_not_abort_the_transaction() {
    let mut fixture = Fixture::open().await;
    let late = NewJob { start: Start::At(Timestamp::MAX), ..fixture.job() };
    let job = fixture.job();
    let mut transaction = fixture.client.transaction().await.expect("begun");
    let error =
        fixture.store.enqueue_in(&mut transaction, vec![job.clone(), late]).await.expect_err("refused");
    assert!(matches!(&error, StoreError::Invalid(invalid) if invalid.field == "runAt"), "{error:?}");
    let again = fixture.store.enqueue_in(&mut transaction, vec![job.clone(), job.clone()]).await;
    assert_eq!(again.expect("enqueued"), [EnqueueResult::Created(job.id), EnqueueResult::Existing(job.id)]);
    transaction.commit().await.expect("committed");
    assert_eq!(fixture.pending().await, 1);
}

#[tokio::test]
async fn from_sqlx_a_commit_enqueues_and_a_rollback_does_not() {
    let fixture = Fixture::open().await;
    let mut connection = PgConnection::connect(&fixture.server.address()).await.expect("the server answers");
    let keyed = || fixture.job().with_key(IdempotencyKey::new("order-7").expect("legal"));
    let (job, lost) = (keyed(), keyed());

    let mut transaction = connection.begin().await.expect("begun");
    let answer = fixture.store.enqueue_in_sqlx(&mut transaction, vec![lost.clone()]).await.expect("enqueued");
    assert_eq!(answer, [EnqueueResult::Created(lost.id)]);
    transaction.rollback().await.expect("rolled back");

    let mut transaction = connection.begin().await.expect("begun");
    let answer = fixture.store.enqueue_in_sqlx(&mut transaction, vec![job.clone(), lost]).await;
    assert_eq!(answer.expect("enqueued"), [EnqueueResult::Created(job.id), EnqueueResult::Existing(job.id)]);
    transaction.commit().await.expect("committed");
    assert_eq!(fixture.pending().await, 1);
    let stored = fixture.job_of(job.id.0).await.expect("the job exists");
    assert_eq!((stored.payload, stored.key), (job.payload, job.idempotency.map(|asked| asked.key)));
}

/// Claims start where the last one ended. A job that appears before that position must still be found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_commits_late_is_found_after_later_ones_were_claimed() {
    let mut fixture = Fixture::open().await;
    let late = fixture.job();
    let mut transaction = fixture.client.transaction().await.expect("begun");
    fixture.store.enqueue_in(&mut transaction, vec![late.clone()]).await.expect("enqueued");
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    for _ in 0..3 {
        let early = NewJob::new(JobId(Uuid::now_v7()), late.kind.clone(), late.policy.clone(), vec![]);
        fixture.store.enqueue(vec![early.clone()]).await.expect("enqueued");
        assert_eq!(claim(&fixture.store).await, [early.id]);
    }
    transaction.commit().await.expect("committed");
    let began = std::time::Instant::now();
    while claim(&fixture.store).await != [late.id] {
        assert!(began.elapsed() < Duration::from_secs(5), "the late job is not found");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn claim(store: &PostgresStore) -> Vec<JobId> {
    let request = ClaimRequest {
        worker: WorkerId::new("w").expect("legal"),
        queues: vec![],
        kinds: vec![],
        limit: 10,
        lease: Duration::from_secs(30),
    };
    store.claim(request).await.expect("claim").jobs.iter().map(|job| job.id).collect()
}

/// Waits until no more wake-ups arrive from the setup, and returns their number.
async fn wait_until_quiet(store: &PostgresStore) -> redrive_core::store::WakeToken {
    let request = ClaimRequest {
        worker: WorkerId::new("w").expect("legal"),
        queues: vec![],
        kinds: vec![],
        limit: 0,
        lease: Duration::from_secs(1),
    };
    loop {
        let wake = store.claim(request.clone()).await.expect("claim").wake;
        if tokio::time::timeout(Duration::from_millis(500), store.wait(wake)).await.is_err() {
            return wake;
        }
    }
}
