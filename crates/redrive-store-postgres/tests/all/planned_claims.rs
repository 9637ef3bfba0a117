//! Claims of a few jobs call a function whose plan the server keeps, and work without it.

use redrive_core::Store;
use redrive_store_postgres::{Options, PostgresStore};

use crate::harness::{Cluster, TIMEOUT, claim, claim_request};

/// The functions of this build. Their names end with a hash.
const FUNCTIONS: &str = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'redrive'::regnamespace AND proname ~ '_[0-9a-f]{16}$'";
pub(crate) const DROP_FUNCTIONS: &str = "DO $$ DECLARE each regprocedure; BEGIN
    FOR each IN
      SELECT oid FROM pg_proc WHERE pronamespace = 'redrive'::regnamespace AND proname ~ '_[0-9a-f]{16}$'
    LOOP
      EXECUTE 'DROP FUNCTION ' || each;
    END LOOP;
  END $$";
/// How often claims without limits called theirs.
const CALLS: &str =
    "SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions WHERE funcname LIKE 'claim_whole_lanes%'";

/// The calls of functions so far. A session reports its statistics when it has been idle for a while, or when it ends.
async fn calls_after(cluster: Cluster) -> u32 {
    let Cluster { server, store, .. } = cluster;
    drop(store);
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    while server.run(sessions) != "0" {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    server.run(CALLS).parse().expect("a number")
}

#[tokio::test]
async fn claims_of_a_few_jobs_call_a_function_and_those_of_many_do_not() {
    let cluster = Cluster::open(&[("track_functions", "pl")]).await;
    cluster.enqueue(200).await;
    // The first claim expects a few jobs, and finds more than a function takes.
    assert_eq!(claim(&cluster.store, 100, TIMEOUT).await.len(), 100);
    assert_eq!(claim(&cluster.store, 99, TIMEOUT).await.len(), 99);
    assert_eq!(claim(&cluster.store, 99, TIMEOUT).await.len(), 1);
    cluster.enqueue(1).await;
    assert_eq!(claim(&cluster.store, 99, TIMEOUT).await.len(), 1);
    // Three calls prepare connections when the store opens.
    assert_eq!(calls_after(cluster).await, 3 + 2);
}

#[tokio::test]
async fn a_claim_of_many_jobs_is_in_order_and_complete() {
    let cluster = Cluster::open(&[]).await;
    let ids = cluster.enqueue(100).await;
    let claimed = cluster.store.claim(claim_request(1_000, TIMEOUT)).await.expect("claimed");
    let claimed_ids: Vec<_> = claimed.jobs.iter().map(|job| job.id).collect();
    assert_eq!(claimed_ids, ids);
    assert_eq!(claimed.next_due, None);
}

#[tokio::test]
async fn functions_that_are_missing_are_named_and_created_by_the_next_node() {
    let cluster = Cluster::open(&[]).await;
    assert_eq!(cluster.server.run(FUNCTIONS), "8");
    cluster.server.run(DROP_FUNCTIONS);
    cluster.enqueue(1).await;
    let error = cluster.store.claim(claim_request(1, TIMEOUT)).await.expect_err("there are no functions");
    let error = error.to_string();
    assert!(error.contains("claim_whole_lanes") && error.ends_with("run `redrive migrate`"), "{error}");
    let node = cluster.node().await;
    assert_eq!(cluster.server.run(FUNCTIONS), "8");
    assert_eq!(claim(&node, 1, TIMEOUT).await.len(), 1);
    assert_eq!(claim(&cluster.store, 1, TIMEOUT).await.len(), 0);
}

#[tokio::test]
async fn a_role_that_may_not_create_functions_claims_without_them() {
    let cluster = Cluster::open(&[]).await;
    cluster.server.run(DROP_FUNCTIONS);
    cluster.server.run(
        "CREATE ROLE worker LOGIN;
         GRANT USAGE ON SCHEMA redrive TO worker;
         GRANT ALL ON ALL TABLES IN SCHEMA redrive TO worker;
         GRANT ALL ON ALL SEQUENCES IN SCHEMA redrive TO worker",
    );
    let address = cluster.server.address().replacen("redrive@", "worker@", 1);
    assert_ne!(address, cluster.server.address());
    let store = PostgresStore::open(&address, Options::default()).await.expect("the store opens");
    assert_eq!(cluster.server.run(FUNCTIONS), "0");
    cluster.enqueue(1).await;
    assert_eq!(claim(&store, 1, TIMEOUT).await.len(), 1);
}
