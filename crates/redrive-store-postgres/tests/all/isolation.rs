//! The store works at READ COMMITTED, whatever the default of the server is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use redrive_core::store::SettleResult;
use redrive_core::{NewJob, Order, Partition, PartitionKey, State, Store, Verdict};
use redrive_store_postgres::{Options, PostgresStore};
use redrive_testkit::servers::PgBouncer;
use tokio::task::JoinSet;

use crate::harness::{Cluster, DIFFERENCE, TIMEOUT, claim, settle};

const JOBS: usize = 300;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_calls_succeed_on_a_server_whose_default_is_serializable() {
    for level in ["serializable", "repeatable read"] {
        let cluster = Arc::new(Cluster::open(&[("default_transaction_isolation", level)]).await);
        let direct = cluster.node().await;
        run_jobs(&cluster, [cluster.store.clone(), direct]).await;
        // Each transaction may run in another session of the server.
        let bouncer = PgBouncer::start_with(&cluster.server, &[("default_pool_size", "4")]);
        let address = format!("{}?listen=off", bouncer.address());
        let pooled = PostgresStore::open(&address, Options::default()).await.expect("the store opens");
        run_jobs(&cluster, [pooled.clone(), pooled]).await;
        assert_eq!(cluster.server.run(DIFFERENCE), "0");
    }
}

/// A claim under limits once spent 15 of its 20 ms on the compilation of a statement.
#[tokio::test]
async fn a_claim_under_limits_is_not_compiled() {
    let cluster = Cluster::open(&[("jit", "on")]).await;
    let partition = Partition { key: PartitionKey::new("a").expect("legal"), order: Order::Any };
    let job = NewJob { partition: Some(partition), ..cluster.job() };
    cluster.store.enqueue(vec![job]).await.expect("enqueued");
    cluster.server.run(
        "CREATE TABLE seen (isolation text, jit text);
         CREATE FUNCTION note_settings() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
           INSERT INTO seen VALUES (current_setting('transaction_isolation'), current_setting('jit')); RETURN NULL;
         END $$;
         CREATE TRIGGER note_settings AFTER INSERT ON redrive.slots EXECUTE FUNCTION note_settings()",
    );
    assert_eq!(claim(&cluster.store, 1, TIMEOUT).await.len(), 1);
    assert_eq!(cluster.server.run("SELECT DISTINCT isolation, jit FROM seen").trim(), "read committed|off");
}

/// Nodes that start at once on an empty server take turns to migrate it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_start_at_once_on_a_serializable_server_create_the_tables_once() {
    let settings = [("fsync", "off"), ("default_transaction_isolation", "serializable")];
    let server = redrive_testkit::servers::Postgres::start_with(&settings);
    let mut nodes = JoinSet::new();
    for _ in 0..8 {
        let address = server.address();
        nodes.spawn(async move { PostgresStore::open(&address, Options::default()).await });
    }
    for store in nodes.join_all().await {
        store.expect("the store opens");
    }
    assert_eq!(server.run("SELECT count(*) = max(version) FROM redrive.schema"), "t");
}

/// Enqueues, claims and settles jobs in many tasks. No call may fail.
async fn run_jobs(cluster: &Arc<Cluster>, nodes: [PostgresStore; 2]) {
    let left = Arc::new(AtomicUsize::new(JOBS));
    let mut tasks = JoinSet::new();
    for number in 0..12 {
        let (cluster, store, left) = (cluster.clone(), nodes[number % 2].clone(), left.clone());
        tasks.spawn(async move {
            for _ in 0..JOBS / 12 {
                store.enqueue(vec![cluster.job()]).await.expect("enqueued");
            }
            while left.load(Ordering::Relaxed) > 0 {
                for job in claim(&store, 3, TIMEOUT).await {
                    let settled = settle(&store, &job, Verdict::Complete(None)).await;
                    assert_eq!(settled, SettleResult::Applied(State::Succeeded));
                    left.fetch_sub(1, Ordering::Relaxed);
                }
            }
        });
    }
    tokio::time::timeout(TIMEOUT, tasks.join_all()).await.expect("the jobs end");
}
