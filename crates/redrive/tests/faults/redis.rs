//! A Redis that crashes or loses its power, and a cluster that loses a primary, while two nodes work on it.

use redrive_testkit::history::Happening;
use redrive_testkit::servers::{Redis, RedisCluster};

use crate::crashes::{CRASHES, hang, pause, repeated};
use crate::scene::{self, Nodes};
use crate::victim::process::Victim;
use crate::victim::work::LEASE;
use crate::victim::{books, program};

const NAMES: [&str; 2] = ["first", "second"];

/// Every acknowledged write is on disk before its answer (`appendfsync always`).
pub(crate) fn redis_killed_and_restarted_under_load() {
    let mut chance = fastrand::Rng::with_seed(program::seed());
    let mut server = Redis::start_with(&[("appendfsync", "always")]);
    let nodes = Nodes::at(server.address());
    let mut working = start(&nodes, &mut chance);
    for _ in 0..CRASHES {
        pause(&mut chance, 700..1300);
        server.kill();
        pause(&mut chance, 0..400);
        server.restart();
    }
    program::runtime().block_on(hang(&nodes));
    let silent = scene::now();
    end(&mut working);
    let history = finish(&nodes);
    println!("  {}", scene::orphans_in_time(&history, silent, LEASE));
    println!("  {}", repeated(&nodes, &NAMES));
}

/// A slot moves, a primary is killed and comes back: what the other primaries have goes on meanwhile.
pub(crate) fn redis_cluster_moves_slots_and_loses_a_primary_under_load() {
    let mut chance = fastrand::Rng::with_seed(program::seed());
    let mut cluster = RedisCluster::start(3, 0, &[("appendfsync", "always")]);
    let nodes = Nodes::at(format!("{}&spread_by=key", cluster.address()));
    let mut working = start(&nodes, &mut chance);
    for round in 0..3 {
        pause(&mut chance, 300..600);
        cluster.move_slots(round, (round + 1) % 3, 500);
        cluster.node(round).kill();
        pause(&mut chance, 200..600);
        cluster.node(round).restart();
        cluster.await_agreement();
    }
    end(&mut working);
    finish(&nodes);
}

fn start(nodes: &Nodes, chance: &mut fastrand::Rng) -> Vec<Victim> {
    let working = NAMES.map(|name| Victim::start(nodes.node("work", name, chance.u64(..))));
    let started = |happening: &Happening| matches!(happening, Happening::Started(_));
    program::runtime().block_on(nodes.happened("both nodes work", 20, started));
    working.into()
}

fn end(working: &mut [Victim]) {
    for node in working {
        assert_eq!(node.kill(), None, "a node did not survive what happened to its server");
    }
}

/// Lets one process finish what is left, and runs the five checks.
fn finish(nodes: &Nodes) -> redrive_testkit::History {
    let drained = Victim::start(nodes.node("drain", "drain", 0)).wait();
    let (end, history) = program::runtime().block_on(nodes.check());
    assert_eq!(drained, Some(0), "NO-WEDGE: jobs are left that no process could finish");
    let acknowledged = books::acknowledged(&history);
    assert!(acknowledged > 200, "only {acknowledged} jobs were acknowledged: the nodes did not get to work");
    println!("  {acknowledged} jobs acknowledged, {} in the store, all ended", end.jobs.len());
    history
}
