//! The table of counts agrees with the jobs, whatever happens at once, and stays small.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redrive_core::store::Retention;
use redrive_core::{
    JobId, NewJob, Reason, Start, State, Store, StoreError, Unique, UniqueKey, UniqueRule, Verdict,
};
use redrive_store_postgres::PostgresStore;
use tokio::task::JoinSet;

use crate::harness::{Cluster, DIFFERENCE, TIMEOUT, claim, settle};

const TASKS: usize = 16;
const ROUNDS: usize = 60;
const KEYS: usize = 4;

/// A small random generator, so that each run of the test does the same.
struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % count
    }
}

/// How often each action changed something.
#[derive(Debug, Default)]
struct Actions([AtomicUsize; 6]);

impl Actions {
    fn count(&self, action: usize, changed: bool) {
        self.0[action].fetch_add(changed.into(), Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_counts_are_exact_after_concurrent_changes_of_the_same_jobs() {
    let cluster = Arc::new(Cluster::open(&[]).await);
    let nodes = [cluster.store.clone(), cluster.node().await];
    let actions = Arc::new(Actions::default());
    let mut tasks = JoinSet::new();
    for number in 0..TASKS {
        let (cluster, store) = (cluster.clone(), nodes[number % nodes.len()].clone());
        let actions = actions.clone();
        tasks.spawn(async move { change(&cluster, &store, &actions, Random(number as u64)).await });
    }
    tasks.join_all().await;
    assert!(actions.0.iter().all(|count| count.load(Ordering::Relaxed) > 0), "{actions:?}");
    assert_eq!(cluster.server.run(DIFFERENCE), "0", "{}", cluster.server.run(BOTH));
    let total = cluster.server.run("SELECT count(*) FROM redrive.all_jobs");
    assert_eq!(cluster.server.run("SELECT sum(jobs) FROM redrive.counts"), total);
}

/// The counts, and those of the jobs.
const BOTH: &str = "SELECT 'kept', lane, state, sum(jobs) FROM redrive.counts GROUP BY lane, state \
    UNION ALL SELECT 'real', lane, state, count(*) FROM redrive.all_jobs GROUP BY lane, state ORDER BY 2, 3, 1";

/// Changes jobs that all tasks share: those with unique keys, and those that were claimed.
async fn change(cluster: &Cluster, store: &PostgresStore, actions: &Actions, mut random: Random) {
    for _ in 0..ROUNDS {
        let id = enqueue_unique(cluster, store, actions, &mut random).await;
        for _ in 0..2 {
            match random.below(4) {
                0 => {
                    let result = retried(|| store.run_now(vec![id])).await;
                    actions.count(1, result.len() == 1);
                }
                1 => {
                    let result = retried(|| store.cancel(vec![id])).await;
                    actions.count(2, result[0] == redrive_core::store::CancelResult::Done);
                }
                2 => {
                    let dead = retried(|| store.redrive(vec![id])).await;
                    actions.count(3, dead.len() == 1);
                }
                _ => {
                    for job in claim(store, 2, TIMEOUT).await {
                        actions.count(4, true);
                        let verdict = [
                            Verdict::Complete(None),
                            Verdict::Retry(Duration::from_millis(1)),
                            Verdict::Release,
                            Verdict::DeadLetter(Reason::NotRetryable),
                        ];
                        settle(store, &job, verdict[random.below(4)].clone()).await;
                    }
                }
            }
        }
    }
}

/// Enqueues a job that replaces the one with the same key, unless that has started. Returns the one that exists.
async fn enqueue_unique(
    cluster: &Cluster,
    store: &PostgresStore,
    actions: &Actions,
    random: &mut Random,
) -> JobId {
    let key = UniqueKey::new(format!("key-{}", random.below(KEYS))).expect("legal");
    let start = if random.below(2) == 0 { Start::Now } else { Start::After(Duration::from_secs(3_600)) };
    let unique = Some(Unique { key, rule: UniqueRule::Replace });
    let job = NewJob { start, unique, ..cluster.job() };
    let result = retried(|| store.enqueue(vec![job.clone()])).await[0];
    actions.count(5, matches!(result, redrive_core::store::EnqueueResult::Replaced(_)));
    actions.count(0, matches!(result, redrive_core::store::EnqueueResult::Created(_)));
    match result {
        redrive_core::store::EnqueueResult::Created(id)
        | redrive_core::store::EnqueueResult::Existing(id)
        | redrive_core::store::EnqueueResult::Conflict(id)
        | redrive_core::store::EnqueueResult::Replaced(id) => id,
    }
}

/// Makes a call again if the server resolved a deadlock, as callers do.
async fn retried<T, F: Future<Output = Result<T, StoreError>>>(call: impl Fn() -> F) -> T {
    loop {
        match call().await {
            Err(StoreError::Busy(_)) => {}
            result => return result.expect("the call succeeds"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_prune_merges_however_many_counts_were_added() {
    let cluster = Cluster::open(&[]).await;
    cluster.enqueue(7).await;
    // As many as some hours of single settlements add.
    cluster.server.run(
        "INSERT INTO redrive.counts (lane, state, jobs)
         SELECT lane, 4, CASE WHEN n % 2 = 0 THEN 1 ELSE -1 END FROM redrive.lanes, generate_series(1, 300000) AS n",
    );
    assert_eq!(cluster.server.run("SELECT count(*) >= 300000 FROM redrive.counts"), "t");
    cluster.store.prune(Retention::default(), 1_000).await.expect("pruned");
    let rows: usize = cluster.server.run("SELECT count(*) FROM redrive.counts").parse().expect("a number");
    assert!(rows < 1_000, "{rows} rows are left");
    assert_eq!(cluster.server.run(DIFFERENCE), "0");
    assert_eq!(cluster.store.stats().await.expect("stats").in_state(State::Pending), 7);
}
