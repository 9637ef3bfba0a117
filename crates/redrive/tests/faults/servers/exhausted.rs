//! A connection pool whose connections are all blocked. Leases are still renewed.

use std::time::{Duration, Instant};

use redrive_core::store::ReclaimRequest;
use redrive_core::{State, Store};
use redrive_testkit::history::HistoryEvent;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::fixture::{self, Fixture, TIMEOUT};
use super::node::default_settings;
use crate::{runner, workload};

const LEASE: Duration = Duration::from_secs(1);
/// How long the connections are blocked.
const BLOCKED_FOR: Duration = Duration::from_secs(4);

/// How many of the node's statements wait for a lock.
const WAITING: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'busy' AND wait_event_type = 'Lock'";

pub(crate) fn pool_exhausted() {
    runner::runtime().block_on(async {
        let fixture = Fixture::open(&[]).await;
        let address = format!("{}?connections=2&application_name=busy", fixture.server.address());
        let (store, history) = fixture.local_at(&address, "busy").await;
        let (other, _) = fixture.local("other").await;
        let policy = fixture::policy(&store).await;
        store.enqueue(vec![workload::job(&policy, "take 6000")]).await.expect("enqueued");
        let stop = CancellationToken::new();
        let worker =
            workload::worker(std::sync::Arc::new(store.clone()), history, default_settings("busy", LEASE));
        let working = tokio::spawn(worker.run_until(stop.clone().cancelled_owned()));
        fixture.wait_for_events("the job starts", 1, |event| matches!(event, HistoryEvent::Started(_))).await;

        // Every call except a renewal of leases writes the counts.
        let session = fixture.session().await;
        session.batch_execute("BEGIN; LOCK TABLE redrive.counts").await.expect("locked");
        let began = Instant::now();
        let mut blocked = JoinSet::new();
        for _ in 0..4 {
            let (store, job) = (store.clone(), workload::job(&policy, "ok"));
            blocked.spawn(async move { store.enqueue(vec![job]).await });
        }
        while fixture.server.run(WAITING) != "2" {
            assert!(began.elapsed() < TIMEOUT, "the connections are not blocked");
        }
        while began.elapsed() < BLOCKED_FOR {
            let taken = other.reclaim(request()).await.expect("reclaimed").jobs;
            assert!(taken.is_empty(), "a lease was not renewed while the pool was exhausted: {taken:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!((fixture.server.run(WAITING).as_str(), blocked.try_join_next().is_none()), ("2", true));
        session.batch_execute("COMMIT").await.expect("unlocked");

        while let Some(enqueued) = blocked.join_next().await {
            enqueued.expect("no panic").expect("a blocked enqueue succeeds in the end");
        }
        fixture.wait_until_ended(&store).await;
        stop.cancel();
        working.await.expect("no panic").expect("the worker shuts down cleanly");
        let (end, _) = fixture.check().await;
        for job in end.jobs.values() {
            assert_eq!((job.state, job.lease_count(), job.attempt), (State::Succeeded, 1, 1), "{job:?}");
        }
    });
}

fn request() -> ReclaimRequest {
    ReclaimRequest { kinds: vec![], limit: 10, lease: TIMEOUT, held: vec![] }
}
