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

/// The least number of crashes of the server.
const CRASHES_MIN: usize = 6;
/// The number of crashes after which the test fails, if they interrupted too few enqueues.
const CRASHES_MAX: usize = 60;
/// The least number of enqueues that the crashes must interrupt.
const REPEATED_MIN: usize = 3;
/// Jobs that do not end, so that killed nodes leave orphans.
const HANGING: usize = 4;

pub(crate) fn killed_and_restarted_under_load() {
    let mut rng = fastrand::Rng::with_seed(runner::seed());
    let runtime = runner::runtime();
    let mut fixture = runtime.block_on(Fixture::open(&[]));
    let names = ["first", "second"];
    let mut nodes = names.map(|name| ChildProcess::start(fixture.node("work", name, rng.u64(..))));
    let Fixture { server, nodes: working } = &mut fixture;
    crash_repeatedly(working, &names, |number| {
        pause(&mut rng, 700..1300);
        let crash = if number % 2 == 0 { Postgres::kill } else { Postgres::stop_immediately };
        crash(server);
        pause(&mut rng, 0..400);
        server.restart();
    });
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
    println!("  {}", describe_repeated_enqueues(&fixture, &names));
    println!("  {acknowledged} jobs acknowledged, {} in the store, all ended", end.jobs.len());
}

/// Crashes a server until enough enqueues were interrupted. A crash between two enqueues interrupts none.
pub(crate) fn crash_repeatedly(nodes: &Nodes, names: &[&str], mut crash: impl FnMut(usize)) {
    let mut crashes = 0;
    while crashes < CRASHES_MIN || repeated_enqueues(nodes, names).len() < REPEATED_MIN {
        assert!(crashes < CRASHES_MAX, "{CRASHES_MAX} crashes did not interrupt {REPEATED_MIN} enqueues");
        crash(crashes);
        crashes += 1;
    }
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

/// Describes the enqueues that were repeated because a crash interrupted them.
pub(crate) fn describe_repeated_enqueues(nodes: &Nodes, names: &[&str]) -> String {
    let all = repeated_enqueues(nodes, names);
    let had_taken_effect = all.iter().filter(|line| *line == "had taken effect").count();
    format!("{} enqueues repeated after a crash, {had_taken_effect} of them had taken effect", all.len())
}

/// A line for each enqueue whose result was lost, and which was repeated with the same id. A node that has not started has none.
fn repeated_enqueues(nodes: &Nodes, names: &[&str]) -> Vec<String> {
    let lines = |name: &&str| std::fs::read_to_string(nodes.journal(name).with_extension(AGAIN));
    let texts: Vec<String> = names.iter().filter_map(|name| lines(name).ok()).collect();
    texts.iter().flat_map(|text| text.lines()).map(str::to_owned).collect()
}
