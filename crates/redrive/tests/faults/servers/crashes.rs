//! A server that crashes again and again while two nodes work on it.

use std::time::Duration;

use redrive_core::{JobId, Store};
use redrive_testkit::history::HistoryEvent;
use redrive_testkit::servers::Postgres;

use super::fixture::{self, Fixture, Nodes};
use super::node::AGAIN;
use crate::process::ChildProcess;
use crate::workload::LEASE;
use crate::{checks, runner, workload};

/// Crashes of the server, half of them by a kill, half of them by an immediate shutdown.
pub(crate) const CRASHES: usize = 6;
/// Jobs that do not end, so that killed nodes leave orphans.
const HANGING: usize = 4;

pub(crate) fn killed_and_restarted_under_load() {
    let mut rng = fastrand::Rng::with_seed(runner::seed());
    let runtime = runner::runtime();
    let mut fixture = runtime.block_on(Fixture::open(&[]));
    let names = ["first", "second"];
    let mut nodes = names.map(|name| ChildProcess::start(fixture.node("work", name, rng.u64(..))));
    for crash in [Postgres::kill, Postgres::stop_immediately].into_iter().cycle().take(CRASHES) {
        pause(&mut rng, 700..1300);
        crash(&mut fixture.server);
        pause(&mut rng, 0..400);
        fixture.server.restart();
    }
    runtime.block_on(start_hanging_jobs(&fixture));
    let stopped_at = fixture::now();
    for node in &mut nodes {
        assert_eq!(node.kill(), None, "a node did not survive the crash of its server");
    }
    let drained = ChildProcess::start(fixture.node("drain", "drain", 0)).wait();
    let (end, history) = runtime.block_on(fixture.check());
    assert_eq!(drained, Some(0), "NO-WEDGE: jobs are left that no process could finish");
    let acknowledged = checks::count_acknowledged(&history);
    assert!(acknowledged > 300, "only {acknowledged} jobs were acknowledged: the nodes did not get to work");
    let works_from = fixture::works_from(&history, stopped_at);
    println!("  {}", fixture::check_orphans(&history, stopped_at, works_from, LEASE));
    println!("  {}", check_repeated_enqueues(&fixture, &names));
    println!("  {acknowledged} jobs acknowledged, {} in the store, all ended", end.jobs.len());
}

/// Waits until both nodes run jobs, so that their kill leaves orphans.
pub(crate) async fn start_hanging_jobs(fixture: &Nodes) {
    let (store, _) = fixture.local("client").await;
    let policy = fixture::policy(&store).await;
    let jobs = [(); HANGING].map(|()| workload::job(&policy, "hang"));
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    store.enqueue(jobs.to_vec()).await.expect("enqueued");
    let starts =
        |event: &HistoryEvent| matches!(event, HistoryEvent::Started(lease) if ids.contains(&lease.id));
    fixture.wait_for_events("the jobs start", HANGING, starts).await;
}

pub(crate) fn pause(rng: &mut fastrand::Rng, ms: std::ops::Range<u64>) {
    std::thread::sleep(Duration::from_millis(rng.u64(ms)));
}

/// Checks that enqueues whose result was lost in a crash were repeated with the same ids.
pub(crate) fn check_repeated_enqueues(fixture: &Nodes, names: &[&str]) -> String {
    let mut had_taken_effect = 0;
    let mut all = 0;
    for name in names {
        let file = fixture.journal(name).with_extension(AGAIN);
        let again = std::fs::read_to_string(file).expect("the node has written the file");
        all += again.lines().count();
        had_taken_effect += again.lines().filter(|line| *line == "had taken effect").count();
    }
    assert!(all >= CRASHES / 2, "only {all} enqueues were repeated: the crashes did not interrupt enqueues");
    format!("{all} enqueues repeated after a crash, {had_taken_effect} of them had taken effect")
}
