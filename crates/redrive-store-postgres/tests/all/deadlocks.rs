//! Claims under limits, cancels and settlements of the same jobs take their locks in an order that allows no deadlock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redrive_core::queue_limits::{Limits, QUEUE_LIMITS};
use redrive_core::records::{Precondition, RecordStore, RecordWrite};
use redrive_core::store::SettleResult;
use redrive_core::{JobId, NewJob, Order, Partition, PartitionKey, QueueLimits, Steps, Store, Verdict};
use tokio::task::JoinSet;

use crate::harness::{Cluster, DIFFERENCE, TIMEOUT, claim, settle};

const JOBS: usize = 1_200;
const KEYS: usize = 12;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_under_limits_cancels_and_settlements_never_deadlock() {
    let cluster = Cluster::open(&[("deadlock_timeout", "50ms")]).await;
    let ids = fill(&cluster).await;
    let ended = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    let nodes = [cluster.store.clone(), cluster.node().await, cluster.node().await];
    for number in 0..12 {
        let (store, ended) = (nodes[number % nodes.len()].clone(), ended.clone());
        tasks.spawn(async move {
            let began = Instant::now();
            while ended.load(Ordering::Relaxed) < JOBS {
                assert!(
                    began.elapsed() < TIMEOUT,
                    "{} of {JOBS} jobs have ended",
                    ended.load(Ordering::Relaxed)
                );
                // A deadlock would be an error.
                let claimed = claim(&store, 30, TIMEOUT).await;
                if claimed.is_empty() {
                    store.sweep(None, 100).await.expect("swept");
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                for job in claimed {
                    let settled = settle(&store, &job, Verdict::Complete(None)).await;
                    ended.fetch_add(
                        usize::from(matches!(settled, SettleResult::Applied(_))),
                        Ordering::Relaxed,
                    );
                }
            }
        });
    }
    // Cancels of many jobs at once, in different orders, among them jobs that are claimed meanwhile.
    for (number, store) in nodes.iter().enumerate() {
        let (store, ended) = (store.clone(), ended.clone());
        let mut some: Vec<JobId> = ids.iter().copied().skip(number).step_by(7).collect();
        if number % 2 == 0 {
            some.reverse();
        }
        tasks.spawn(async move {
            for batch in some.chunks(60) {
                let results = store.cancel(batch.to_vec()).await.expect("cancelled");
                let done =
                    results.iter().filter(|result| **result == redrive_core::store::CancelResult::Done);
                ended.fetch_add(done.count(), Ordering::Relaxed);
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(cluster.server.run(DIFFERENCE), "0", "the counts differ from the rows");
    assert_eq!(cluster.server.run("SELECT count(*) FROM redrive.slots"), "0", "a slot is still taken");
    drop(nodes);
    // Sessions report deadlocks when they have been idle for a second, or end.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    cluster.store.stats().await.expect("stats");
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(cluster.server.run(deadlocks), "0");
}

/// Adds jobs with partition keys, whose number of running jobs is limited. Returns their ids.
async fn fill(cluster: &Cluster) -> Vec<JobId> {
    // A limit of the queue would make claims take turns.
    let per_key = Limits { concurrency: Some(4), rate: None };
    let limits = QueueLimits { concurrency: None, rate: None, per_key };
    let value = Some(serde_json::to_vec(&limits).expect("JSON"));
    let (kind, id) = (QUEUE_LIMITS.to_owned(), "default".to_owned());
    let write = RecordWrite { kind, id, expect: Precondition::Any, value };
    cluster.store.write(write).await.expect("written");
    let job = |number: usize| {
        let key = PartitionKey::new(format!("key-{}", number % KEYS)).expect("legal");
        let order = if number % KEYS < 2 { Order::Strict } else { Order::Any };
        NewJob { partition: Some(Partition { key, order }), ..cluster.job() }
    };
    let jobs: Vec<NewJob> = (0..JOBS).map(job).collect();
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    for batch in jobs.chunks(500) {
        cluster.store.enqueue(batch.to_vec()).await.expect("enqueued");
    }
    ids
}
