//! A prune reaches every expired job, however many jobs it must keep.

use std::time::Duration;

use redrive_core::store::Retention;
use redrive_core::{NewJob, Start, Store};

use crate::harness::Cluster;

const CHILDREN: usize = 20_000;
const OTHERS: usize = 50;
const LIMIT: usize = 1_000;
/// A prune examines this many jobs for each that it may remove.
const EXAMINED: usize = 4 * LIMIT;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_children_of_a_live_parent_do_not_hide_later_jobs() {
    let cluster = Cluster::open(&[("autovacuum", "off")]).await;
    let parent = NewJob { start: Start::After(Duration::from_secs(3_600)), ..cluster.job() };
    cluster.store.enqueue(vec![parent.clone()]).await.expect("enqueued");
    let fill = format!(
        "CREATE TEMP TABLE added AS
         SELECT gen_random_uuid() AS id, n, CASE WHEN n <= {CHILDREN} THEN '{}'::uuid END AS parent
         FROM generate_series(1, {CHILDREN} + {OTHERS}) AS n;
         INSERT INTO redrive.jobs (id, lane, due, created_at, tenant, policy, payload, parent, branch)
         SELECT id, 1, 0, 0, '', 'default@1', 'x', parent, CASE WHEN parent IS NOT NULL THEN 0 END FROM added;
         INSERT INTO redrive.ended (id, epoch, finished_at, attempt, state) SELECT id, 65537, n, 1, 4 FROM added;
         INSERT INTO redrive.counts (lane, state, jobs) SELECT 1, 4, count(*) FROM added",
        parent.id
    );
    cluster.server.run(&fill);
    let retention = Retention { succeeded: Duration::ZERO, ..Retention::default() };
    let (mut removed, mut calls) = (0, 0);
    while removed < OTHERS {
        let before = rows_read(&cluster).await;
        removed += cluster.store.prune(retention, LIMIT).await.expect("pruned");
        calls += 1;
        assert!(calls <= CHILDREN / EXAMINED + 2, "{removed} of {OTHERS} jobs were removed in {calls} calls");
        let read = rows_read(&cluster).await - before;
        assert!(read <= 3 * EXAMINED as i64, "a call read {read} rows of ended jobs");
    }
    assert_eq!(removed, OTHERS);
    // Once the parent has ended, its children are removed too.
    cluster.store.cancel(vec![parent.id]).await.expect("cancelled");
    let retention = Retention { cancelled: Duration::ZERO, ..retention };
    for _ in 0..2 * (CHILDREN / LIMIT + 2) {
        removed += cluster.store.prune(retention, LIMIT).await.expect("pruned");
    }
    assert_eq!(removed, OTHERS + CHILDREN + 1);
    assert_eq!(cluster.server.run("SELECT count(*) FROM redrive.jobs"), "0");
}

/// The rows of ended jobs that all finished sessions and statements have read.
async fn rows_read(cluster: &Cluster) -> i64 {
    // Sessions report what they did when they have been idle for a second.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    cluster.store.stats().await.expect("stats");
    let sql = "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables \
        WHERE schemaname = 'redrive' AND relname = 'ended'";
    cluster.server.run(sql).parse().expect("a number")
}
