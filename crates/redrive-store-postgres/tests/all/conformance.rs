//! The Postgres store passes the suite that every store passes, on a private server.

use redrive_store_postgres::{Options, PostgresStore};
use redrive_testkit::ManualClock;
use redrive_testkit::servers::Postgres;
use tokio_postgres::{Client, NoTls};

/// A server, and a way to empty its tables.
struct Scene {
    server: Postgres,
    client: Client,
}

impl Scene {
    /// It need not survive a power cut.
    async fn open() -> Self {
        let server = Postgres::start_with(&[("fsync", "off"), ("synchronous_commit", "off")]);
        PostgresStore::migrate(&server.address()).await.expect("the tables are made");
        let (client, connection) =
            tokio_postgres::connect(&server.address(), NoTls).await.expect("it answers");
        tokio::spawn(connection);
        Self { server, client }
    }

    /// A store with nothing in it.
    async fn store(&self, clock: ManualClock) -> PostgresStore {
        let empty = "TRUNCATE redrive.jobs, redrive.attempts, redrive.counts, redrive.records, redrive.lanes, \
            redrive.steps, redrive.signals, redrive.uniques, redrive.starts, redrive.closing";
        self.client.batch_execute(empty).await.expect("the tables are emptied");
        let options = Options::default().with_clock(clock);
        PostgresStore::open(&self.server.address(), options).await.expect("the store opens")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_conforms() {
    let scene = Scene::open().await;
    redrive_testkit::exercise(|clock| scene.store(clock)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_loses_no_wake_up_whatever_the_order() {
    let scene = Scene::open().await;
    redrive_testkit::interleave(|clock| scene.store(clock)).await;
}

#[test]
fn postgres_agrees_with_the_model() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let scene = runtime.block_on(Scene::open());
    redrive_testkit::check_against_model(128, |clock| scene.store(clock));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_pages_go_on_behind_a_damaged_row() {
    let scene = Scene::open().await;
    let store = scene.store(ManualClock::new()).await;
    for id in redrive_testkit::enqueue_rows_to_damage(&store).await {
        let sql = format!("UPDATE redrive.jobs SET policy = 'nonsense' WHERE id = '{}'", id.0);
        scene.client.batch_execute(&sql).await.expect("damaged");
    }
    redrive_testkit::check_damaged_rows(&store).await;
}
