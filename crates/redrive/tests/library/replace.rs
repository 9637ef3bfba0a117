//! A large payload that replaces another one belongs to the job that keeps its id, on every store and in every kind of enqueue.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use redrive::{Context, EnqueuedJob, JobId, Policy, Redrive, Task};
use redrive_bodies::{Bodies, ORPHAN_AGE};
use redrive_core::store::{Backend, EnqueueResult};
use redrive_store_postgres::{Options as PostgresOptions, PostgresStore};
use redrive_store_redis::{Options as RedisOptions, RedisStore};
use redrive_store_sqlite::{Options as SqliteOptions, SqliteStore};
use redrive_testkit::ManualClock;
use redrive_testkit::servers::{Postgres, Redis};
use serde::{Deserialize, Serialize};
use tokio_postgres::NoTls;

use crate::fixture::{output, work};

#[derive(Serialize, Deserialize)]
struct Index {
    version: u32,
    text: String,
}

impl Task for Index {
    const KIND: &'static str = "index";
    type Output = u32;

    /// No time budget, because the job runs days after its due time.
    fn policy() -> Policy {
        Policy::default().with_total_budget(None)
    }
}

fn index(version: u32) -> Index {
    Index { version, text: "x".repeat(100_000) }
}

/// A store on a clock of its own, and a folder for its bodies.
struct Fixture {
    redrive: Redrive,
    bodies: Bodies,
    clock: ManualClock,
    folder: tempfile::TempDir,
}

impl Fixture {
    fn new(redrive: Redrive, clock: ManualClock) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = format!("file:{}", folder.path().display());
        let bodies = Bodies::open(&address).unwrap();
        Self { redrive: redrive.with_bodies(&address).unwrap(), bodies, clock, folder }
    }

    fn sqlite() -> Self {
        let clock = ManualClock::new();
        let store = SqliteStore::open_in_memory_with(SqliteOptions::default().with_clock(clock.clone()));
        Self::new(Redrive::on_sqlite(store.unwrap()), clock)
    }

    async fn postgres(server: &Postgres) -> Self {
        let clock = ManualClock::new();
        let options = PostgresOptions::default().with_clock(clock.clone());
        Self::new(Redrive::on_postgres(PostgresStore::open(&server.address(), options).await.unwrap()), clock)
    }

    async fn redis(server: &Redis) -> Self {
        let clock = ManualClock::new();
        let options = RedisOptions::default().with_clock(clock.clone());
        let store = RedisStore::open(&server.address(), options).await.unwrap();
        Self::new(Redrive::on(Arc::new(store)), clock)
    }

    fn backend(&self) -> &dyn Backend {
        &**self.redrive.backend()
    }

    async fn collect(&self) -> usize {
        self.bodies.collect(self.backend(), self.clock.now(), ORPHAN_AGE, 10).await.unwrap()
    }

    fn files(&self) -> usize {
        files(self.folder.path())
    }

    /// Checks that a day later only the last payload is left, that the job runs with it, and that it is deleted after the job.
    async fn check_end(&self, name: &str, id: JobId, version: u32) {
        self.clock.advance(ORPHAN_AGE + Duration::from_secs(1));
        self.collect().await;
        assert_eq!(self.files(), 1, "{name}: only the payload in use is left");
        let worker = self.redrive.worker().on(|index: Index, _: Context| async move { Ok(index.version) });
        work(&self.redrive, worker, &[id]).await;
        assert_eq!(output(&self.redrive, id).await, version.to_string(), "{name}");
        self.clock.advance(Duration::from_secs(30 * 24 * 60 * 60));
        assert_eq!(self.backend().prune(redrive_core::store::Retention::default(), 10).await.unwrap(), 1);
        assert_eq!((self.collect().await, self.files()), (1, 0), "{name}");
    }
}

fn files(folder: &Path) -> usize {
    let folders = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    folders.filter(|path| path.is_dir()).map(|folder| std::fs::read_dir(folder).unwrap().count()).sum()
}

/// Replaces the payload of a job in several ways, and checks each of them a day later.
async fn check_replaced_payloads(fixture: &Fixture) {
    let redrive = &fixture.redrive;
    let quiet = Duration::from_secs(5);
    let first = redrive.enqueue(index(1)).debounce("one", quiet).await.unwrap();
    let again = redrive.enqueue(index(2)).debounce("one", quiet).await.unwrap();
    assert_eq!(again, EnqueuedJob::Replaced(first.id()));
    fixture.check_end("debounce", first.id(), 2).await;

    let in_a_day = 2 * ORPHAN_AGE;
    let first = redrive.enqueue(index(3)).replace("two").delay(in_a_day).await.unwrap().id();
    let batch = (4..7).map(|version| redrive.enqueue(index(version)).replace("two").delay(in_a_day));
    let answers = redrive.enqueue_all(batch).await.unwrap();
    assert_eq!(answers, [EnqueuedJob::Replaced(first); 3]);
    // While the job waits, its former payloads are deleted, and the last one stays.
    fixture.clock.advance(ORPHAN_AGE + Duration::from_secs(1));
    assert_eq!((fixture.collect().await, fixture.files()), (3, 1), "batch");
    fixture.check_end("batch", first, 6).await;

    // A crash after the enqueue, before the record says which job uses the payload: only the enqueue is made.
    let first = redrive.enqueue(index(7)).replace("three").await.unwrap().id();
    let prepared = redrive.enqueue(index(8)).replace("three").prepare().await.unwrap();
    let job = redrive::NewJob::clone(prepared.job());
    assert_eq!(fixture.backend().enqueue(vec![job]).await.unwrap(), [EnqueueResult::Replaced(first)]);
    fixture.check_end("crash after the enqueue", first, 8).await;

    // A crash before the enqueue.
    let first = redrive.enqueue(index(9)).replace("four").await.unwrap().id();
    redrive.enqueue(index(10)).replace("four").prepare().await.unwrap();
    fixture.check_end("crash before the enqueue", first, 9).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_payload_that_replaces_another_outlives_the_collector_on_sqlite() {
    let fixture = Fixture::sqlite();
    check_replaced_payloads(&fixture).await;

    let first = fixture.redrive.enqueue(index(1)).replace("tx").await.unwrap().id();
    let task = fixture.redrive.enqueue(index(2)).replace("tx").prepare().await.unwrap();
    let enqueued = fixture.redrive.transact(move |tx| tx.enqueue(&task)).await.unwrap();
    assert_eq!(enqueued, EnqueuedJob::Replaced(first));
    fixture.check_end("transaction", first, 2).await;

    let first = fixture.redrive.enqueue(index(3)).replace("tx").await.unwrap().id();
    let task = fixture.redrive.enqueue(index(4)).replace("tx").prepare().await.unwrap();
    let rolled_back = fixture.redrive.transact(move |tx| {
        tx.enqueue(&task)?;
        Err::<(), _>(redrive::Error::refused("changed its mind"))
    });
    rolled_back.await.unwrap_err();
    fixture.check_end("rolled back", first, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_payload_that_replaces_another_outlives_the_collector_on_postgres() {
    let server = Postgres::start_with(&[("fsync", "off")]);
    let fixture = Fixture::postgres(&server).await;
    check_replaced_payloads(&fixture).await;

    let first = fixture.redrive.enqueue(index(1)).replace("tx").await.unwrap().id();
    let task = fixture.redrive.enqueue(index(2)).replace("tx").prepare().await.unwrap();
    let work = fixture.redrive.transact_postgres(|tx| Box::pin(async move { tx.enqueue(&task).await }));
    assert_eq!(work.await.unwrap(), EnqueuedJob::Replaced(first));
    fixture.check_end("the store's transaction", first, 2).await;

    let (mut client, connection) = tokio_postgres::connect(&server.address(), NoTls).await.unwrap();
    tokio::spawn(connection);
    for (commits, version) in [(true, 4), (false, 3)] {
        let first = fixture.redrive.enqueue(index(3)).replace("tx").await.unwrap().id();
        let mut transaction = client.transaction().await.unwrap();
        let enqueue = fixture.redrive.enqueue(index(4)).replace("tx");
        assert_eq!(enqueue.enqueue_in(&mut transaction).await.unwrap(), EnqueuedJob::Replaced(first));
        if commits {
            transaction.commit().await.unwrap();
        } else {
            transaction.rollback().await.unwrap();
        }
        fixture.check_end("a transaction of the application", first, version).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_payload_that_replaces_another_outlives_the_collector_on_redis() {
    let server = Redis::start();
    check_replaced_payloads(&Fixture::redis(&server).await).await;
}
