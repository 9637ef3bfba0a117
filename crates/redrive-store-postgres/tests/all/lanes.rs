//! Lanes that nobody uses are removed, or left out of claims, and come back when they are used again.

use std::time::Duration;

use redrive_core::store::{EnqueueResult, RedriveResult, Retention, SettleResult};
use redrive_core::{JobId, NewJob, Reason, Start, State, Store, Verdict};
use redrive_store_postgres::{Options, PostgresStore};
use redrive_testkit::ManualClock;

use crate::harness::{Cluster, TIMEOUT, claim, settle};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Ended jobs are removed at once, except dead ones.
const RETENTION: Retention =
    Retention { succeeded: Duration::ZERO, dead: Duration::MAX, cancelled: Duration::ZERO };

/// The lanes by kind, with whether they are idle.
fn lanes(cluster: &Cluster) -> String {
    cluster.server.run("SELECT kind, idle FROM redrive.lanes ORDER BY kind").replace('\n', " ")
}

async fn enqueue(store: &PostgresStore, job: NewJob) -> JobId {
    let id = job.id;
    assert_eq!(store.enqueue(vec![job]).await.expect("enqueued"), [EnqueueResult::Created(id)]);
    id
}

/// Claims the only due job.
async fn run(store: &PostgresStore, verdict: Verdict) -> JobId {
    let mut jobs = claim(store, 10, TIMEOUT).await;
    let job = jobs.pop().expect("the job is due");
    assert!(jobs.is_empty(), "{jobs:?}");
    assert!(matches!(settle(store, &job, verdict).await, SettleResult::Applied(_)));
    job.id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unused_lanes_are_removed_or_idle_and_come_back() {
    let clock = ManualClock::new();
    let options = || Options::default().with_clock(clock.clone());
    let cluster = Cluster::open_with(&[], options()).await;
    let store = &cluster.store;
    let other = PostgresStore::open(&cluster.server.address(), options()).await.expect("the store opens");
    // One lane without jobs, one with a dead job, and one with a job that is due in a week.
    enqueue(store, cluster.job_of_kind("gone")).await;
    run(store, Verdict::Complete(None)).await;
    let dead = enqueue(store, cluster.job_of_kind("kept")).await;
    assert_eq!(run(store, Verdict::DeadLetter(Reason::NotRetryable)).await, dead);
    let later = NewJob { start: Start::After(7 * DAY), ..cluster.job_of_kind("later") };
    enqueue(store, later.clone()).await;
    // The other node knows the lanes too.
    assert!(claim(&other, 10, TIMEOUT).await.is_empty());

    clock.advance(DAY - Duration::from_secs(60));
    store.prune(RETENTION, 100).await.expect("pruned");
    assert_eq!(lanes(&cluster), "gone|f kept|f later|f", "they were used within the day");
    clock.advance(Duration::from_secs(120));
    store.prune(RETENTION, 100).await.expect("pruned");
    assert_eq!(lanes(&cluster), "kept|t later|f");

    // A claim does not read an idle lane.
    let hidden = format!(
        "INSERT INTO redrive.ready (lane, due, id) SELECT lane, 0, '{dead}' FROM redrive.jobs WHERE id = '{dead}'"
    );
    cluster.server.run(&hidden);
    for node in [store, &other] {
        assert!(claim(node, 10, TIMEOUT).await.is_empty());
    }
    cluster.server.run(&format!("DELETE FROM redrive.ready WHERE id = '{dead}'"));

    assert_eq!(other.redrive(vec![dead]).await.expect("redriven"), [RedriveResult::Done]);
    assert_eq!(lanes(&cluster), "kept|f later|f");
    assert_eq!(run(store, Verdict::Complete(None)).await, dead);

    // Both nodes remember the number of the lane that was removed.
    for node in [store, &other] {
        let again = enqueue(node, cluster.job_of_kind("gone")).await;
        assert_eq!(lanes(&cluster), "gone|f kept|f later|f");
        assert_eq!(run(&other, Verdict::Complete(None)).await, again);
    }
    clock.advance(7 * DAY);
    assert_eq!(run(store, Verdict::Complete(None)).await, later.id);
    store.prune(RETENTION, 100).await.expect("pruned");
    clock.advance(2 * DAY);
    store.prune(RETENTION, 100).await.expect("pruned");
    assert_eq!(lanes(&cluster), "");
    let last = cluster.job_of_kind("later");
    let id = enqueue(&other, last).await;
    assert_eq!(run(store, Verdict::Complete(None)).await, id);
    assert_eq!(other.stats().await.expect("stats").in_state(State::Succeeded), 1);
}

/// The function for SQL notes the use of a lane as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_enqueue_by_sql_revives_an_idle_lane() {
    let cluster = Cluster::open(&[]).await;
    let call = "SELECT redrive.enqueue('old')";
    let first = cluster.server.run(call);
    cluster.server.run("UPDATE redrive.lanes SET idle = true, used_at = 0");
    assert!(claim(&cluster.store, 10, TIMEOUT).await.is_empty());
    let second = cluster.server.run(call);
    let ids: Vec<String> =
        claim(&cluster.store, 10, TIMEOUT).await.iter().map(|job| job.id.to_string()).collect();
    assert_eq!(ids, [first, second]);
}
