//! A Redis server that crashes, and a cluster that loses a primary, while two nodes work on it.

use redrive_testkit::history::HistoryEvent;
use redrive_testkit::servers::{Redis, RedisCluster};

use super::crashes::{crash_repeatedly, describe_repeated_enqueues, pause, start_hanging_jobs};
use super::fixture::{self, Nodes};
use crate::process::ChildProcess;
use crate::workload::LEASE;
use crate::{checks, runner};

const NAMES: [&str; 2] = ["first", "second"];

/// The server syncs every write before it acknowledges it (`appendfsync always`).
pub(crate) fn redis_killed_and_restarted_under_load() {
    let mut rng = fastrand::Rng::with_seed(runner::seed());
    let mut server = Redis::start_with(&[("appendfsync", "always")]);
    let nodes = Nodes::at(server.address());
    let mut working = start(&nodes, &mut rng);
    crash_repeatedly(&nodes, &NAMES, |_| {
        pause(&mut rng, 700..1300);
        server.kill();
        pause(&mut rng, 0..400);
        server.restart();
    });
    runner::runtime().block_on(start_hanging_jobs(&nodes));
    let stopped_at = fixture::now();
    end(&mut working);
    let history = finish(&nodes);
    println!("  {}", fixture::check_orphans(&history, stopped_at, stopped_at, LEASE));
    println!("  {}", describe_repeated_enqueues(&nodes, &NAMES));
}

/// Moves a slot, then kills a primary and restarts it. The jobs on the other primaries continue meanwhile.
pub(crate) fn redis_cluster_moves_slots_and_loses_a_primary_under_load() {
    let mut rng = fastrand::Rng::with_seed(runner::seed());
    let mut cluster = RedisCluster::start(3, 0, &[("appendfsync", "always")]);
    let nodes = Nodes::at(format!("{}&spread_by=key", cluster.address()));
    let mut working = start(&nodes, &mut rng);
    for round in 0..3 {
        pause(&mut rng, 300..600);
        cluster.move_slots(round, (round + 1) % 3, 500);
        cluster.node(round).kill();
        pause(&mut rng, 200..600);
        cluster.node(round).restart();
        cluster.await_agreement();
    }
    end(&mut working);
    finish(&nodes);
}

fn start(nodes: &Nodes, rng: &mut fastrand::Rng) -> Vec<ChildProcess> {
    let working = NAMES.map(|name| ChildProcess::start(nodes.node("work", name, rng.u64(..))));
    let started = |event: &HistoryEvent| matches!(event, HistoryEvent::Started(_));
    runner::runtime().block_on(nodes.wait_for_events("both nodes work", 20, started));
    working.into()
}

fn end(working: &mut [ChildProcess]) {
    for node in working {
        assert_eq!(node.kill(), None, "a node ended because of the fault of its server");
    }
}

/// Lets one process finish the remaining jobs, and runs the five checks.
fn finish(nodes: &Nodes) -> redrive_testkit::History {
    let drained = ChildProcess::start(nodes.node("drain", "drain", 0)).wait();
    let (end, history) = runner::runtime().block_on(nodes.check());
    assert_eq!(drained, Some(0), "NO-WEDGE: jobs are left that no process could finish");
    let acknowledged = checks::count_acknowledged(&history);
    assert!(acknowledged > 200, "only {acknowledged} jobs were acknowledged: the nodes did not get to work");
    println!("  {acknowledged} jobs acknowledged, {} in the store, all ended", end.jobs.len());
    history
}
