//! Claims of a few jobs call a function whose plan the server keeps, and work without it.

use redrive_core::store::SettleResult;
use redrive_core::{State, Store, Verdict};
use redrive_store_postgres::{Options, PostgresStore};

use crate::harness::{Cluster, TIMEOUT, claim, claim_request, settle};

const SUCCEEDED: SettleResult = SettleResult::Applied(State::Succeeded);

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
/// Three calls prepare connections when a store opens.
const CALLS_AT_START: u32 = 3;
/// A thousand of these are too much for the answer of a function.
const LARGE_PAYLOAD: &[u8] = &[b'x'; 40_000];
/// Adds jobs that are due to the lane of the first job.
const MANY_JOBS: &str = "
    INSERT INTO redrive.jobs (id, lane, due, created_at, tenant, policy, payload)
    SELECT gen_random_uuid(), 1, n, 0, '', 'default@1', 'x' FROM generate_series(1, 20000) AS n;
    INSERT INTO redrive.ready (lane, due, id) SELECT lane, due, id FROM redrive.jobs WHERE created_at = 0";
/// The rows and index entries that statements have read.
const READS: &str = "SELECT
    (SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE schemaname = 'redrive')
    + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE schemaname = 'redrive')";

/// Reads a number from the statistics of the server. A session reports them when it has been idle for a while, or when it ends.
async fn statistic_after(cluster: Cluster, sql: &str) -> u32 {
    let Cluster { server, store, .. } = cluster;
    drop(store);
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    while server.run(sessions) != "0" {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    server.run(sql).parse().expect("a number")
}

#[tokio::test]
async fn claims_of_a_few_large_jobs_call_a_function_and_those_of_many_do_not() {
    let cluster = Cluster::open(&[("track_functions", "pl")]).await;
    cluster.enqueue_with_payload(200, LARGE_PAYLOAD).await;
    // The first claim expects a few jobs, and finds more than a function takes.
    assert_eq!(claim(&cluster.store, 100, TIMEOUT).await.len(), 100);
    assert_eq!(claim(&cluster.store, 99, TIMEOUT).await.len(), 99);
    assert_eq!(claim(&cluster.store, 99, TIMEOUT).await.len(), 1);
    cluster.enqueue(1).await;
    assert_eq!(claim(&cluster.store, 99, TIMEOUT).await.len(), 1);
    assert_eq!(statistic_after(cluster, CALLS).await, CALLS_AT_START + 2);
}

#[tokio::test]
async fn claims_of_many_small_jobs_call_a_function_once_their_size_is_known() {
    let cluster = Cluster::open(&[("track_functions", "pl")]).await;
    cluster.enqueue(300).await;
    for _ in 0..3 {
        assert_eq!(claim(&cluster.store, 100, TIMEOUT).await.len(), 100);
    }
    assert_eq!(statistic_after(cluster, CALLS).await, CALLS_AT_START + 3);
}

/// Before the first jobs, the planner expects that reading a whole table costs as little as looking up a row.
#[tokio::test]
async fn functions_that_are_planned_in_an_empty_database_read_few_rows_in_a_full_one() {
    let cluster = Cluster::open(&[("autovacuum", "off")]).await;
    cluster.enqueue(1).await;
    cluster.server.run(MANY_JOBS);
    cluster.server.run("SELECT pg_stat_reset()");
    let claimed = claim(&cluster.store, 20, TIMEOUT).await;
    assert_eq!(claimed.len(), 20);
    for job in &claimed {
        assert_eq!(settle(&cluster.store, job, Verdict::Complete(None)).await, SUCCEEDED);
    }
    let reads = statistic_after(cluster, READS).await;
    assert!(reads < 2_000, "{reads} rows were read for 20 jobs");
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
    assert_eq!(cluster.server.run(FUNCTIONS), "12");
    cluster.server.run(DROP_FUNCTIONS);
    cluster.enqueue(1).await;
    let error = cluster.store.claim(claim_request(1, TIMEOUT)).await.expect_err("there are no functions");
    let error = error.to_string();
    assert!(error.contains("claim_whole_lanes") && error.ends_with("run `redrive migrate`"), "{error}");
    let node = cluster.node().await;
    assert_eq!(cluster.server.run(FUNCTIONS), "12");
    assert_eq!(claim(&node, 1, TIMEOUT).await.len(), 1);
    assert_eq!(claim(&cluster.store, 1, TIMEOUT).await.len(), 0);
}

/// A role that may use the tables. The functions are there only if they were before.
const CREATE_WORKER: &str = "CREATE ROLE worker LOGIN;
    GRANT USAGE ON SCHEMA redrive TO worker;
    GRANT ALL ON ALL TABLES IN SCHEMA redrive TO worker;
    GRANT ALL ON ALL SEQUENCES IN SCHEMA redrive TO worker";
const REVOKE_EXECUTE: &str = "REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA redrive FROM PUBLIC";

#[tokio::test]
async fn a_role_that_may_not_create_or_execute_functions_claims_without_them() {
    for (change, functions) in [(DROP_FUNCTIONS, "0"), (REVOKE_EXECUTE, "12")] {
        let cluster = Cluster::open(&[]).await;
        cluster.server.run(change);
        cluster.server.run(CREATE_WORKER);
        let address = cluster.server.address().replacen("redrive@", "worker@", 1);
        assert_ne!(address, cluster.server.address());
        let store = PostgresStore::open(&address, Options::default()).await.expect("the store opens");
        assert_eq!(cluster.server.run(FUNCTIONS), functions);
        cluster.enqueue(1).await;
        let claimed = claim(&store, 1, TIMEOUT).await;
        assert_eq!(settle(&store, &claimed[0], Verdict::Complete(None)).await, SUCCEEDED, "{change}");
    }
}
