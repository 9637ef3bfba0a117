//! The Postgres store passes the suite that every store passes, on a private server.

use redrive_store_postgres::{Options, PostgresStore};
use redrive_testkit::ManualClock;
use redrive_testkit::servers::Postgres;
use tokio_postgres::{Client, NoTls};

use crate::planned_claims::DROP_FUNCTIONS;

/// A server, and a connection to empty its tables.
struct TestServer {
    server: Postgres,
    client: Client,
}

impl TestServer {
    /// Starts a fast server, without protection against a power cut.
    async fn open() -> Self {
        let server = Postgres::start_with(&[("fsync", "off"), ("synchronous_commit", "off")]);
        PostgresStore::migrate(&server.address()).await.expect("the tables are created");
        let (client, connection) =
            tokio_postgres::connect(&server.address(), NoTls).await.expect("the server answers");
        tokio::spawn(connection);
        Self { server, client }
    }

    /// An empty store.
    async fn store(&self, clock: ManualClock) -> PostgresStore {
        self.store_with(Options::default(), clock).await
    }

    async fn store_with(&self, options: Options, clock: ManualClock) -> PostgresStore {
        let empty = "TRUNCATE redrive.jobs, redrive.ready, redrive.claims, redrive.progress, redrive.waiting, \
            redrive.ended, redrive.children, redrive.slots, redrive.ordered, redrive.attempts, redrive.counts, \
            redrive.records, redrive.lanes, redrive.steps, redrive.signals, redrive.uniques, redrive.starts, \
            redrive.closing";
        self.client.batch_execute(empty).await.expect("the tables are emptied");
        let options = options.with_clock(clock);
        PostgresStore::open(&self.server.address(), options).await.expect("the store opens")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_conforms() {
    let server = TestServer::open().await;
    redrive_testkit::exercise(|clock| server.store(clock)).await;
}

/// A role may not be allowed to create the functions that claims call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_conforms_without_its_functions() {
    let server = TestServer::open().await;
    server.client.batch_execute(DROP_FUNCTIONS).await.expect("the functions are removed");
    redrive_testkit::exercise(|clock| {
        server.store_with(Options { migrate: false, ..Options::default() }, clock)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_loses_no_wake_up_in_any_interleaving() {
    let server = TestServer::open().await;
    redrive_testkit::interleave(|clock| server.store(clock)).await;
}

#[test]
fn postgres_agrees_with_the_model() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let server = runtime.block_on(TestServer::open());
    redrive_testkit::check_against_model(128, |clock| server.store(clock));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_pages_continue_after_a_damaged_row() {
    let server = TestServer::open().await;
    let store = server.store(ManualClock::new()).await;
    for id in redrive_testkit::enqueue_rows_to_damage(&store).await {
        let sql = format!("UPDATE redrive.jobs SET policy = 'nonsense' WHERE id = '{}'", id.0);
        server.client.batch_execute(&sql).await.expect("damaged");
    }
    redrive_testkit::check_damaged_rows(&store).await;
}
