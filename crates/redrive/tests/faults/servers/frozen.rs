//! A node that is stopped for three leases, including its heartbeats, and continues after another node has taken its jobs.

use std::time::Duration;

use redrive_core::{State, Store, lease_count};
use redrive_testkit::history::HistoryEvent;

use super::fixture::{self, Fixture};
use crate::process::ChildProcess;
use crate::{runner, workload};

/// Three of them are longer than a lease plus the time to reclaim an orphan.
const LEASE: Duration = Duration::from_secs(3);
/// When the node continues, some of its jobs have ended on the other node, and some still run there.
const SCRIPTS: [&str; 4] = ["take 2000", "take 2000", "take 8000", "take 8000"];

pub(crate) fn frozen_for_three_leases() {
    let runtime = runner::runtime();
    let fixture = runtime.block_on(Fixture::open(&[]));
    let lease_ms = LEASE.as_millis() as u64;
    let frozen = ChildProcess::start(fixture.node("default", "frozen", lease_ms));
    let (store, _) = runtime.block_on(fixture.local("client"));
    runtime.block_on(async {
        let policy = fixture::policy(&store).await;
        let jobs = SCRIPTS.map(|script| workload::job(&policy, script));
        store.enqueue(jobs.to_vec()).await.expect("enqueued");
        fixture
            .wait_for_events("the jobs start", SCRIPTS.len(), |event| {
                matches!(event, HistoryEvent::Started(_))
            })
            .await;
    });
    let _awake = ChildProcess::start(fixture.node("default", "awake", lease_ms));
    frozen.signal("STOP");
    let stopped_at = fixture::now();
    std::thread::sleep(LEASE * 3);
    frozen.signal("CONT");
    runtime.block_on(async {
        let shut_out =
            |event: &HistoryEvent| matches!(event, HistoryEvent::LeaseLost(lease) if lease_count(lease.epoch) == 1);
        fixture.wait_for_events("a late settlement is rejected", 1, shut_out).await;
        fixture.wait_until_ended(&store).await;
        // The late node sends its remaining calls within a heartbeat.
        tokio::time::sleep(LEASE / 3).await;
        let (end, history) = fixture.check().await;
        for job in end.jobs.values() {
            let by = job.worker.as_ref().map(|worker| worker.as_str());
            let seen = (job.state, job.attempt, by);
            assert_eq!(seen, (State::Succeeded, 2, Some("awake")), "STALE-SHUT-OUT: {job:?}");
        }
        let late = history.all().iter().filter(|(_, event)| shut_out(event)).count();
        println!("  {}", fixture::check_orphans(&history, stopped_at, stopped_at, LEASE));
        println!("  {late} of {} late settlements arrived and changed nothing", SCRIPTS.len());
    });
}
