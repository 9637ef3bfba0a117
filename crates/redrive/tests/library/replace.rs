//! A large payload that replaces another one belongs to the job that keeps its id, on every store and in every way.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use redrive::{Context, EnqueuedJob, JobId, Policy, Redrive, Task};
use redrive_bodies::{Bodies, ORPHAN_AGE};
use redrive_core::store::{Backend, Enqueued};
use redrive_store_postgres::{Options as PostgresOptions, PostgresStore};
use redrive_store_redis::{Options as RedisOptions, RedisStore};
use redrive_store_sqlite::{Options as SqliteOptions, SqliteStore};
use redrive_testkit::ManualClock;
use redrive_testkit::servers::{Postgres, Redis};
use serde::{Deserialize, Serialize};
use tokio_postgres::NoTls;

use crate::stage::{output, work};

#[derive(Serialize, Deserialize)]
struct Index {
    version: u32,
    text: String,
}

impl Task for Index {
    const KIND: &'static str = "index";
    type Output = u32;

    /// It runs days after it was due.
    fn policy() -> Policy {
        Policy::default().with_total_budget(None)
    }
}

fn index(version: u32) -> Index {
    Index { version, text: "x".repeat(100_000) }
}

/// A store on a clock of its own, and a folder for its bodies.
struct Scene {
    redrive: Redrive,
    bodies: Bodies,
    clock: ManualClock,
    folder: tempfile::TempDir,
}

impl Scene {
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

    /// A day later the former payload is gone, the job has the last one, and once it is gone so is that.
    async fn ends_well(&self, name: &str, id: JobId, version: u32) {
        self.clock.advance(ORPHAN_AGE + Duration::from_secs(1));
        self.collect().await;
        assert_eq!(self.files(), 1, "{name}: the payload in use, and no other");
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

/// Replaces a job's payload one way and the other, and looks a day later.
async fn replaced_payloads_live_on(scene: &Scene) {
    let redrive = &scene.redrive;
    let quiet = Duration::from_secs(5);
    let first = redrive.enqueue(index(1)).debounce("one", quiet).await.unwrap();
    let again = redrive.enqueue(index(2)).debounce("one", quiet).await.unwrap();
    assert_eq!(again, EnqueuedJob::Replaced(first.id()));
    scene.ends_well("debounce", first.id(), 2).await;

    let in_a_day = 2 * ORPHAN_AGE;
    let first = redrive.enqueue(index(3)).replace("two").delay(in_a_day).await.unwrap().id();
    let batch = (4..7).map(|version| redrive.enqueue(index(version)).replace("two").delay(in_a_day));
    let answers = redrive.enqueue_all(batch).await.unwrap();
    assert_eq!(answers, [EnqueuedJob::Replaced(first); 3]);
    // While it waits, what it had before goes, and what it has stays.
    scene.clock.advance(ORPHAN_AGE + Duration::from_secs(1));
    assert_eq!((scene.collect().await, scene.files()), (3, 1), "batch");
    scene.ends_well("batch", first, 6).await;

    // A crash between the enqueue and the note of whose payload it is: the enqueue alone is made.
    let first = redrive.enqueue(index(7)).replace("three").await.unwrap().id();
    let prepared = redrive.enqueue(index(8)).replace("three").prepare().await.unwrap();
    let job = redrive::NewJob::clone(prepared.job());
    assert_eq!(scene.backend().enqueue(vec![job]).await.unwrap(), [Enqueued::Replaced(first)]);
    scene.ends_well("crash after the enqueue", first, 8).await;

    // A crash before the enqueue.
    let first = redrive.enqueue(index(9)).replace("four").await.unwrap().id();
    redrive.enqueue(index(10)).replace("four").prepare().await.unwrap();
    scene.ends_well("crash before the enqueue", first, 9).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_payload_that_replaces_another_outlives_the_collector_on_sqlite() {
    let scene = Scene::sqlite();
    replaced_payloads_live_on(&scene).await;

    let first = scene.redrive.enqueue(index(1)).replace("tx").await.unwrap().id();
    let task = scene.redrive.enqueue(index(2)).replace("tx").prepare().await.unwrap();
    let enqueued = scene.redrive.transact(move |tx| tx.enqueue(&task)).await.unwrap();
    assert_eq!(enqueued, EnqueuedJob::Replaced(first));
    scene.ends_well("transaction", first, 2).await;

    let first = scene.redrive.enqueue(index(3)).replace("tx").await.unwrap().id();
    let task = scene.redrive.enqueue(index(4)).replace("tx").prepare().await.unwrap();
    let rolled_back = scene.redrive.transact(move |tx| {
        tx.enqueue(&task)?;
        Err::<(), _>(redrive::Error::refused("changed its mind"))
    });
    rolled_back.await.unwrap_err();
    scene.ends_well("rolled back", first, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_payload_that_replaces_another_outlives_the_collector_on_postgres() {
    let server = Postgres::start_with(&[("fsync", "off")]);
    let scene = Scene::postgres(&server).await;
    replaced_payloads_live_on(&scene).await;

    let first = scene.redrive.enqueue(index(1)).replace("tx").await.unwrap().id();
    let task = scene.redrive.enqueue(index(2)).replace("tx").prepare().await.unwrap();
    let work = scene.redrive.transact_postgres(|tx| Box::pin(async move { tx.enqueue(&task).await }));
    assert_eq!(work.await.unwrap(), EnqueuedJob::Replaced(first));
    scene.ends_well("the store's transaction", first, 2).await;

    let (mut client, connection) = tokio_postgres::connect(&server.address(), NoTls).await.unwrap();
    tokio::spawn(connection);
    for (commits, version) in [(true, 4), (false, 3)] {
        let first = scene.redrive.enqueue(index(3)).replace("tx").await.unwrap().id();
        let mut transaction = client.transaction().await.unwrap();
        let enqueue = scene.redrive.enqueue(index(4)).replace("tx");
        assert_eq!(enqueue.enqueue_in(&mut transaction).await.unwrap(), EnqueuedJob::Replaced(first));
        if commits {
            transaction.commit().await.unwrap();
        } else {
            transaction.rollback().await.unwrap();
        }
        scene.ends_well("a transaction of the application's", first, version).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_payload_that_replaces_another_outlives_the_collector_on_redis() {
    let server = Redis::start();
    replaced_payloads_live_on(&Scene::redis(&server).await).await;
}
